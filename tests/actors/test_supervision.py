"""Who owns a client's and a server's life: closing from any task, failures at each step."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, ConnectionLost, LocalProtocolError, Server
from mcp_actors.testing import connected_pair, raw_server
from mcp_actors.types import ElicitResult
from mcp_transports.memory import MemoryTransport

from .peers import Dials, arrived, faulty_pair, met, request, settled
from .witness import Witness


def living() -> int:
    return trio.lowlevel.current_statistics().tasks_living


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
