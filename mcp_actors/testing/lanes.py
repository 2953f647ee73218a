"""One direction of a faulty link: when each frame arrives, whether it does, and where the line breaks."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

import attrs
import trio

from mcp_actors.abc import Frame, RequestId

__all__ = ["Faults", "Lane", "LinkTally", "check_frames"]

# Frames and bytes that may be under way in one direction of one connection before `send` waits: what a pipe holds.
MAX_FRAMES = 256
MAX_BYTES = 256 * 1024


@attrs.frozen(kw_only=True)
class Faults:
    """What goes wrong in one direction of every connection. The defaults are a perfect line.

    Raises `ValueError` for what cannot be.
    """

    latency: float = 0.0
    """Seconds that each frame is under way."""
    jitter: float = 0.0
    """Up to so many seconds more, evenly spread. It changes no order: who is late makes those behind him late."""
    bandwidth: float = math.inf
    """Bytes per second; frames wait for those before them to be out."""
    stall: float = 0.0
    """The probability, for each frame, that the line stands still before it."""
    stall_seconds: float = 1.0
    """For how long it stands still."""
    loss: float = 0.0
    """The probability, for each frame, that the connection is lost in its place."""
    lose_at_frame: int | None = None
    """The connection is lost in place of the n-th frame, counted from 1; all before it arrive."""
    lose_at_byte: int | None = None
    """The connection is lost with the n-th byte of all frames, counted from 1, and the frame that it is in."""
    truncate: bool = False
    """What was out of the frame at which the connection is lost arrives, as a torn frame."""
    duplicate: float = 0.0
    """The probability, for each frame, that it arrives twice."""
    reorder: float = 0.0
    """The probability, for each frame, that it is late by ``reorder_seconds`` and others overtake it.

    Only frames about other requests may, and frames about no request are never overtaken and overtake nobody: that
    much order no binding may lose. Which request a frame is about is known where the engine sent it, so this has an
    effect on what the wrapped side sends, and on what it receives only if the inner binding keeps those fields,
    as the one in memory does.
    """
    reorder_seconds: float = 0.01
    """How late a frame is that others may overtake."""

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


@attrs.define
class LinkTally:
    """What has happened so far on all connections of a `FaultyTransport`, both directions together."""

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


class Lane:
    """Frames under way in one direction, each with the time at which it arrives. Every decision is made in `put`."""

    def __init__(self, faults: Faults, dice: random.Random, tally: LinkTally) -> None:
        self._faults = faults
        self._dice = dice
        self._tally = tally
        # (when, running number, what); an exception is the end of the line.
        self._under_way: list[tuple[float, int, Frame | Exception]] = []
        self._serial = 0
        self._bytes = 0
        self._sent_frames = self._sent_bytes = 0
        self._line_free = -math.inf
        self._latest = -math.inf
        self._late: dict[RequestId, float] = {}
        self.furthest = -math.inf
        """When everything will have arrived."""
        self.end: Exception | None = None
        """How the line ended, once that has arrived."""
        self.ended = False
        """Whether nothing more is taken: the end is under way or has arrived."""
        self.changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether a sender must wait."""
        return len(self._under_way) >= MAX_FRAMES or self._bytes >= MAX_BYTES

    @property
    def next_due(self) -> float:
        """When the next frame arrives, or the end; infinity if nothing is under way."""
        return self._under_way[0][0] if self._under_way else math.inf

    def put(self, frame: Frame) -> None:
        """Sends a frame on its way; after the end of the line, nowhere."""
        if self.ended:
            return
        faults, dice, size = self._faults, self._dice, len(frame.data)
        self._tally.frames += 1
        self._tally.bytes += size
        begin = max(trio.current_time(), self._line_free)
        if faults.stall and dice.random() < faults.stall:
            self._tally.stalled += 1
            begin += faults.stall_seconds
        self._line_free = begin + size / faults.bandwidth
        due = self._line_free + faults.latency + (dice.random() * faults.jitter if faults.jitter else 0.0)
        cut = self._where_lost(size)
        self._sent_frames += 1
        self._sent_bytes += size
        if cut is not None:
            self._lose(frame, cut, max(due, self.furthest))
            return
        due = self._in_order(frame, due)
        self._push(due, frame)
        if faults.duplicate and dice.random() < faults.duplicate:
            self._tally.duplicated += 1
            self._push(due, frame)

    def put_end(self, ending: Exception) -> None:
        """The other end of the line is at its end: that takes as long as a frame does."""
        if not self.ended:
            self.ended = True
            self._push(max(trio.current_time() + self._faults.latency, self.furthest), ending)

    def take(self, until: float = math.inf, most: int | None = None) -> list[Frame]:
        """What has arrived by now, or by ``until`` if that is sooner; ``most`` frames at the most."""
        now = min(trio.current_time(), until)
        taken: list[Frame] = []
        while self._under_way and self._under_way[0][0] <= now and len(taken) != most:
            due, _, item = heapq.heappop(self._under_way)
            if isinstance(item, Exception):
                self.end = item
                break
            self._bytes -= len(item.data)
            exchange = _exchange_of(item)
            if exchange is not None and self._late.get(exchange) == due:
                del self._late[exchange]
            taken.append(item)
        if taken or self.end is not None:
            self.changed.unpark_all()
        return taken

    def _where_lost(self, size: int) -> int | None:
        """After how many bytes of this frame the connection is lost, if it is."""
        faults = self._faults
        if faults.lose_at_byte is not None and self._sent_bytes + size >= faults.lose_at_byte:
            return faults.lose_at_byte - self._sent_bytes - 1
        if self._sent_frames + 1 == faults.lose_at_frame or (
            faults.loss and self._dice.random() < faults.loss
        ):
            return self._dice.randrange(size) if faults.truncate and size else 0
        return None

    def _lose(self, frame: Frame, cut: int, due: float) -> None:
        self._tally.lost += 1
        if self._faults.truncate and cut:
            self._tally.truncated += 1
            self._push(due, Frame(frame.data[:cut]))
        self.ended = True
        self._push(due, trio.BrokenResourceError("the connection was lost (a planted fault)"))

    def _in_order(self, frame: Frame, due: float) -> float:
        exchange = _exchange_of(frame)
        if exchange is None:
            self._latest = max(due, self.furthest)
            return self._latest
        due = max(due, self._latest, self._late.get(exchange, -math.inf))
        if self._faults.reorder and self._dice.random() < self._faults.reorder:
            self._tally.moved += 1
            due += self._faults.reorder_seconds
            self._late[exchange] = due
        elif exchange not in self._late:
            self._latest = due
        else:
            # It follows one that is late, so others overtake it too.
            self._late[exchange] = due
        return due

    def _push(self, due: float, item: Frame | Exception) -> None:
        self._serial += 1
        self.furthest = max(self.furthest, due)
        if isinstance(item, Frame):
            self._bytes += len(item.data)
        heapq.heappush(self._under_way, (due, self._serial, item))
        self.changed.unpark_all()


def _exchange_of(frame: Frame) -> RequestId | None:
    for each in (frame.about, frame.request, frame.cancels):
        if each is not None:
            return each
    return None


def check_frames(frames: Sequence[Frame], limit: float) -> str | None:
    """Why these frames cannot be sent, if they cannot."""
    for frame in frames:
        if not 0 < len(frame.data) <= limit:
            return f"a message of {len(frame.data)} bytes; allowed are 1 to {limit}"
        if b"\n" in frame.data:
            return "a message holds a newline"
    return None
