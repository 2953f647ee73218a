"""A transport with faults that are planted on purpose, and are the same each time.

A `SerialLine` computes when each frame arrives that is sent over one line, for the faulty and for the simulated links.
A `FaultyDirection` decides for one direction when each frame arrives, whether it does, and where the line breaks.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from mcp_actors.supervision.containment import reraised
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing.conformance.subject import ChannelAction

__all__ = [
    "FaultStatistics",
    "Faults",
    "FaultyChannel",
    "FaultyDirection",
    "FaultyTransport",
    "SerialLine",
    "check_frames",
]


# -- one line ------------------------------------------------------------------------------------------


class SerialLine:
    """One direction of a link. Frames leave one after the other, as fast as the bandwidth allows.

    Args:
        bandwidth: bytes per second.
        stall: the probability, for each frame, that the line stalls before it.
        stall_time: draws the seconds for which it stalls.
        latency: draws the seconds from the moment at which a frame has left until it arrives.
        on_stall: called when the line stalls.
    """

    __slots__ = ("_bandwidth", "_free", "_latency", "_on_stall", "_stall", "_stall_time")

    def __init__(
        self,
        bandwidth: float,
        stall: float,
        stall_time: Callable[[random.Random], float],
        latency: Callable[[random.Random], float],
        on_stall: Callable[[], None],
    ) -> None:
        self._bandwidth = bandwidth
        self._stall = stall
        self._stall_time = stall_time
        self._latency = latency
        self._on_stall = on_stall
        # When the last frame has left.
        self._free = -math.inf

    def arrival(self, size: int, rng: random.Random) -> float:
        """Sends a frame of ``size`` bytes now and returns the time at which it arrives."""
        begin = max(trio.current_time(), self._free)
        if self._stall and rng.random() < self._stall:
            self._on_stall()
            begin += self._stall_time(rng)
        self._free = begin + size / self._bandwidth
        return self._free + self._latency(rng)


# -- the faults of one direction -----------------------------------------------------------------------

# Frames and bytes that may be in transit in one direction of one connection before `send` waits: what a pipe holds.
MAX_FRAMES = 256
MAX_BYTES = 256 * 1024


@attrs.frozen(kw_only=True)
class Faults:
    """The faults in one direction of every connection. The defaults are a perfect line.

    Raises:
        ValueError: a probability is not within 0 and 1, a time is negative or infinite, the bandwidth is not positive,
            or a number of a frame or byte is less than 1.
    """

    latency: float = 0.0
    """Seconds that each frame is in transit."""
    jitter: float = 0.0
    """The most seconds that are added to the latency, evenly distributed. Frames stay in order: one that is late delays
    those behind it."""
    bandwidth: float = math.inf
    """Bytes per second; a frame leaves after those before it."""
    stall: float = 0.0
    """The probability, for each frame, that the line stalls before it."""
    stall_seconds: float = 1.0
    """Seconds for which it stalls."""
    loss: float = 0.0
    """The probability, for each frame, that the connection is lost in its place."""
    lose_at_frame: int | None = None
    """The connection is lost in place of the n-th frame, counted from 1; all before it arrive."""
    lose_at_byte: int | None = None
    """The connection is lost with the n-th byte of all frames, counted from 1, and the frame that it is in."""
    truncate: bool = False
    """Whether a part of the frame at which the connection is lost arrives, as a torn frame."""
    duplicate: float = 0.0
    """The probability, for each frame, that it arrives twice."""
    reorder: float = 0.0
    """The probability, for each frame, that it is late by ``reorder_seconds`` and others overtake it.

    Only frames about other requests can overtake it. Frames about no request are never overtaken and overtake none,
    because no binding may lose that order. The engine sets the request of a frame that it sends, so this works for what
    the wrapped side sends. It works for what that side receives only if the inner binding keeps those fields, as the
    one in memory does.
    """
    reorder_seconds: float = 0.01
    """Seconds by which a frame is late that others may overtake."""
    lose_answers: float = 0.0
    """The probability, for each answer but the first one of a connection, that it does not arrive, and the connection
    goes on: the request was carried out, and the caller does not learn of it. The first one is that of a handshake."""

    def __attrs_post_init__(self) -> None:
        for name in ("stall", "loss", "duplicate", "reorder", "lose_answers"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, from 0 to 1")
        for name in ("latency", "jitter", "stall_seconds", "reorder_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is a number of seconds")
        if not self.bandwidth > 0:
            raise ValueError("bandwidth is a number of bytes per second")
        for name in ("lose_at_frame", "lose_at_byte"):
            if (getattr(self, name) or 1) < 1 or getattr(self, name) == 0:
                raise ValueError(f"{name} counts from 1")

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Reads faults as ``mcp-actors bridge --chaos`` has them: ``latency=200ms loss=1% lose-answers=2% stall=5s``.

        Args:
            text: ``name=value`` for fields of this class, with blanks between them; probabilities end with ``%``, times
                with ``ms`` or ``s``, and a bandwidth is ``100KB`` or ``1MB`` a second. ``stall=5s`` means 5 seconds
                before one of a hundred frames; ``stall=5s/10%`` before one of ten.

        Raises:
            ValueError: It is something else; the message says what.
        """
        given: dict[str, float] = {}
        for word in text.split():
            name, is_given, value = word.partition("=")
            kind = _CHAOS.get(name)
            if kind is None or not is_given:
                raise ValueError(f"there is no {word!r}: write {', '.join(f'{each}=...' for each in _CHAOS)}")
            if name in given or (name == "stall" and "stall_seconds" in given):
                raise ValueError(f"{name} is given twice")
            if name == "stall":
                seconds, _, share = value.partition("/")
                given["stall_seconds"] = _amount(name, seconds, _SECONDS)
                given["stall"] = _amount(name, share or "1%", _SHARES)
            else:
                given[name.replace("-", "_")] = _amount(name, value, kind)
        return cls(**given)  # type: ignore[arg-type]

    def draw_latency(self, rng: random.Random) -> float:
        """Returns the seconds that one frame is in transit."""
        return self.latency + (rng.random() * self.jitter if self.jitter else 0.0)


