"""A transport that goes wrong on purpose, exactly, and the same way each time."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import trio

from mcp_actors.abc import ClientTransport, Frame, FrameChannel, RequestId, ServerHandler, ServerTransport
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision import reraised
from mcp_actors.testing.conformance.subject import ChannelAction
from mcp_actors.testing.faults import Faults, FaultStatistics, FaultyDirection, check_frames

__all__ = ["FaultyChannel", "FaultyTransport"]

# How long a closed channel goes on after the last of its frames should have arrived: for an inner channel whose peer
# takes nothing.
LINGER = 1.0


class FaultyTransport:
    """Wraps a transport of connections, of either side, and does to its frames what `Faults` say.

    ``faults`` is for what the wrapped side sends, ``back`` for what it receives; without ``back`` both are alike. A
    client's transport that is wrapped has faulty connections, whatever serves them, and the other way round; wrap
    one side only, or the faults add up. What an exchange binding does with exchanges goes through untouched.

    When the connection is lost, the wrapped side gets `trio.BrokenResourceError` both ways. What its peer sees is up
    to the inner binding: the channel is closed, which in memory is a clean end; give ``break_off``, an async function
    of the inner channel, where there is a harder way.

    Every connection draws from two `random.Random` of its own, made from ``seed`` and the number of the connection.
    So under virtual time the same program sees the same faults at the same times. Up to 256 frames or 256 KiB are
    under way each way on each connection; then `send` waits. With no faults it is a binding like any other, but each
    frame goes through a task more.
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
        """A snapshot of what has happened so far."""
        return attrs.evolve(self._statistics)

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves as the inner transport does, every connection with faults; reports what it reports.

        Raises `LocalProtocolError` if the inner transport serves nothing.
        """
        if not isinstance(self._inner, ServerTransport):
            raise LocalProtocolError(f"{self._inner!r} can be connected to, not served")
        await self._inner.serve(cast(ServerHandler, _FaultyHandler(handler, self)), task_status=task_status)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens a connection with faults. Leaving the block waits for what is still under way.

        Raises what the inner transport does, and `LocalProtocolError` if it connects to nothing.
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
    """The handler that the inner transport gets: channels become faulty, all else is the handler's own."""

    def __init__(self, handler: ServerHandler, transport: FaultyTransport) -> None:
        self._handler = handler
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def __call__(self, inner: FrameChannel, principal: str | None = None) -> None:
        try:
            async with self._transport.faulty(inner) as channel:
                # A handler that asks for no principal need not take one.
                await (self._handler(channel) if principal is None else self._handler(channel, principal))
        finally:
            await inner.aclose()


class FaultyChannel(FrameChannel):
    """A channel between two lanes; made by `FaultyTransport`.

    Cancelling ``send_many`` leaves the frames that still waited for room not sent; none is torn. ``aclose`` returns
    at once; what was sent is still on its way to the peer until the block that made the channel is left.
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
        # The line was cut: both directions are over.
        self._loss: Exception | None = None
        # The inner channel takes no more: nothing can be sent, but what the peer sent before can be received.
        self._refused: Exception | None = None
        self.flushed = trio.Event()
        """Set when nothing of ours is under way any more."""

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
    def peer(self) -> str:
        return self._inner.peer

    def settled(self, request: RequestId) -> None:
        self._inner.settled(request)

    def loss_report(self) -> Mapping[str, Any]:
        return self._inner.loss_report()

    # -- what the two sides do ---------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Sends one frame; see `send_many`."""
        await self.send_many((value,))

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames on their way, waiting while too much is under way."""
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

    # -- what the line does ------------------------------------------------------------------------------------------

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
        """From our lane into the inner channel, until closed and empty, or lost, or nobody takes it."""
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
        """From the inner channel into the lane to us."""
        try:
            while not self._in.ended:
                while self._in.full:
                    await self._in.changed.park()
                for frame in await self._inner.receive_many():
                    self._in.put(frame)
        except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError) as ending:
            self._in.put_end(ending)
            return
        # The line to us is cut: we find out when the cut arrives, whether we read or not.
        await trio.sleep_until(self._in.furthest)
        self._lose(trio.BrokenResourceError("the connection was lost (a planted fault)"))
