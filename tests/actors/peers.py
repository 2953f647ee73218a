"""What these tests send, and the channels that break where a test wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel
from mcp_actors.testing import RawServer, ScriptedPeer, raw_client, raw_server
from mcp_transports.memory import memory_channel_pair
from tests.messages import LEGACY as LEGACY
from tests.messages import MODERN as MODERN
from tests.messages import TEXT as TEXT
from tests.messages import Message as Message
from tests.messages import call as call
from tests.messages import cancelled as cancelled
from tests.messages import discover_result, initialize_result
from tests.messages import error as failure
from tests.messages import modern_call as modern_call
from tests.messages import notification as notification
from tests.messages import progressed as progressed
from tests.messages import request as request
from tests.messages import result as reply

settled = trio.testing.wait_all_tasks_blocked


async def arrived(peer: ScriptedPeer, within: float = 0.001) -> list[Message]:
    """All that has come, and comes within some seconds of virtual time."""
    await settled()
    messages: list[Message] = []
    with trio.move_on_after(within):
        try:
            while True:
                messages.append(await peer.receive())
        except trio.EndOfChannel:
            pass  # the other side has said all it will
    return messages


def living() -> int:
    """The number of tasks that are running."""
    return trio.lowlevel.current_statistics().tasks_living


# -- conversations ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def legacy_client(server: Server, **capabilities: Any) -> AsyncIterator[ScriptedPeer]:
    """A scripted client that has shaken hands."""
    async with raw_client(server) as peer:
        await peer.initialize(LEGACY, capabilities)
        yield peer


async def greet(peer: ScriptedPeer, version: str = LEGACY, **capabilities: Any) -> None:
    """Shakes hands as a legacy server."""
    asked = await peer.receive()
    while asked["method"] == "server/discover":
        await peer.send(failure(asked, -32601))
        asked = await peer.receive()
    assert asked["method"] == "initialize"
    await peer.send(reply(asked, initialize_result(version, {"tools": {}, **capabilities})))
    assert (await peer.receive())["method"] == "notifications/initialized"


async def greet_modern(peer: ScriptedPeer, **capabilities: Any) -> None:
    """Answers the discovery as a modern server."""
    asked = await peer.receive()
    assert asked["method"] == "server/discover"
    await peer.send(reply(asked, discover_result({"tools": {}, **capabilities})))


@asynccontextmanager
async def met(era: str = "legacy", **options: Any) -> AsyncIterator[tuple[Client, ScriptedPeer]]:
    """A client and the scripted server that it has met."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        peers: list[ScriptedPeer] = []
        nursery.start_soon(_meet, server, greet if era == "legacy" else greet_modern, peers)
        async with Client(server.transport, era=era, **options) as client:
            await settled()
            yield client, peers[0]


async def _meet(
    server: RawServer, meet: Callable[[ScriptedPeer], Awaitable[None]], peers: list[ScriptedPeer]
) -> None:
    peer = await server.accept()
    await meet(peer)
    peers.append(peer)


# -- channels and transports -----------------------------------------------------------------------------------------


class Faulty(FrameChannel):
    """A channel whose world breaks on command, and whose writes wait while ``clogged``.

    ``wake`` of the receiving side is bounded by the inner channel's own end.
    """

    def __init__(self, inner: FrameChannel) -> None:
        self.inner = inner
        self.sent: list[Frame] = []
        self.closed = 0
        self._open = trio.Event()
        self._open.set()
        self._broken: BaseException | None = None
        self._reading: trio.CancelScope | None = None

    def clog(self) -> None:
        """The peer reads no more."""
        self._open = trio.Event()

    def unclog(self) -> None:
        self._open.set()

    def snap(self) -> None:
        """The world breaks the channel: both directions, now."""
        self._broken = trio.BrokenResourceError("snapped")
        self._open.set()
        if self._reading is not None:
            self._reading.cancel()

    def snap_writes(self) -> None:
        """The next write finds the channel broken; reading waits on."""
        self._broken = trio.BrokenResourceError("snapped")
        self._open.set()

    async def send(self, value: Frame) -> None:
        await self._open.wait()
        if self._broken is not None:
            raise self._broken
        self.sent.append(value)
        await self.inner.send(value)

    async def receive(self) -> Frame:
        with trio.CancelScope() as self._reading:
            return await self.inner.receive()
        raise self._broken or trio.ClosedResourceError

    async def aclose(self) -> None:
        self.closed += 1
        await self.inner.aclose()


def faulty_pair(buffer: int = 256) -> tuple[Faulty, ScriptedPeer]:
    """A channel for the engine and the other end of it."""
    ours, theirs = memory_channel_pair(buffer)
    return Faulty(ours), ScriptedPeer(theirs)


class Serves:
    """A server transport with exactly these connections, each ended by its handler; done when all are."""

    def __init__(self, *channels: FrameChannel) -> None:
        self._channels = channels

    async def serve(
        self, handler: ConnectionHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            for channel in self._channels:
                nursery.start_soon(handler, channel)
            task_status.started("here")


class Dials:
    """A client transport that gives out one prepared connection after the other; exceptions are raised instead."""

    def __init__(self, channels: Sequence[FrameChannel | BaseException]) -> None:
        self._channels = list(channels)
        self.attempts: list[float] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        self.attempts.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        channel = self._channels.pop(0)
        if isinstance(channel, BaseException):
            raise channel
        async with channel:
            yield channel