_SECONDS = {"ms": 0.001, "s": 1.0}
_SHARES = {"%": 0.01}
_BYTES = {"KB": 1e3, "MB": 1e6}
# The words of `Faults.parse`, with their units.
_CHAOS: Mapping[str, Mapping[str, float]] = {
    "latency": _SECONDS,
    "jitter": _SECONDS,
    "stall": _SECONDS,
    "loss": _SHARES,
    "lose-answers": _SHARES,
    "duplicate": _SHARES,
    "bandwidth": _BYTES,
}


def _amount(name: str, text: str, units: Mapping[str, float]) -> float:
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(units)})", text)
    if found is None:
        examples = " or ".join(f"{name}=1{unit}" for unit in units)
        raise ValueError(f"{name}={text} is no amount: write {examples}")
    return float(found[1]) * units[found[2]]


@attrs.define
class FaultStatistics:
    """Counts of the events on all connections of a `FaultyTransport`, both directions together."""

    connections: int = 0
    """Connections opened."""
    frames: int = 0
    """Frames that were sent, those at which a connection was lost included."""
    bytes: int = 0
    """Bytes of those frames."""
    lost: int = 0
    """Connections lost."""
    stalled: int = 0
    """Times that a line stalled."""
    moved: int = 0
    """Frames that others could overtake."""
    duplicated: int = 0
    """Frames that arrived twice."""
    truncated: int = 0
    """Frames of which a part arrived."""
    answers_lost: int = 0
    """Answers that did not arrive."""


class FaultyDirection:
    """The frames in transit in one direction, each with the time at which it arrives. All faults are decided in `put`.

    Args:
        faults: what goes wrong.
        rng: the only source of random numbers.
        statistics: where the faults are counted.
    """

    def __init__(self, faults: Faults, rng: random.Random, statistics: FaultStatistics) -> None:
        self._faults = faults
        self._rng = rng
        self._statistics = statistics
        self._line = SerialLine(
            faults.bandwidth,
            faults.stall,
            lambda rng: faults.stall_seconds,
            faults.draw_latency,
            self._count_stall,
        )
        self._transit = _Transit()
        self._answers = 0
        self._order = _ArrivalOrder(faults, rng)
        self._loss = _LossDecision(faults, rng)
        self.end: Exception | None = None
        """How the line ended, once that has arrived."""
        self.ended = False
        """Whether nothing more is taken, because the end is in transit or has arrived."""
        self.changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._transit.items)

    @property
    def full(self) -> bool:
        """Whether a sender must wait."""
        return len(self._transit.items) >= MAX_FRAMES or self._transit.bytes >= MAX_BYTES

    @property
    def next_due(self) -> float:
        """When the next frame, or the end, arrives; infinity if nothing is in transit."""
        return self._transit.items[0][0] if self._transit.items else math.inf

    @property
    def furthest(self) -> float:
        """When everything will have arrived."""
        return self._transit.furthest

    def put(self, frame: Frame) -> None:
        """Sends a frame. After the end of the line it is dropped."""
        if self.ended:
            return
        size = len(frame.data)
        self._statistics.frames += 1
        self._statistics.bytes += size
        due = self._line.arrival(size, self._rng)
        sent = self._loss.bytes_before_loss(size)
        if sent is not None:
            self._lose(frame, sent, max(due, self.furthest))
            return
        if self._faults.lose_answers and self._is_lost_answer(frame):
            self._statistics.answers_lost += 1
            return
        due, is_late = self._order.arrange(frame, due, self.furthest)
        self._statistics.moved += is_late
        self._push(due, frame)
        if self._faults.duplicate and self._rng.random() < self._faults.duplicate:
            self._statistics.duplicated += 1
            self._push(due, frame)

    def put_end(self, ending: Exception) -> None:
        """Sends the end of the line, which takes as long as a frame."""
        if not self.ended:
            self.ended = True
            self._push(max(trio.current_time() + self._faults.latency, self.furthest), ending)

    def take(self, until: float = math.inf, most: int | None = None) -> list[Frame]:
        """Returns what has arrived by now, or by ``until`` if that is earlier, and ``most`` frames at the most."""
        now = min(trio.current_time(), until)
        taken: list[Frame] = []
        while len(taken) != most and (item := self._transit.pop(now)) is not None:
            if isinstance(item[1], Exception):
                self.end = item[1]
                break
            self._order.note_arrival(item[1], item[0])
            taken.append(item[1])
        if taken or self.end is not None:
            self.changed.unpark_all()
        return taken

    def _is_lost_answer(self, frame: Frame) -> bool:
        try:
            message = json.loads(frame.data)
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict) or "method" in message:
            return False
        self._answers += 1
        return self._answers > 1 and self._rng.random() < self._faults.lose_answers

    def _count_stall(self) -> None:
        self._statistics.stalled += 1

    def _lose(self, frame: Frame, sent: int, due: float) -> None:
        self._statistics.lost += 1
        if self._faults.truncate and sent:
            self._statistics.truncated += 1
            self._push(due, Frame(frame.data[:sent]))
        self.ended = True
        self._push(due, trio.BrokenResourceError("the connection was lost (a planted fault)"))

    def _push(self, due: float, item: Frame | Exception) -> None:
        self._transit.push(due, item)
        self.changed.unpark_all()


