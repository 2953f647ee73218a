"""Steps that other threads hand to a Trio loop, the engine's own or one of the program's."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.bridges.step_queue import StepQueue
from mcp_actors.errors import LoopClosed
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import BRIDGED_STEP

__all__ = ["TrioSteps"]

Step = Callable[[], object]


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
