"""The faults of one direction of a link: when each frame arrives, whether it does, and where the line breaks."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

import attrs
import trio

from mcp_actors.abc import Frame, RequestId
from mcp_actors.testing.line import SerialLine

__all__ = ["FaultStatistics", "Faults", "FaultyDirection", "check_frames"]

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
    """The probability, for each frame, that the line stands still before it."""
    stall_seconds: float = 1.0
    """Seconds for which it stands still."""
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

    def __attrs_post_init__(self) -> None:
        for name in ("stall", "loss", "duplicate", "reorder"):
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

    def draw_latency(self, rng: random.Random) -> float:
        """Returns the seconds that one frame is in transit."""
        return self.latency + (rng.random() * self.jitter if self.jitter else 0.0)


@attrs.define
class FaultStatistics:
    """Counts of what has happened on all connections of a `FaultyTransport`, both directions together."""

    connections: int = 0
    """Connections opened."""
    frames: int = 0
    """Frames that were sent, those at which a connection was lost included."""
    bytes: int = 0
    """Bytes of those frames."""
    lost: int = 0
    """Connections lost."""
    stalled: int = 0
    """Times that a line stood still."""
    moved: int = 0
    """Frames that others could overtake."""
    duplicated: int = 0
    """Frames that arrived twice."""
    truncated: int = 0
    """Frames of which a part arrived."""


class FaultyDirection:
    """The frames in transit in one direction, each with the time at which it arrives. All faults are decided in `put`.

    Args:
        faults: what goes wrong.
        rng: the only source of chance.
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