class _Transit:
    """Frames, and an exception for the end of the line, in the order of their arrival."""

    def __init__(self) -> None:
        # (time, running number, frame or end)
        self.items: list[tuple[float, int, Frame | Exception]] = []
        self.bytes = 0
        self.furthest = -math.inf
        self._serial = 0

    def push(self, due: float, item: Frame | Exception) -> None:
        self._serial += 1
        self.furthest = max(self.furthest, due)
        if isinstance(item, Frame):
            self.bytes += len(item.data)
        heapq.heappush(self.items, (due, self._serial, item))

    def pop(self, now: float) -> tuple[float, Frame | Exception] | None:
        """Returns the next item and its time, if it has arrived by ``now``."""
        if not self.items or self.items[0][0] > now:
            return None
        due, _, item = heapq.heappop(self.items)
        if isinstance(item, Frame):
            self.bytes -= len(item.data)
        return due, item


class _ArrivalOrder:
    """Keeps frames in order, except those that others may overtake."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self._faults = faults
        self._rng = rng
        self._latest = -math.inf
        # The last arrival for each request of which a frame is late.
        self._late: dict[RequestId, float] = {}

    def arrange(self, frame: Frame, due: float, furthest: float) -> tuple[float, bool]:
        """Returns when a frame arrives, and whether it was chosen to be late."""
        request = _request_of(frame)
        if request is None:
            self._latest = max(due, furthest)
            return self._latest, False
        due = max(due, self._latest, self._late.get(request, -math.inf))
        if self._faults.reorder and self._rng.random() < self._faults.reorder:
            due += self._faults.reorder_seconds
            self._late[request] = due
            return due, True
        if request in self._late:
            # A frame that follows a late one of the same request may be overtaken too.
            self._late[request] = due
        else:
            self._latest = due
        return due, False

    def note_arrival(self, frame: Frame, due: float) -> None:
        request = _request_of(frame)
        if request is not None and self._late.get(request) == due:
            del self._late[request]


class _LossDecision:
    """Decides for each frame whether the connection is lost in its place."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self._faults = faults
        self._rng = rng
        self._frames = self._bytes = 0

    def bytes_before_loss(self, size: int) -> int | None:
        """Counts a frame and returns how many of its bytes are sent before the connection is lost, or ``None``."""
        faults = self._faults
        before = self._bytes
        self._frames += 1
        self._bytes += size
        if faults.lose_at_byte is not None and self._bytes >= faults.lose_at_byte:
            return faults.lose_at_byte - before - 1
        if self._frames == faults.lose_at_frame or (faults.loss and self._rng.random() < faults.loss):
            return self._rng.randrange(size) if faults.truncate and size else 0
        return None


def _request_of(frame: Frame) -> RequestId | None:
    for each in (frame.about, frame.request, frame.cancels):
        if each is not None:
            return each
    return None


def check_frames(frames: Sequence[Frame], limit: float) -> str | None:
    """Returns why these frames cannot be sent, or ``None`` if they can."""
    for frame in frames:
        if not 0 < len(frame.data) <= limit:
            return f"a message of {len(frame.data)} bytes; allowed are 1 to {limit}"
        if b"\n" in frame.data:
            return "a message holds a newline"
    return None


# -- the transport -------------------------------------------------------------------------------------

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
