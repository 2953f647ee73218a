"""What these tests send, and the channels that break where a test wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel, NewAccess, NothingSent, Waiting
from mcp_actors.testing import RawServer, ScriptedPeer, raw_client, raw_server
from mcp_actors.testing.recording import PassingChannel
from mcp_transports.memory import MemoryTransport, memory_channel_pair
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


class Breaking(PassingChannel):
    """A channel that breaks when a call of a tool is sent.

    Args:
        inner: What carries everything else.
        how: ``"at once"``, which every way of sending finds out; ``"queued"``, which the writer finds out; ``"torn"``,
            which leaves open what was sent; ``"ended"``, by the peer, while the writer is at the first call.
        ended: Is set when the peer ends it.
    """

    def __init__(self, inner: FrameChannel, how: str, ended: trio.Event) -> None:
        super().__init__(inner)
        self._how = how
        self._ended = ended

    def write_now(self, frame: Frame) -> bool:
        return frame.method != "tools/call" and super().write_now(frame)

    def send_nowait(self, frame: Frame) -> None:
        if frame.method != "tools/call":
            super().send_nowait(frame)
        elif self._how == "at once":
            raise NothingSent("it broke")
        else:
            raise trio.WouldBlock

    async def send_many(self, frames: Sequence[Frame]) -> None:
        if self._how == "ended":
            await trio.sleep_forever()
        if self._how != "torn":
            raise NothingSent("it broke")
        await super().send_many(frames)
        raise trio.BrokenResourceError("it broke, and what the peer has got is not known")

    async def receive_many(self) -> list[Frame]:
        frames: list[Frame] = []
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                frames.extend(await self._inner.receive_many())
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        if not frames:
            raise trio.EndOfChannel
        return frames


class BreaksFirst:
    """A transport to a server in memory, whose first connections break."""

    def __init__(self, server: MemoryTransport, hows: list[str]) -> None:
        self._server = server
        self._hows = hows
        self.ended = trio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with self._server.connect() as channel:
            yield Breaking(channel, self._hows.pop(0), self.ended) if self._hows else channel


def counting() -> Server:
    server, calls = Server("counting"), list[int]()

    @server.tool
    async def count() -> int:
        """Counts its calls."""
        calls.append(1)
        return len(calls)

    return server


class _Asking(PassingChannel):
    reports: tuple[Frame, ...] = (Waiting(b""), Waiting(b"", over=True), NewAccess(b""))

    async def receive_many(self) -> list[Frame]:
        reports, self.reports = self.reports, ()
        return [*reports, *await self._inner.receive_many()]


class AsksForAccess:
    """A transport to a server in memory, on whose channels a person is asked for access before the first answer."""

    def __init__(self, server: MemoryTransport) -> None:
        self._server = server

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with self._server.connect() as channel:
            yield _Asking(channel)
