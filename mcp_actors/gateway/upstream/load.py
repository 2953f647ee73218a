"""The load of an upstream: calls in flight, by caller, and the bounds on them and on what it tells unasked."""

from __future__ import annotations

from mcp_actors._actors.pace import ReadingPace
from mcp_actors.errors import Overloaded

__all__ = ["UpstreamLoad"]

# Seconds after which whoever is refused may expect better: about the length of a call.
RETRY_AFTER = 1.0


class UpstreamLoad:
    """The calls in flight of one upstream. A slow one holds so many and no more, and one caller half of them.

    Args:
        limit: How many there may be.
        notifications: How many notifications its connections are read a second.
    """

    def __init__(self, limit: int, notifications: int) -> None:
        self.limit = limit
        self.pace = ReadingPace(notifications)
        self.limit_of_caller = max(1, limit // 2)
        self.in_flight = 0
        self._of_callers: dict[object, int] = {}

    def __repr__(self) -> str:
        return f"<UpstreamLoad {self.in_flight}/{self.limit} callers={len(self._of_callers)}>"

    @property
    def callers(self) -> int:
        """The number of callers that have a call in flight."""
        return len(self._of_callers)

    def begin(self, caller: object) -> None:
        """Counts a call that begins.

        Raises:
            Overloaded: There are too many already, of this caller or in all.
        """
        of_caller = self._of_callers.get(caller, 0)
        if of_caller >= self.limit_of_caller:
            raise Overloaded.for_caller("calls at one server", self.limit_of_caller, RETRY_AFTER)
        if self.in_flight >= self.limit:
            raise Overloaded.for_caller("calls of all callers at one server", self.limit, RETRY_AFTER)
        self.in_flight += 1
        self._of_callers[caller] = of_caller + 1

    def end(self, caller: object) -> None:
        """Counts a call that has ended."""
        self.in_flight -= 1
        left = self._of_callers[caller] - 1
        if left:
            self._of_callers[caller] = left
        else:
            del self._of_callers[caller]
