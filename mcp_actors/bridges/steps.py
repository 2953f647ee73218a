"""Steps: functions that other threads hand to a loop, those that are posted while it is busy for one wake-up together.

The engine's loop and the loops of programs have a `StepQueue` each. `WakeUps` wakes the loops of programs when the
engine has done all that there is to do. A loop that is woken by the first of many results wants the interpreter's
lock in the middle of the engine's work, takes the few results that are there, and brings as few new calls. With many
calls in flight most of the time goes into handing the lock to and fro then. Woken when the engine is about to wait, a
loop finds all results in one lot.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

from mcp_actors.errors import LoopClosed
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import BRIDGED_STEP

__all__ = ["Step", "StepQueue", "TrioSteps", "WakeUps"]

# Seconds after which a loop is woken in the middle of the engine's work: an engine that serves others may never wait.
MAX_DELAY = 0.0005

Step = Callable[[], object]


class StepQueue:
    """A queue of steps.

    Args:
        wake: Is called with `take`, and has the loop call it soon. Legal from any thread; raises ``RuntimeError`` when
            the loop has ended.
    """

    __slots__ = ("_is_woken", "_steps", "_wake")

    def __init__(self, wake: Callable[[Step], object]) -> None:
        self._wake = wake
        self._steps: deque[Step] = deque()
        self._is_woken = False

    def __repr__(self) -> str:
        return f"<StepQueue steps={len(self._steps)}>"

    def post(self, step: Step) -> None:
        """Has the loop call ``step`` soon; steps run in the order of their posting. Legal from any thread.

        Raises:
            RuntimeError: The loop has ended.
        """
        self._steps.append(step)
        if not self._is_woken:
            self.wake()

    def hold(self, step: Step) -> None:
        """Puts ``step`` behind the others, for a loop that is woken soon: by `wake`, or by the next `post`."""
        self._steps.append(step)

    def wake(self) -> None:
        """Has the loop take the steps that are held, if there are any.

        Raises:
            RuntimeError: The loop has ended.
        """
        if self._is_woken or not self._steps:
            return
        # An interrupt may come at any instruction: if the loop was not woken, the next `post` has to do it.
        try:
            self._is_woken = True
            self._wake(self.take)
        except RuntimeError:
            self._is_woken = False
            self._steps.clear()
            raise
        except BaseException:
            self._is_woken = False
            raise

    def take(self) -> None:
        """Runs the steps that were posted. What one of them raises leaves it; the others are run soon."""
        # A thread that appends from here on wakes the loop again, so that no step is left.
        self._is_woken = False
        steps = self._steps
        try:
            for _ in range(len(steps)):
                steps.popleft()()
        except BaseException:
            self.wake()
            raise


class TrioSteps:
    """Hands steps to the Trio loop in which it was made. ``TrioSteps.of_running_loop()`` is the one of this loop."""

    def __init__(self) -> None:
        token = trio.lowlevel.current_trio_token()
        self._steps = StepQueue(lambda *_: token.run_sync_soon(self._take))

    @classmethod
    def of_running_loop(cls) -> TrioSteps:
        """Returns the one of the loop that runs in this thread; raises `RuntimeError` where none does."""
        try:
            return _of_loop.get()
        except LookupError:
            steps = cls()
            _of_loop.set(steps)
            return steps

    def post(self, step: Step) -> None:
        """Runs ``step`` in the loop soon; steps run in the order of their posting. Legal from any thread.

        Steps that are posted while the loop is busy are run together, for the price of one wake-up.

        Raises:
            LoopClosed: The loop has ended.
        """
        try:
            self._steps.post(step)
        except trio.RunFinishedError:
            raise LoopClosed("the Trio loop that this belongs to has ended") from None

    def _take(self) -> None:
        with Containment(BRIDGED_STEP):
            self._steps.take()


_of_loop: trio.lowlevel.RunVar[TrioSteps] = trio.lowlevel.RunVar("_of_loop")


class WakeUps(trio.abc.Instrument):
    """An instrument of the engine's loop. It is used in the engine's thread alone."""

    def __init__(self) -> None:
        self._due: list[Callable[[], object]] = []
        self._since = 0.0

    def add(self, wake: Callable[[], object]) -> None:
        """Has ``wake`` called soon. It may raise ``RuntimeError`` when its loop has ended."""
        if not self._due:
            self._since = time.perf_counter()
        self._due.append(wake)

    def before_io_wait(self, timeout: float) -> None:
        """Called by Trio at the end of each turn; without a timeout more is to be done at once."""
        if self._due and (timeout > 0 or time.perf_counter() - self._since > MAX_DELAY):
            self.flush()

    def flush(self) -> None:
        """Wakes all of them now."""
        due, self._due = self._due, []
        for wake in due:
            try:
                wake()
            except RuntimeError as error:
                log.debug("a loop has ended before it was woken", exc_info=error)
