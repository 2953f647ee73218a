"""Who owns a client's and a server's life: closing from any task, failures at each step."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, ConnectFailed, ConnectionLost, LocalProtocolError, McpError, Server
from mcp_actors.supervision.containment import outliving
from mcp_actors.supervision.task_kinds import SHARED_STATE
from mcp_actors.testing import ScriptedPeer, connected_pair, raw_server
from mcp_actors.types import ElicitResult
from mcp_transports.memory import MemoryTransport

from .peers import (
    LEGACY,
    TEXT,
    Dials,
    arrived,
    failure,
    faulty_pair,
    greet,
    living,
    met,
    reply,
    request,
    settled,
)
from .witness import Witness, still_running

# -- closing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_clients_are_closed_in_any_order_from_any_task(seed: int) -> None:
    chance = random.Random(seed)
    witness = Witness()
    transport = MemoryTransport()
    baseline = living()
    clients: list[Client] = []

    async def own(era: str) -> None:
        async with Client(transport, era=era) as client:
            clients.append(client)
            with pytest.raises(ConnectionLost):
                await client.call_tool("hang")

    async def close(client: Client) -> None:
        for _ in range(chance.randrange(1, 4)):
            await client.aclose()

    async with trio.open_nursery() as nursery:
        await nursery.start(witness.server.serve, transport)
        async with trio.open_nursery() as owners:
            for number in range(20):
                owners.start_soon(own, ("legacy", "modern")[number % 2])
            await settled()
            assert len(witness.server.tree().sessions) == 20
            chance.shuffle(clients)
            for client in clients:
                owners.start_soon(close, client)
                if chance.random() < 0.5:
                    await settled()
        await trio.sleep(witness.server.limits.drain_grace + 1)
        assert witness.server.tree().sessions == ()
        nursery.cancel_scope.cancel()
    assert living() == baseline


async def test_closing_again_and_after_the_end_does_nothing() -> None:
    async with connected_pair(Server("s")) as client:
        await client.aclose()
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.ping()
        assert "ended" in repr(client)
    await client.aclose()
    with pytest.raises(ConnectionLost):
        client.tree()


async def test_a_client_closes_itself_from_its_own_callbacks() -> None:
    server = Server("talks")

    @server.tool
    async def talk(ctx: Any) -> None: ...

    async with met() as (client, peer):

        async def close(progress: Any) -> None:
            await client.aclose()

        async def answer() -> None:
            asked = await peer.receive()
            token = asked["params"]["_meta"]["progressToken"]
            await peer.send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": 1},
                }
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(ConnectionLost):
                await client.call_tool("any", on_progress=close)


async def test_leaving_the_block_takes_no_time_even_with_calls_in_flight() -> None:
    witness = Witness()
    began, baseline = trio.current_time(), living()

    async def give_up(client: Client) -> None:
        with pytest.raises(ConnectionLost):
            await client.call_tool("hang")

    async with trio.open_nursery() as nursery:
        async with connected_pair(witness.server) as client:
            for _ in range(50):
                nursery.start_soon(give_up, client)
            await settled()
            assert len(witness.begun) == 50
    assert trio.current_time() == began
    assert len(witness.cancelled) == 50
    assert living() == baseline


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_question_that_nobody_waits_for_any_more_does_not_keep_a_client(who: str) -> None:
    ended: list[float] = []

    async def elicitation(question: Any) -> ElicitResult:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())
        raise AssertionError

    async with met(elicitation=elicitation) as (client, peer):
        form = {"type": "object", "properties": {}}
        await peer.send(
            request("q", "elicitation/create", {"message": "?", "requestedSchema": form, "mode": "form"})
        )
        await settled()
        if who == "server":
            await peer.channel.aclose()
        await client.aclose()
    assert ended == [0]
    assert trio.current_time() == 0


async def test_cancelling_the_block_closes_it() -> None:
    witness = Witness()
    baseline = living()
    with trio.move_on_after(3) as scope:
        async with connected_pair(witness.server) as client:
            await client.call_tool("hang")
    assert scope.cancelled_caught
    assert trio.current_time() == scope.deadline
    assert len(witness.cancelled) == 1
    assert living() == baseline


# -- misuse ----------------------------------------------------------------------------------------------------------


async def test_a_client_is_good_for_one_block() -> None:
    client = Client(Server("s"))
    async with client:
        with pytest.raises(LocalProtocolError, match="one 'async with' block"):
            async with client:
                raise AssertionError
        await client.ping()
    with pytest.raises(LocalProtocolError, match="one 'async with' block"):
        async with client:
            raise AssertionError


async def test_a_client_that_was_never_entered_says_how_it_is_used() -> None:
    client = Client(Server("s"))
    with pytest.raises((ConnectionLost, LocalProtocolError), match="async with"):
        await client.ping()
    with pytest.raises((ConnectionLost, LocalProtocolError), match="async with"):
        client.tree()
    await client.aclose()


async def test_a_client_that_was_closed_before_it_was_entered_does_not_connect() -> None:
    client = Client(Server("s"))
    await client.aclose()
    with pytest.raises(ConnectionLost, match="closed"):
        async with client:
            raise AssertionError


# -- closing while it connects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_closing_during_the_handshake_ends_it_at_once(era: str) -> None:
    baseline = living()
    async with raw_server() as server:
        client = Client(server.transport, era=era)
        raised: list[BaseException] = []

        async def enter() -> None:
            try:
                async with client:
                    raise AssertionError
            except ConnectionLost as error:
                raised.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            peer = await server.accept()
            await peer.receive()
            began = trio.current_time()
            await client.aclose()
            await settled()
            assert trio.current_time() == began
            assert len(raised) == 1
        assert await arrived(peer) == []
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()
    assert living() == baseline


async def test_cancelling_the_handshake_leaves_nothing() -> None:
    baseline = living()
    async with raw_server() as server:
        with trio.move_on_after(2) as scope:
            async with Client(server.transport):
                raise AssertionError
        assert scope.cancelled_caught
        peer = await server.accept()
        # initialize and probes are not cancelled by message: the connection is closed.
        assert [(await peer.receive())["method"]] == ["server/discover"]
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()
    assert living() == baseline


@pytest.mark.parametrize("seconds", [0.5, 4.0])
async def test_a_transport_that_connects_slowly_can_be_closed(seconds: float) -> None:
    class Slow:
        @asynccontextmanager
        async def connect(self) -> AsyncIterator[Any]:
            await trio.sleep_forever()
            yield

    client = Client(Slow())
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.sleep(seconds)
            await client.aclose()

        with pytest.raises(ConnectionLost, match="closed"):
            async with client:
                raise AssertionError
    assert trio.current_time() == pytest.approx(seconds)


# -- a server that dies early ----------------------------------------------------------------------------------------


async def test_a_server_that_dies_of_the_probe_is_greeted_the_legacy_way_once() -> None:
    first, first_peer = faulty_pair()
    second, second_peer = faulty_pair()
    dials = Dials([first, second])

    async def serve() -> None:
        assert (await first_peer.receive())["method"] == "server/discover"
        await first_peer.channel.aclose()
        asked = await second_peer.receive()
        assert asked["method"] == "initialize"
        await second_peer.channel.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(ConnectionLost):
            async with Client(dials):
                raise AssertionError
    assert len(dials.attempts) == 2


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_pinned_client_starts_a_dying_server_once(era: str) -> None:
    first, first_peer = faulty_pair()
    second, _ = faulty_pair()
    dials = Dials([first, second])
    await first_peer.channel.aclose()
    with pytest.raises(ConnectionLost):
        async with Client(dials, era=era):
            raise AssertionError
    assert len(dials.attempts) == 1


# -- The restart policy ----------------------------------------------------------------------------------
#
# Calls in flight fail at once, new ones wait, attempts grow rarer, a hopeless peer is no crash.


class Flaky:
    """A server behind a transport: each connection is what ``script`` says, the last entry repeats."""

    def __init__(self, *script: str) -> None:
        self.script = list(script)
        self.attempts: list[float] = []
        self.peers: list[ScriptedPeer] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self.attempts.append(trio.current_time())
        what = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await trio.lowlevel.checkpoint()
        if what == "refuse":
            raise ConnectFailed("nobody there")
        channel, peer = faulty_pair()
        self.peers.append(peer)
        async with channel, trio.open_nursery() as nursery:
            nursery.start_soon(self._until_it_ends, what, peer)
            yield channel
            nursery.cancel_scope.cancel()

    async def _until_it_ends(self, what: str, peer: ScriptedPeer) -> None:
        try:
            await self._behave(what, peer)
        except (trio.EndOfChannel, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # by us or by the client: this connection is over

    async def lose(self, number: int) -> None:
        """Hangs up when the client has nothing more to say."""
        await settled()
        await self.peers[number].channel.aclose()
        await settled()

    async def _behave(self, what: str, peer: ScriptedPeer) -> None:
        if what == "silent":
            return
        if what == "hangs up":
            await peer.receive()
            await peer.channel.aclose()
            return
        if what == "refuses initialize":
            while True:
                await peer.send(failure(await peer.receive(), -32603))
        await greet(peer)
        while True:
            asked = await peer.receive()
            if asked.get("method") == "tools/call" and asked["params"]["name"] == "echo":
                await peer.send(reply(asked, TEXT))


async def test_a_lost_connection_comes_back_and_only_calls_in_flight_fail() -> None:
    flaky = Flaky("good")
    async with Client(flaky, restart=True) as client, trio.open_nursery() as nursery:
        raised: list[BaseException] = []

        async def hang() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await client.call_tool("hang")
            raised.append(caught.value)

        for _ in range(5):
            nursery.start_soon(hang)
        await settled()
        began = trio.current_time()
        await flaky.lose(0)
        assert len(raised) == 5
        assert trio.current_time() == began
        with pytest.raises(ConnectionLost):
            client.tree()
        # A new call waits for the new connection.
        await client.call_tool("echo")
        assert len(flaky.attempts) == 2
        assert 0.05 <= trio.current_time() - began <= 0.1


async def waits(flaky: Flaky, *lasting: float) -> list[float]:
    """How long it was between losing a connection, or an attempt, and the next one."""
    async with Client(flaky, restart=True) as client:
        for lost, seconds in enumerate(lasting):
            await trio.sleep(seconds)
            await flaky.lose(lost)
            await client.call_tool("echo")
    return [after - before for before, after in zip(flaky.attempts, flaky.attempts[1:], strict=False)]


def about(gaps: list[float], waits: list[float]) -> bool:
    """Each gap is a wait, cut by up to a half."""
    return len(gaps) == len(waits) and all(
        wait / 2 - 1e-9 <= gap <= wait + 1e-9 for gap, wait in zip(gaps, waits, strict=True)
    )


async def test_attempts_grow_rarer_and_begin_anew_after_a_connection_that_lasted() -> None:
    flaky = Flaky("good", *["refuse"] * 6, "good", "refuse", "good")
    gaps = await waits(flaky, 0, 10)
    gaps[7] -= 10
    assert about(gaps, [0.1, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 0.1, 0.5])
    assert len(set(gaps)) == len(gaps)  # by chance: not all clients come back at once


async def test_a_connection_that_does_not_last_is_another_failed_attempt() -> None:
    flaky = Flaky(*["good"] * 6)
    assert about(await waits(flaky, *[0] * 5), [0.1, 0.5, 1.0, 2.0, 5.0])


async def test_without_the_policy_nothing_comes_back() -> None:
    flaky = Flaky("good")
    async with Client(flaky) as client:
        await flaky.lose(0)
        with pytest.raises(ConnectionLost):
            await client.call_tool("echo")
        await trio.sleep(100)
        with pytest.raises(ConnectionLost):
            await client.call_tool("echo")
    assert len(flaky.attempts) == 1


async def test_a_first_connection_that_fails_is_not_tried_again() -> None:
    flaky = Flaky("refuse", "good")
    with pytest.raises(ConnectFailed):
        async with Client(flaky, restart=True):
            raise AssertionError
    assert len(flaky.attempts) == 1


@pytest.mark.parametrize("trouble", ["silent", "hangs up", "refuses initialize"])
async def test_trouble_while_coming_back_is_tried_again_and_harms_nobody(trouble: str) -> None:
    flaky = Flaky("good", trouble, "refuse", "good")
    async with Client(flaky, restart=True, timeout=60) as client:
        await flaky.lose(0)
        assert len(flaky.attempts) == 1
        await trio.sleep(100)
        await client.call_tool("echo")
        assert len(flaky.attempts) >= 4


async def test_closing_while_it_comes_back_ends_it() -> None:
    flaky = Flaky("good", "refuse")
    async with (
        Client(flaky, restart=True, timeout=math.inf, cap=math.inf) as client,
        trio.open_nursery() as nursery,
    ):
        await flaky.lose(0)
        await trio.sleep(20)
        raised: list[BaseException] = []

        async def wait() -> None:
            with pytest.raises(McpError) as caught:
                await client.call_tool("echo")
            raised.append(caught.value)

        nursery.start_soon(wait)
        await settled()
        began = trio.current_time()
        await client.aclose()
        await settled()
        assert trio.current_time() == began
        assert len(raised) == 1
        attempts = len(flaky.attempts)
        await trio.sleep(100)
        assert len(flaky.attempts) == attempts


async def test_a_call_does_not_wait_for_ever_for_a_server_that_is_gone() -> None:
    flaky = Flaky("good", "refuse")
    async with Client(flaky, restart=True, timeout=30) as client:
        await flaky.lose(0)
        began = trio.current_time()
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await client.call_tool("echo")
        assert trio.current_time() - began == pytest.approx(30)
        began = trio.current_time()
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await client.call_tool("echo", timeout=2)
        assert trio.current_time() - began == pytest.approx(2)


async def test_the_server_may_change_its_era_when_it_comes_back() -> None:
    first, modern = faulty_pair()
    second, legacy = faulty_pair()

    async def serve() -> None:
        asked = await modern.receive()
        found = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}
        await modern.send(reply(asked, {**found, "ttlMs": 0, "cacheScope": "private"}))
        await settled()
        await modern.channel.aclose()
        await greet(legacy)
        await legacy.send(request("p", "ping"))
        assert await legacy.receive() == reply("p")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with Client(Dials([first, second]), restart=True) as client:
            assert client.era == "modern"
            await trio.sleep(10)
            assert client.version == LEGACY


@pytest.mark.parametrize("steps", range(8))
async def test_a_block_whose_tasks_would_outlive_it_ends_when_it_is_cancelled_as_it_is_entered(
    steps: int,
) -> None:
    async def enter() -> None:
        async with outliving(SHARED_STATE):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        stuck = await still_running(nursery)
    assert stuck == []
