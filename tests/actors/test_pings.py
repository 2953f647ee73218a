"""Idle connections are pinged where their channel cannot notice a dead peer; a loss is told to the program once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, ConnectionLost, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.testing.recording import PassingChannel
from tests.messages import LEGACY_VERSIONS, MODERN, result
from tests.scripted_peers import greet

METHODS = {LEGACY_VERSIONS[-1]: "ping", MODERN: "server/discover"}
EACH_VERSION = pytest.mark.parametrize("version", METHODS)


class Unnoticed(PassingChannel):
    """A channel that does not notice when its peer is gone, as a socket's."""

    @property
    def needs_pings(self) -> bool:
        return True


class UnnoticedTransport:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with self._inner.connect() as channel:
            yield Unnoticed(channel)


async def next_of(peer: ScriptedPeer) -> Any:
    """The next message, or ``None`` when the client has gone."""
    try:
        return await peer.receive()
    except (trio.EndOfChannel, trio.BrokenResourceError):
        return None


class Peer:
    """A scripted server that answers pings for as long as it lives, and keeps what it was asked, with the time."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_alive = True
        self.asked: list[tuple[str, float]] = []
        self.connections = 0

    async def play(self, peer: ScriptedPeer) -> None:
        await greet(peer, self.version)
        self.connections += 1
        began = trio.current_time()
        while (request := await next_of(peer)) is not None:
            self.asked.append((request["method"], round(trio.current_time() - began)))
            if self.is_alive:
                await peer.send(result(request, {}))

    @asynccontextmanager
    async def serve(self, *, needs_pings: bool = True, **options: Any) -> AsyncIterator[Client]:
        async with raw_server() as server, trio.open_nursery() as nursery:

            async def accept() -> None:
                while True:
                    nursery.start_soon(self.play, await server.accept())

            nursery.start_soon(accept)
            target = UnnoticedTransport(server.transport) if needs_pings else server.transport
            async with Client(target, era=self.version, **options) as client:
                yield client
            nursery.cancel_scope.cancel()


@EACH_VERSION
async def test_a_silent_connection_is_pinged_and_kept(version: str, autojump_clock: MockClock) -> None:
    lost: list[Any] = []
    peer = Peer(version)
    async with peer.serve(on_lost=lost.append) as client:
        await trio.sleep(100)
        assert peer.asked == [(METHODS[version], 30), (METHODS[version], 60), (METHODS[version], 90)]
        await client.ping()
    assert lost == []


@EACH_VERSION
async def test_a_dead_peer_is_noticed_and_told_once(version: str, autojump_clock: MockClock) -> None:
    lost: list[Any] = []
    peer = Peer(version)
    async with peer.serve(on_lost=lost.append) as client:
        await trio.sleep(45)
        peer.is_alive = False
        await trio.sleep(46)
        assert [type(each) for each in lost] == [ConnectionLost]
        assert "no answer to a ping within 30 s" in str(lost[0])
        with pytest.raises(ConnectionLost, match="no answer to a ping"):
            await client.ping()
        await trio.sleep(1000)
    assert len(lost) == 1


async def test_with_restart_another_connection_is_made(autojump_clock: MockClock) -> None:
    lost: list[Any] = []
    peer = Peer(MODERN)

    async def on_lost(error: ConnectionLost) -> None:
        await trio.lowlevel.checkpoint()
        lost.append(error)
        peer.is_alive = True

    async with peer.serve(on_lost=on_lost, restart=True, ping_interval=10) as client:
        for number in range(1, 4):
            peer.is_alive = False
            await trio.sleep(32)
            assert len(lost) == number
            assert peer.connections == number + 1
            await client.ping()


@pytest.mark.parametrize(
    ("needs_pings", "interval", "pings"),
    [(True, None, 3), (True, 0, 0), (False, None, 0), (False, 10, 9), (True, 40, 2)],
)
async def test_who_is_pinged(
    needs_pings: bool, interval: float | None, pings: int, autojump_clock: MockClock
) -> None:
    peer = Peer(LEGACY_VERSIONS[-1])
    async with peer.serve(needs_pings=needs_pings, ping_interval=interval):
        await trio.sleep(99)
    assert len(peer.asked) == pings


async def test_a_server_that_is_busy_with_a_call_is_judged_by_the_call(autojump_clock: MockClock) -> None:
    lost: list[Any] = []
    peer = Peer(MODERN)
    async with peer.serve(on_lost=lost.append, ping_interval=10) as client, trio.open_nursery() as nursery:
        peer.is_alive = False

        async def call() -> None:
            with pytest.raises(Exception, match="the idle clock"):
                await client.request("long", timeout=100)

        nursery.start_soon(call)
        await trio.sleep(99)
        assert lost == []
        await trio.sleep(25)
        assert len(lost) == 1


async def test_closing_is_no_loss() -> None:
    lost: list[Any] = []
    server = Server("s")
    async with Client(server, on_lost=lost.append):
        pass
    async with Client(server, on_lost=lost.append) as client:
        await client.aclose()
        await wait_all_tasks_blocked()
    with trio.CancelScope() as scope:
        async with Client(server, on_lost=lost.append):
            scope.cancel()
            await trio.sleep_forever()
    assert lost == []
