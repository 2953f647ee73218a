"""Blockages of event loops of this process: the call, the line, and for how long.

A watchdog (`mcp_actors._server.watchdog`) takes note of each blockage; the live view, metrics and the errors of calls
that waited meanwhile read it. Times are those of `time.perf_counter`, since no virtual clock of a test stops a thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Literal

import msgspec

__all__ = ["Blockage", "BlockageLog", "OpenBlockage", "blockage_log"]

# Blockages that are kept, and names by which they are counted: names of tools that were called, so they exist.
KEPT = 20
MOST_NAMES = 200
_OTHER = "other"
# Seconds of a blockage below which it explains no call that was late.
_SHORTEST = 0.05


class Blockage(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which one event loop did nothing but run one function."""

    loop: Literal["trio", "asyncio"]
    """The loop that was blocked: that of the engine, or one in which functions with ``loop="asyncio"`` run."""
    method: str | None
    """The method of the call that blocked it; ``None`` where no single call did."""
    target: str | None
    """The tool, prompt or resource that was called."""
    session: str | None
    principal: str | None
    """The caller, if the transport has authenticated it."""
    place: str
    """File and line of the program's own code, such as ``scan.py:41``; ``""`` if there is none."""
    line: str
    """The text of that line, cut; ``""`` if it cannot be read."""
    waiting: int
    """Other calls in flight when it was noticed."""
    at: float
    """Seconds since the epoch when it was noticed."""
    seconds: float = 0.0
    """For how long the loop has been blocked, or was. It is less than the truth by up to the watchdog's time."""
    is_over: bool = False

    @property
    def name(self) -> str:
        """The cause in words: ``tool 'scan'``, ``resources/read 'file:///x'`` or ``the program``."""
        if self.method is None:
            return "the program"
        if self.target is None:
            return self.method
        return f"{'tool' if self.method == 'tools/call' else self.method} {self.target!r}"

    @property
    def loop_name(self) -> str:
        """The loop, in words."""
        return "the event loop" if self.loop == "trio" else "the asyncio loop"

    def sentence(self, *, in_full: bool = True) -> str:
        """Returns what a person or a model is told.

        Args:
            in_full: Whether the session and the line are named; a client learns of neither where errors are masked.
        """
        time_ = f"{self.seconds:.2g} s" if self.seconds < 10 else f"{self.seconds:.0f} s"
        if not in_full:
            return f"{self.loop_name} was blocked for {time_}"
        of = f" of session {self.session}" if self.session else ""
        where = f" at {self.place} {self.line}".rstrip() if self.place else ""
        has = "held" if self.is_over else "has held"
        waiting = ""
        if self.waiting:
            waiting = f"; {self.waiting} other call{'s wait' if self.waiting > 1 else ' waits'}"
        return f"{self.name}{of} {has} {self.loop_name} for {time_}{where}{'' if self.is_over else waiting}"


class OpenBlockage:
    """A blockage from when it was noticed on."""

    __slots__ = ("_ended", "_first", "began", "thread")

    def __init__(self, first: Blockage, began: float, thread: int) -> None:
        self._first = first
        self._ended: float | None = None
        self.began = began
        self.thread = thread

    def __repr__(self) -> str:
        return f"<OpenBlockage {self.now.sentence()!r}>"

    @property
    def ended(self) -> float:
        """When it ended; now, if it has not."""
        return time.perf_counter() if self._ended is None else self._ended

    @property
    def now(self) -> Blockage:
        """The blockage as far as it is known now."""
        is_over = self._ended is not None
        return msgspec.structs.replace(self._first, seconds=self.ended - self.began, is_over=is_over)

    def end(self, at: float) -> None:
        """The loop goes on. Legal in any thread; the first one counts."""
        if self._ended is None:
            self._ended = at


class BlockageLog:
    """Counts blockages by what caused them, and keeps the last `KEPT`. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        """Of those that are over."""
        self._recent: tuple[OpenBlockage, ...] = ()
        self.unlock()

    def unlock(self) -> None:
        """Makes the lock; called again in a forked child, because a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<BlockageLog {sum(self.counts.values())}>"

    @property
    def recent(self) -> list[Blockage]:
        """The last ones, the newest first."""
        return [each.now for each in reversed(self._recent)]

    def begin(self, first: Blockage, began: float, thread: int) -> OpenBlockage:
        """Takes note of a loop that is blocked: the one of ``thread``, since ``began``."""
        found = OpenBlockage(first, began, thread)
        with self._lock:
            name = self._name_of(first)
            self.counts[name] = self.counts.get(name, 0) + 1
            self.seconds.setdefault(name, 0.0)
            self._recent = (*self._recent, found)[-KEPT:]
        return found

    def add_time(self, blockage: Blockage) -> None:
        """Counts the seconds of one that is over."""
        with self._lock:
            self.seconds[self._name_of(blockage)] += blockage.seconds

    def within(self, seconds: float, thread: int | None = None) -> Blockage | None:
        """Returns the longest blockage of the last ``seconds``, if one of them explains that a call was late.

        Args:
            seconds: How long ago the call began.
            thread: The thread of the loop that the call needed; ``None`` for any loop.
        """
        since = time.perf_counter() - seconds
        found, longest = None, _SHORTEST
        for each in self._recent:
            overlap = each.ended - max(each.began, since)
            if overlap >= longest and thread in (None, each.thread):
                found, longest = each, overlap
        return None if found is None else found.now

    def _name_of(self, blockage: Blockage) -> str:
        name = (
            blockage.target if blockage.method == "tools/call" and blockage.target else blockage.method or ""
        )
        return name if name in self.counts or len(self.counts) < MOST_NAMES else _OTHER


blockage_log = BlockageLog()
"""The blockages of this process."""

if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=blockage_log.unlock)
