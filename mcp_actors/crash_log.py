"""The last crashes of tasks in this process, for whoever looks at it from outside.

A crash is contained and logged by `mcp_actors.supervision`. It is also counted here, and the last ones are kept, so
that metrics and a live view can say how often a kind of task has failed, and why it was started again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter

import attrs

from mcp_actors._record import ValueRecord

__all__ = ["Crash", "CrashLog", "crash_log"]

# Crashes that are kept, and characters of each: what peers can cause must not fill the memory.
KEPT = 64
CHARACTERS = 200


@attrs.frozen(eq=False, repr=False)
class Crash(ValueRecord):
    """One crash of a task."""

    kind: str
    """The name of the task's row in `mcp_actors.task_kinds.TASKS`."""
    task: str
    """The name of the task, cut to `CHARACTERS`."""
    error: str
    """The exception, cut to `CHARACTERS`."""
    at: float
    """Seconds since the epoch."""
    restarted: bool
    """Whether the task was started again."""


class CrashLog:
    """Counts crashes by kind of task and keeps the last `KEPT` of them. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: tuple[Crash, ...] = ()
        """The last ones, the oldest first."""
        self.unlock()

    def unlock(self) -> None:
        """Makes the lock; called again in a forked child, because a thread of the parent may have held it."""
        # A handler of signals may take note of a crash while its thread does.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<CrashLog {self.counts.total()}>"

    def note(self, kind: str, task: str, error: BaseException, restarted: bool) -> None:
        """Takes note of a crash."""
        crash = Crash(kind, task[:CHARACTERS], _text(error), time.time(), restarted)
        # Without the interpreter's lock two threads would count one for two.
        with self._lock:
            self.counts[kind] += 1
            self.recent = (*self.recent, crash)[-KEPT:]


def _text(error: BaseException) -> str:
    try:
        return repr(error)[:CHARACTERS]
    except Exception:
        # The form of an exception is a program's own code, and what contains a crash must not fail by it.
        return type(error).__name__


crash_log = CrashLog()
"""The crashes of this process."""

if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=crash_log.unlock)
