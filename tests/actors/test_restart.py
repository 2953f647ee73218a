"""The restart policy: calls in flight fail at once, new ones wait, attempts grow rarer, a hopeless peer is no crash."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, ConnectFailed, ConnectionLost, McpError
from mcp_actors.testing import ScriptedPeer

from .peers import LEGACY, TEXT, Dials, failure, faulty_pair, greet, reply, request, settled


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
