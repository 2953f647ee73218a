"""Steps that any thread posts, and one loop takes: those that are posted while it is busy for one wake-up together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Step", "StepQueue"]

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
        """Puts ``step`` behind the others, for a loop that is woken soon: by `wake`, or by anybody's `post`."""
        self._steps.append(step)

    def wake(self) -> None:
        """Has the loop take the steps that are held, if there are any.

        Raises:
            RuntimeError: The loop has ended.
        """
        if self._is_woken or not self._steps:
            return
        # An interrupt may come at any instruction: if nobody was woken, the next one who posts has to do it.
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
        # Whoever appends from here on wakes the loop again, so that no step is left.
        self._is_woken = False
        steps = self._steps
        try:
            for _ in range(len(steps)):
                steps.popleft()()
        except BaseException:
            self.wake()
            raise
