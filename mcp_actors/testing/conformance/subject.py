"""The transport under test, served and connected to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc import (
    Arrival,
    ClientTransport,
    Frame,
    FrameChannel,
    Outlet,
    ServerHandler,
    ServerSession,
    ServerTransport,
)
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.principal import Principal
from mcp_actors.shared import MemoryState
from mcp_actors.testing.conformance.report import RuleBroken
from mcp_actors.testing.conformance.rules import ACCEPTING, BLOCK

__all__ = ["ChannelAction", "ChannelHandler", "TransportMaker", "TransportUnderTest"]

_NOT_RUN = "the handler was not run for a new connection; if this is an exchange binding, say exchange=True"

TransportMaker = Callable[
    [], AbstractAsyncContextManager[tuple[ServerTransport, Callable[[Any], ClientTransport]]]
]
"""Makes one transport for one check: see `check_transport`."""

ChannelAction = Callable[[FrameChannel], Awaitable[object]]


class ChannelHandler:
    """A `ServerHandler` of a connection binding that runs a function for each connection, then closes its channel."""

    def __init__(self, handle: ChannelAction) -> None:
        self._handle = handle
        self.stopping = trio.Event()
        self.has_sessions = True
        self.shared = MemoryState()

    def key_for(self, purpose: str) -> bytes:
        """Returns the key of one purpose, which is no secret here."""
        return hashlib.sha256(purpose.encode()).digest()

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        """Runs a connection."""
        try:
            await self._handle(channel)
        finally:
            await channel.aclose()

    def sort(self, frame: Frame, *, in_session: bool = False) -> Arrival:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def scopes_needed(self, arrival: Arrival) -> frozenset[str]:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    async def exchange(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def begin(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> Callable[[], None]:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def open_session(
        self, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ServerSession:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def _no_exchange(self) -> LocalProtocolError:
        return LocalProtocolError("this binding has exchanges: call check_transport(maker, exchange=True)")


@attrs.frozen(kw_only=True)
class TransportUnderTest:
    """The transport under test and the properties of its medium; see `check_transport`."""

    maker: TransportMaker
    half_close: ChannelAction | None
    break_off: ChannelAction | None
    senders_at_once: bool
    connections: int
    max_buffered: int
    largest: int
    quiet: float
    patience: float

    @asynccontextmanager
    async def served(
        self, serve: Callable[..., Awaitable[None]], *, place: Callable[[Any], Any] = lambda where: where
    ) -> AsyncIterator[ClientTransport]:
        """Serves by ``serve(transport, task_status=…)``; yields the transport that connects there.

        Args:
            serve: Reports by its ``task_status`` where it serves.
            place: Finds in that report what the binding itself has reported.

        Raises:
            RuleBroken: ``serve`` did not report exactly once within the patience.
        """
        async with self.maker() as (server, client_for):
            async with trio.open_nursery() as nursery:
                try:
                    with trio.move_on_after(self.patience) as starting:
                        where = await nursery.start(serve, server)
                except RuntimeError as error:
                    raise RuleBroken(ACCEPTING, f"serve() did not call started() once: {error}") from error
                if starting.cancelled_caught:
                    raise RuleBroken(ACCEPTING, f"serve() did not call started() within {self.patience:g} s")
                yield client_for(place(where))
                nursery.cancel_scope.cancel(reason="the check is over")

    def serving(self, handle: ChannelAction) -> AbstractAsyncContextManager[ClientTransport]:
        """Serves every connection with ``handle(channel)``."""
        handler: ServerHandler = ChannelHandler(handle)

        async def serve(transport: ServerTransport, *, task_status: trio.TaskStatus[Any]) -> None:
            await transport.serve(handler, task_status=task_status)

        return self.served(serve)

    @asynccontextmanager
    async def connected(self, transport: ClientTransport) -> AsyncIterator[FrameChannel]:
        """Opens a connection for the length of the block.

        Raises:
            RuleBroken: Connecting failed, or it or leaving the block took longer than the patience.
        """
        open_ = False
        try:
            # Round the block, since a block may hold a nursery; its deadline is there on the way in and on the way out.
            with trio.move_on_after(self.patience) as bound:
                async with transport.connect() as channel:
                    open_, bound.deadline = True, math.inf
                    try:
                        yield channel
                    finally:
                        bound.deadline = trio.current_time() + self.patience
        except ConnectFailed as error:
            if open_:
                raise
            raise RuleBroken(ACCEPTING, f"connecting failed after started() was called: {error}") from error
        if bound.cancelled_caught:
            rule, what = (BLOCK, "leaving the block") if open_ else (ACCEPTING, "connecting")
            raise RuleBroken(rule, f"{what} took longer than {self.patience:g} s")

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[FrameChannel, FrameChannel]]:
        """A connection: the client's end and the server's end."""
        accepted, channels = trio.open_memory_channel[FrameChannel](1)
        over = trio.Event()

        async def handle(channel: FrameChannel) -> None:
            accepted.send_nowait(channel)
            await over.wait()

        async with self.serving(handle) as transport, self.connected(transport) as client:
            with self.soon(ACCEPTING, _NOT_RUN):
                server = await channels.receive()
            try:
                yield client, server
            finally:
                over.set()

    @contextmanager
    def soon(self, rule: str, seen: str) -> Iterator[None]:
        """Bounds the time of the block by the patience.

        Raises:
            RuleBroken: The block took longer: ``rule`` is broken, and ``seen`` says how.
        """
        with trio.move_on_after(self.patience) as waiting:
            yield
        if waiting.cancelled_caught:
            raise RuleBroken(rule, f"{seen} (within {self.patience:g} s)")
