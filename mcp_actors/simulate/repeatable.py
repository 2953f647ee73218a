"""Running a Trio program in virtual time so that it does the same things in the same order each time."""

from __future__ import annotations

import gc
import heapq
import importlib
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio

__all__ = ["VirtualClock", "run"]

T = TypeVar("T")

# Ten thousand sessions are some million objects that live to the end, and calls leave next to no garbage in circles:
# looking for it as often as usual took a fifth of the time.
COLLECT_AFTER = (1_000_000, 50, 1_000)


class VirtualClock(trio.abc.Clock):
    """A clock that starts at 0, stands still while any task can run, and then jumps to the next deadline.

    `trio.testing.MockClock` with autojump does the same in three turns of Trio's loop for each jump; this one needs a
    single turn, and its time is the deadline itself, not a sum that should be equal to it. Trio asks a clock how long
    to sleep only when no task is ready. That is the moment to jump, as nothing here waits for the world outside.

    Frames in transit on links are entries in the clock's own heap, so their arrival costs no task and no cancel scope.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._serial = 0
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:.6f} s, {len(self._due)} due>"

    def at(self, when: float, action: Callable[[Any], None], argument: Any) -> None:
        """Calls ``action(argument)`` when that time has come; at the same time in the order in which it was asked.

        It must not raise: it is called by Trio's loop itself, between two tasks.
        """
        self._serial += 1
        heapq.heappush(self._due, (when, self._serial, action, argument))

    def start_clock(self) -> None:
        """It stands still."""

    def current_time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jumps to ``deadline``, or to an action that is due before it and calls that; Trio need not sleep."""
        due = self._due
        then = min(deadline, due[0][0]) if due else deadline
        if then == math.inf:
            return math.inf
        self._now = max(then, self._now)
        while due and due[0][0] <= self._now:
            _, _, action, argument = heapq.heappop(due)
            action(argument)
        return 0.0


def run(function: Callable[[VirtualClock], Awaitable[T]], seed: int) -> T:
    """`trio.run` on a clock of its own, which ``function`` is given.

    Raises `RuntimeError` inside a running Trio program, and where this version of Trio cannot be made repeatable.
    """
    clock = VirtualClock()
    with _repeatable(seed), _seldom_collecting():
        return trio.run(function, clock, clock=clock)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Makes Trio's scheduler and the module `random` repeatable for the length of the block.

    Trio runs the tasks that are ready in a random order, on purpose, and has no public switch for that. It has one for
    Hypothesis, in a private module: a batch is sorted by the age of its tasks before it is shuffled, and the rng for
    that are one object that can be seeded. The first half matters as much as the second: tasks whose deadlines are
    equal become ready in the order of their memory addresses. Sorting loses nothing: the order is still random, the
    same for the same seed.
    """
    scheduler: Any = importlib.import_module("trio._core._run")
    rng = getattr(scheduler, "_r", None)
    if not isinstance(rng, random.Random) or not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        raise RuntimeError(f"trio {trio.__version__} has no known way to make its scheduler repeatable")
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, rng.getstate(), random.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    rng.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        rng.setstate(before[1])
        random.setstate(before[2])


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Collects the garbage of earlier runs first, and collects seldom in the block."""
    gc.collect()
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Makes all of it old, so that the next collection of what is young need not look through a million objects.
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)
