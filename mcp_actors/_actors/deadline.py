"""Two clocks in one cancel scope: ``deadline = min(now + idle, start + cap)``."""

from __future__ import annotations

import math
from typing import Literal

import trio

__all__ = ["Deadline"]


class Deadline:
    """Progress moves the idle clock, nothing moves the cap. Seconds; `math.inf` switches a clock off."""

    __slots__ = ("_ends_at", "_held", "cap", "idle", "scope")

    def __init__(self, idle: float, cap: float) -> None:
        now = trio.current_time()
        self.idle = idle
        self.cap = cap
        self._ends_at = now + cap
        self._held = False
        self.scope = trio.CancelScope(deadline=min(now + idle, self._ends_at))

    def touch(self) -> None:
        """A sign of life: the idle clock starts anew."""
        if not self._held:
            self.scope.deadline = min(trio.current_time() + self.idle, self._ends_at)

    def hold(self) -> None:
        """Stops the idle clock, for while the peer waits for us and not we for it."""
        self._held = True
        self.scope.deadline = self._ends_at

    def release(self) -> None:
        """Starts the idle clock again after `hold`."""
        self._held = False
        self.touch()

    def disarm(self) -> None:
        """The answer is here: no clock may cut off what remains to be done with it."""
        self._held = True
        self.scope.deadline = math.inf

    @property
    def expired(self) -> Literal["idle", "cap"] | None:
        """Which clock ran out, if one did."""
        if not self.scope.cancelled_caught:
            return None
        return "cap" if self.scope.deadline >= self._ends_at else "idle"
