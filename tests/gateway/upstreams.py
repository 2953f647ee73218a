"""Gateways in memory, and a server behind one, which can go away and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from mcp_actors import Context, Server
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import ConnectFailed
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.testing.recording import PassingChannel
from mcp_transports.memory import MemoryTransport

__all__ = ["Behind", "cancel_after", "make_server", "serve_gateway"]


def make_server() -> Server:
    """Returns a server with tools that add, count in their session, wait, and say what their client declares.

    None of them runs in a thread, of which a clock that jumps knows nothing.
    """
    server = Server("behind")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool
    async def count(ctx: Context) -> int:
        """Counts the calls in one session."""
        assert ctx.session is not None
        counted = ctx.session.get(list[int])
        counted.append(1)
        return len(counted)

    @server.tool
    async def wait(seconds: float) -> str:
        """Waits."""
        await trio.sleep(seconds)
        return "waited"

    @server.tool
    async def declared(ctx: Context) -> list[str]:
        """The capabilities of the client."""
        return sorted(ctx.peer.raw_capabilities)

    return server


class _Silenced(PassingChannel):
    """A channel on which nothing arrives once its server has fallen silent."""

    def __init__(self, inner: FrameChannel, behind: Behind) -> None:
        super().__init__(inner)
        self._behind = behind

    async def receive_many(self) -> list[Frame]:
        frames = await super().receive_many()
        if self._behind.is_silent:
            await trio.sleep_forever()
        return frames

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        super().deliver_to(lambda frame: not self._behind.is_silent and take(frame))


class Behind:
    """A server in memory whose connections are counted, cut, and refused while it is away.

    Args:
        nursery: Owns the tasks of the server.
        server: The server.
    """

    def __init__(self, nursery: trio.Nursery, server: Server | None = None) -> None:
        self.server = server or make_server()
        self.connects = 0
        """Attempts to connect."""
        self.open = 0
        """Connections that are open."""
        self.gate = trio.Event()
        """Connecting waits for it."""
        self.gate.set()
        self.is_silent = False
        """Whether nothing of it arrives any more."""
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._transport = MemoryTransport()

    def __call__(self) -> Behind:
        """Is the target of an upstream."""
        return self

    async def come(self) -> None:
        """Begins to serve."""
        self._transport = MemoryTransport()
        self._scope = await self._nursery.start(self._serve)

    def go(self) -> None:
        """Cuts all connections, and refuses others until it comes back."""
        assert self._scope is not None
        self._scope.cancel()
        self._scope = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        self.connects += 1
        await self.gate.wait()
        if self._scope is None:
            raise ConnectFailed("it is away")
        self.open += 1
        try:
            async with self._transport.connect() as channel:
                yield _Silenced(channel, self)
        finally:
            self.open -= 1

    async def _serve(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.server.serve, self._transport)
                task_status.started(scope)


async def serve_gateway(nursery: trio.Nursery, *upstreams: Upstream) -> MemoryTransport:
    """Serves a gateway, whose clients are in sessions of their own, and returns the way to it."""
    transport = MemoryTransport()
    await nursery.start(Gateway(upstreams).serve, transport)
    return transport


async def cancel_after(turns: int, scope: trio.CancelScope) -> None:
    """Cancels a scope after some turns of the event loop."""
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()
