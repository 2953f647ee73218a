"""Two clocks for every call of ours, ``min(now + idle, start + cap)``, and the one actor that watches them all.

A cancel scope with a deadline for each call would cost more than sending it; one task per session that sleeps until
the earliest deadline costs a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import trio

from mcp_actors._actors.waiting_tasks import WaitingTasks
from mcp_actors.supervision import TaskKind
from mcp_actors.task_kinds import SESSION_CLOCK

__all__ = ["Deadline", "DeadlineClock"]


class Deadline:
    """Progress moves the idle clock, nothing moves the cap. Seconds; `math.inf` switches a clock off.

    The engine of a server reports progress for calls that say nothing (`Limits.beat`). So the idle clock ends calls
    whose server or connection is gone, and the cap those that never end.
    """

    __slots__ = ("_held", "at", "cap", "ends_at", "idle", "started")

    def __init__(self, idle: float, cap: float) -> None:
        self.started = trio.current_time()
        self.idle = idle
        self.cap = cap
        self.ends_at = self.started + cap
        self.at = min(self.started + idle, self.ends_at)
        self._held = 0

    def touch(self) -> None:
        """A sign of life: the idle clock starts anew."""
        if not self._held:
            self.at = min(trio.current_time() + self.idle, self.ends_at)

    def hold(self) -> None:
        """Stops the idle clock, for while the peer waits for us and not we for it."""
        self._held += 1
        self.at = self.ends_at

    def release(self) -> None:
        """Starts the idle clock again after as many calls of this as of `hold`."""
        self._held -= 1
        self.touch()

    def move(self, seconds: float) -> None:
        """Moves both clocks, for while neither ran."""
        self.at += seconds
        self.ends_at += seconds

    @property
    def which(self) -> Literal["idle", "cap"]:
        """The name of the clock that runs out first, or has run out."""
        return "cap" if self.at >= self.ends_at else "idle"


class Watched(Protocol):
    """Something that a clock wakes when its time is over."""

    deadline: Deadline

    def expire(self) -> None:
        """The deadline has passed."""


class DeadlineClock:
    """Expires what is in ``watched`` when its time has come. Its task exists only once there was something."""

    def __init__(
        self,
        watched: Mapping[Any, Watched],
        start_task: Callable[[TaskKind, Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._watched = watched
        # It belongs to the session, which has this clock, so it is None once nothing will expire any more.
        self._start_task: Callable[[TaskKind, Callable[[], Awaitable[None]]], None] | None = start_task
        self._running = False
        self._wakes_at = math.inf
        self._stopped_at: float | None = None
        self._parked = WaitingTasks()

    def __repr__(self) -> str:
        return f"<DeadlineClock {'running' if self._running else 'idle'} watching={len(self._watched)}>"

    def start(self, idle: float, cap: float) -> Deadline:
        """Returns a new deadline, which is watched once what has it is among the watched."""
        deadline = Deadline(idle, cap)
        self.watch(deadline)
        return deadline

    def watch(self, deadline: Deadline) -> None:
        """Takes note of a deadline that is new or was moved closer."""
        if deadline.at < self._wakes_at:
            # So that no second call of the same turn asks for the same again.
            self._wakes_at = deadline.at
            if self._running:
                self._parked.unpark_all()
            elif self._start_task is not None:
                self._running = True
                self._start_task(SESSION_CLOCK, self._run)

    @property
    def is_stopped(self) -> bool:
        """Whether no time passes, from `stop` to `go_on`."""
        return self._stopped_at is not None

    def stop(self) -> None:
        """Lets nothing expire until `go_on`: a person is asked, and nobody knows how long that takes."""
        if self._stopped_at is None:
            self._stopped_at = trio.current_time()

    def go_on(self) -> None:
        """Moves every deadline by as long as the clock stood still for it."""
        if self._stopped_at is None:
            return
        now, stopped_at, self._stopped_at = trio.current_time(), self._stopped_at, None
        for each in self._watched.values():
            each.deadline.move(now - max(stopped_at, each.deadline.started))
        self._parked.unpark_all()

    def end(self) -> None:
        """Nothing will expire any more."""
        self._start_task = None
        self._parked.unpark_all()

    async def _run(self) -> None:
        while self._start_task is not None:
            now = trio.current_time()
            earliest = math.inf
            for each in () if self.is_stopped else list(self._watched.values()):
                if each.deadline.at <= now:
                    each.expire()
                else:
                    earliest = min(earliest, each.deadline.at)
            self._wakes_at = earliest
            with trio.move_on_at(earliest):
                await self._parked.park()
