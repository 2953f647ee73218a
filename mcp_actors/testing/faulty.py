"""A transport with faults that are planted on purpose, and the same each time."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import trio

from mcp_actors.abc import (
    ClientTransport,
    Frame,
    FrameChannel,
    HttpRequest,
    RequestId,
    ServerHandler,
    ServerTransport,
)
from mcp_actors.errors import LocalProtocolError
from mcp_actors.principal import Principal
from mcp_actors.supervision import reraised
from mcp_actors.testing.conformance.subject import ChannelAction
from mcp_actors.testing.faults import Faults, FaultStatistics, FaultyDirection, check_frames

__all__ = ["FaultyChannel", "FaultyTransport"]

# Seconds for which a closed channel goes on after its last frame should have arrived. They bound the wait for a peer
# that reads nothing.
LINGER = 1.0


class FaultyTransport:
    """Wraps a connection binding's transport, of either side, and adds faults to its connections.

    Wrap one side only, or the faults add up. What an exchange binding does with exchanges is not changed. When the
    connection is lost, the wrapped side gets `trio.BrokenResourceError` in both directions.

    Every connection uses two `random.Random` of its own, made from ``seed`` and the number of the connection. So under
    virtual time the same program sees the same faults at the same times. Up to 256 frames or 256 KiB are in transit in
    each direction of a connection; then `send` waits. Without faults it is a binding like any other, but each frame
    passes through one more task.

    Args:
        inner: the transport.
        faults: those of what the wrapped side sends; none by default.
        back: those of what it receives; the same as ``faults`` by default.
        seed: the same seed gives the same faults.
        break_off: an async function that breaks an inner channel, so that its peer sees a loss too. By default the
            channel is closed, which in memory is a clean end.
    """

    def __init__(
        self,
        inner: ClientTransport | ServerTransport,
        faults: Faults | None = None,
        *,
        back: Faults | None = None,
        seed: int = 0,
        break_off: ChannelAction | None = None,
    ) -> None:
        self._inner = inner
        self._faults = faults or Faults()
        self._back = back or self._faults
        self._seed = seed
        self._break_off = break_off
        self._statistics = FaultStatistics()

    def __repr__(self) -> str:
        statistics = self._statistics
        return f"<FaultyTransport round {self._inner!r}: {statistics.connections} connections, {statistics.lost} lost>"

    def statistics(self) -> FaultStatistics:
        """Returns a snapshot of the counts."""
        return attrs.evolve(self._statistics)

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves as the inner transport does, every connection with faults, and reports what it reports.

        Raises:
            LocalProtocolError: the inner transport is one of a client.
        """
        if not isinstance(self._inner, ServerTransport):
            raise LocalProtocolError(f"{self._inner!r} can be connected to, not served")
        await self._inner.serve(cast(ServerHandler, _FaultyHandler(handler, self)), task_status=task_status)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a connection with faults, and raises what the inner transport raises.

        Leaving the block waits for the frames in transit.

        Raises:
            LocalProtocolError: the inner transport is one of a server.
        """
        if not isinstance(self._inner, ClientTransport):
            raise LocalProtocolError(f"{self._inner!r} can be served, not connected to")
        async with self._inner.connect() as inner, self.faulty(inner) as channel:
            yield channel

    @asynccontextmanager
    async def faulty(self, inner: FrameChannel) -> AsyncIterator[FaultyChannel]:
        """Makes one channel faulty for the length of the block; for channels that no transport made."""
        self._statistics.connections += 1
        name = f"{self._seed} {self._statistics.connections}"
        channel = FaultyChannel(
            inner,
            FaultyDirection(self._faults, random.Random(f"{name} out"), self._statistics),
            FaultyDirection(self._back, random.Random(f"{name} in"), self._statistics),
            self._break_off,
        )
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run)
                with body:
                    yield channel
                channel.shut()
                # If the block was cancelled, this is cancelled as well.
                await channel.flushed.wait()
                nursery.cancel_scope.cancel(reason="the connection is closed")


class _FaultyHandler:
    """The handler for the inner transport: it makes channels faulty, and is the wrapped handler in all else."""

    def __init__(self, handler: ServerHandler, transport: FaultyTransport) -> None:
        self._handler = handler
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def __call__(self, inner: FrameChannel, principal: Principal | None = None) -> None:
        try:
            async with self._transport.faulty(inner) as channel:
                # A handler that asks for no principal need not take one.
                await (self._handler(channel) if principal is None else self._handler(channel, principal))
        finally:
            await inner.aclose()


class FaultyChannel(FrameChannel):
    """A channel with faults in both directions; made by `FaultyTransport`.

    Cancelling ``send_many`` leaves the frames unsent that still waited for space, and tears none. ``aclose`` returns at
    once; what was sent arrives before the block that made the channel is left.
    """

    def __init__(
        self,
        inner: FrameChannel,
        out: FaultyDirection,
        incoming: FaultyDirection,
        break_off: ChannelAction | None,
    ) -> None:
        self._inner = inner
        self._out = out
        self._in = incoming
        self._break_off = break_off
        self._closed = False
        self._lost_at = math.inf
        # Why both directions have ended, if the connection was lost.
        self._loss: Exception | None = None
        # Why the inner channel accepts no more frames. What the peer sent before can still be received.
        self._refused: Exception | None = None
        self.flushed = trio.Event()
        """Set when no frame of this side is in transit any more."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._loss is not None else "open"
        return (
            f"<FaultyChannel to {self.peer} {state}: {len(self._out)} on their way, {len(self._in)} to come>"
        )

    @property
    def max_message_bytes(self) -> int | None:
        return self._inner.max_message_bytes

    @property
    def mirrors(self) -> bool:
        return self._inner.mirrors

    @property
    def sessions_only(self) -> bool:
        return self._inner.sessions_only

    @property
    def keeps_session(self) -> bool:
        return self._inner.keeps_session

    @property
    def needs_pings(self) -> bool:
        return self._inner.needs_pings

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def http_request(self) -> HttpRequest | None:
        return self._inner.http_request

    def settled(self, request: RequestId) -> None:
        self._inner.settled(request)

    def loss_report(self) -> Mapping[str, Any]:
        return self._inner.loss_report()

    # -- used by the two sides ---------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Sends one frame; see `send_many`."""
        await self.send_many((value,))

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames, waiting while too many are in transit.

        Raises:
            LocalProtocolError: A frame is empty, longer than `max_message_bytes`, or holds a newline; nothing was sent.
            trio.ClosedResourceError: This end is closed.
            trio.BrokenResourceError: The connection has ended.
        """
        await trio.lowlevel.checkpoint()
        self._require_open()
        if reason := check_frames(frames, self.max_message_bytes or math.inf):
            raise LocalProtocolError(reason)
        for frame in frames:
            while self._out.full:
                await self._out.changed.park()
                self._require_open()
            self._out.put(frame)

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing."""
        return (await self._receive(1))[0]

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns all that have arrived by then. Cancelling loses nothing."""
        return await self._receive(None)

    async def _receive(self, most: int | None) -> list[Frame]:
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError("this channel was closed")
            frames = self._in.take(self._lost_at, most)
            if frames:
                return frames
            if self._loss is not None:
                raise trio.BrokenResourceError(str(self._loss)) from self._loss.__cause__
            if self._in.end is not None:
                raise type(self._in.end)(*self._in.end.args) from self._in.end.__cause__
            with trio.move_on_at(self._in.next_due):
                await self._in.changed.park()

    async def aclose(self) -> None:
        """Closes both directions; what was sent still arrives."""
        self.shut()
        await trio.lowlevel.checkpoint()

    def shut(self) -> None:
        """Closes without a checkpoint."""
        self._closed = True
        self._wake()

    def _require_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        loss = self._loss or self._refused
        if loss is not None:
            raise trio.BrokenResourceError(str(loss)) from loss.__cause__

    def _wake(self) -> None:
        self._out.changed.unpark_all()
        self._in.changed.unpark_all()

    def _lose(self, loss: Exception) -> None:
        if self._loss is None:
            self._loss = loss
            self._lost_at = trio.current_time()
            self._wake()

    # -- the tasks of the line ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Moves the frames; returns when the connection is closed or lost."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._collect)
                with trio.CancelScope() as lingering:
                    nursery.start_soon(self._bound, lingering)
                    await self._deliver()
                while not self._closed and self._loss is None:
                    await self._out.changed.park()
                nursery.cancel_scope.cancel(reason="the line is down")
            if self._break_off is not None and self._loss is not None:
                await self._break_off(self._inner)
            await self._inner.aclose()
        finally:
            self.flushed.set()

    async def _bound(self, lingering: trio.CancelScope) -> None:
        while not self._closed:
            await self._out.changed.park()
        lingering.deadline = max(trio.current_time(), self._out.furthest) + LINGER

    async def _deliver(self) -> None:
        """Moves arrived frames into the inner channel, until closed and empty, or lost, or the channel refuses them."""
        while self._loss is None and not (self._closed and not len(self._out)):
            frames = self._out.take()
            if frames:
                try:
                    await self._inner.send_many(frames)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    self._refused = error
                    self._wake()
                    return
            elif self._out.end is not None:
                self._lose(self._out.end)
            else:
                with trio.move_on_at(self._out.next_due):
                    await self._out.changed.park()

    async def _collect(self) -> None:
        """Moves frames from the inner channel into the direction to this side."""
        try:
            while not self._in.ended:
                while self._in.full:
                    await self._in.changed.park()
                for frame in await self._inner.receive_many():
                    self._in.put(frame)
        except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError) as ending:
            self._in.put_end(ending)
            return
        # The loss is noticed when it arrives, whether this side reads or not.
        await trio.sleep_until(self._in.furthest)
        self._lose(trio.BrokenResourceError("the connection was lost (a planted fault)"))
