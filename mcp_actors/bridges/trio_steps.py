"""Steps that other threads hand to a Trio loop, the engine's own or one of the program's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from mcp_actors.errors import LoopClosed
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import BRIDGED_STEP

__all__ = ["TrioSteps"]

Step = Callable[[], object]


class TrioSteps:
    """Hands steps to the Trio loop in which it was made. ``TrioSteps.of_running_loop()`` is the one of this loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._steps: deque[Step] = deque()
        self._is_woken = False

    def __repr__(self) -> str:
        return f"<TrioSteps {len(self._steps)} waiting>"

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
        self._steps.append(step)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._token.run_sync_soon(self._take_steps)
            except trio.RunFinishedError:
                # Whoever comes later is to be told, too.
                self._is_woken = False
                self._steps.clear()
                raise LoopClosed("the Trio loop that this belongs to has ended") from None

    def _take_steps(self) -> None:
        # Whoever appends from here on wakes the loop again, so that no step is left.
        self._is_woken = False
        steps = self._steps
        for _ in range(len(steps)):
            with Containment(BRIDGED_STEP):
                steps.popleft()()


_of_loop: trio.lowlevel.RunVar[TrioSteps] = trio.lowlevel.RunVar("_of_loop")
