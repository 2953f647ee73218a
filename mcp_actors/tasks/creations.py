"""Counts the tasks of callers that nobody has authenticated, by their addresses."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import attrs

from mcp_actors.abc import TaskRecord
from mcp_actors.errors import Overloaded

__all__ = ["Creations"]


@attrs.define
class _TasksOfHolder:
    tasks: int = 0
    weight: int = 0


class _CountedTask(NamedTuple):
    holder: str
    weight: int


class Creations:
    """The tasks that unauthenticated callers have created at this node and that are still kept, and their bytes.

    The store counts by owner, and has one for all of these callers: without this a single one could take all places.

    Args:
        tasks: How many tasks one caller may have.
        weight: How many bytes of them. It is looked at before a task is created: results may exceed it.
    """

    def __init__(self, tasks: int, weight: int) -> None:
        self._tasks = tasks
        self._weight = weight
        self._by_holder: dict[str, _TasksOfHolder] = {}
        self._counted: dict[str, _CountedTask] = {}
        self._until: list[tuple[float, str]] = []

    def __repr__(self) -> str:
        return f"<Creations {len(self._counted)} tasks of {len(self._by_holder)} callers>"

    def count(self, holder: str, record: TaskRecord) -> None:
        """Counts a new task until its time is over.

        Raises:
            Overloaded: The caller has as many as it may have.
        """
        while self._until and self._until[0][0] <= record.created:
            self.forget(heapq.heappop(self._until)[1])
        held = self._by_holder.get(holder) or _TasksOfHolder()
        if held.tasks >= self._tasks or held.weight + record.weight > self._weight:
            raise Overloaded.for_tasks("tasks, or bytes in tasks,", "holder", self._tasks)
        self._by_holder[holder] = held
        self._counted[record.id] = _CountedTask(holder, record.weight)
        held.tasks += 1
        held.weight += record.weight
        heapq.heappush(
            self._until, (math.inf if record.ttl is None else record.created + record.ttl, record.id)
        )

    def changed(self, record: TaskRecord) -> None:
        """Notes how many bytes a task has now, if it is counted."""
        counted = self._counted.get(record.id)
        if counted is not None:
            self._by_holder[counted.holder].weight += record.weight - counted.weight
            self._counted[record.id] = counted._replace(weight=record.weight)

    def forget(self, id: str) -> None:
        """Counts a task no more, if it is counted."""
        counted = self._counted.pop(id, None)
        if counted is None:
            return
        held = self._by_holder[counted.holder]
        held.tasks -= 1
        held.weight -= counted.weight
        if not held.tasks:
            del self._by_holder[counted.holder]
