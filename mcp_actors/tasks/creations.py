"""Counts the tasks of callers that nobody has authenticated, by their addresses."""

from __future__ import annotations

import heapq
import math
from collections import Counter

from mcp_actors.errors import Overloaded

__all__ = ["Creations"]


class Creations:
    """The tasks that unauthenticated callers have created at this node and that are still kept.

    The store counts by owner, and has one for all of these callers: without this a single one could take all places.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_holder: Counter[str] = Counter()
        self._until: list[tuple[float, str]] = []

    def check(self, holder: str, now: float) -> None:
        """Raises `Overloaded` when a caller has as many tasks as it may have."""
        while self._until and self._until[0][0] <= now:
            _, gone = heapq.heappop(self._until)
            self._by_holder[gone] -= 1
            if not self._by_holder[gone]:
                del self._by_holder[gone]
        if self._by_holder[holder] >= self._limit:
            raise Overloaded.for_tasks("tasks", "holder", self._limit)

    def count(self, holder: str, until: float | None) -> None:
        """Counts a task that is kept until a time."""
        self._by_holder[holder] += 1
        heapq.heappush(self._until, (math.inf if until is None else until, holder))
