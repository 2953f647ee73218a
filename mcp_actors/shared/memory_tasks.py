"""Tasks in the memory of one process: the default store, and the reference for all others."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec
import trio

from mcp_actors.abc.shared import TaskBounds, TaskRecord

__all__ = ["MemoryTaskStore"]

# Dropped tasks whose place in the list of their owner is remembered, for clients in the middle of their pages: about
# 200 bytes each.
MAX_REMEMBERED = 4096


class _TasksOfOwner(msgspec.Struct):
    numbers: list[int] = msgspec.field(default_factory=list)
    """The numbers of the tasks, which grow in the order of creation."""
    weight: int = 0


class MemoryTaskStore:
    """A `mcp_actors.abc.TaskStore` in memory. Tasks whose time is over are dropped at the next call.

    A call costs the same however many tasks there are, but for the tasks that it drops; to drop one takes a time that
    grows with the logarithm of their number. Memory is that of the records, and about 600 bytes for each.

    Args:
        clock: Returns seconds since the epoch, to which the times of the records are compared.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tasks: dict[str, TaskRecord] = {}
        self._owners: dict[str, _TasksOfOwner] = {}
        self._weight = 0
        # The id of each task by its number, and the other way round.
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._last = 0
        # The end of each task's time, soonest first. An entry that no longer agrees with its task is passed over.
        self._ends: list[tuple[float, str]] = []
        # Owner and number of dropped tasks, oldest first.
        self._dropped: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<MemoryTaskStore {len(self._tasks)} tasks, {self._weight} bytes>"

    @property
    def spans_processes(self) -> bool:
        """False: the tasks are those of one process."""
        return False

    @property
    def survives(self) -> bool:
        """False: the tasks end with the process."""
        return False

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """See `mcp_actors.abc.TaskStore.create`.

        Raises:
            ValueError: There is a task with this id.
        """
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        if record.id in self._tasks:
            raise ValueError("there is a task with this id: ids must be unguessable, and used once")
        owner = self._owners.get(record.owner) or _TasksOfOwner()
        if len(owner.numbers) >= bounds.of_owner or owner.weight + record.weight > bounds.bytes_of_owner:
            return "owner"
        if len(self._tasks) >= bounds.of_all or self._weight + record.weight > bounds.bytes_of_all:
            return "all"
        self._owners[record.owner] = owner
        self._last += 1
        self._ids[self._last] = record.id
        self._numbers[record.id] = self._last
        owner.numbers.append(self._last)
        self._keep(None, record)
        return None

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        return {id: self._tasks[id] for id in ids if id in self._tasks}

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        current = self._tasks.get(record.id)
        if current is None or current.is_terminal or current.revision != record.revision - 1:
            return False
        self._keep(current, record)
        return True

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. Behind a task that is not known, or is another owner's, there is none.

        The places of the last 4,096 dropped tasks are known.
        """
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        tasks = self._owners.get(owner)
        begin = 0 if after is None else self._number_of(owner, after)
        if tasks is None or begin is None:
            return []
        first = bisect_right(tasks.numbers, begin)
        numbers = islice(tasks.numbers, first, first + limit)
        return [self._tasks[self._ids[number]] for number in numbers]

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`. There are none, because the tasks end with their node."""
        await trio.lowlevel.checkpoint()
        return []

    def _number_of(self, owner: str, id: str) -> int | None:
        record = self._tasks.get(id)
        if record is not None:
            return self._numbers[id] if record.owner == owner else None
        dropped_owner, number = self._dropped.get(id, (owner, None))
        return number if dropped_owner == owner else None

    def _keep(self, before: TaskRecord | None, record: TaskRecord) -> None:
        change = record.weight - (0 if before is None else before.weight)
        self._owners[record.owner].weight += change
        self._weight += change
        self._tasks[record.id] = record
        end = _end_of(record)
        if end is not None and (before is None or _end_of(before) != end):
            heapq.heappush(self._ends, (end, record.id))

    def _drop_expired(self) -> None:
        if not self._ends:
            return
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            end, id = heapq.heappop(self._ends)
            record = self._tasks.get(id)
            if record is not None and _end_of(record) == end:
                self._drop(record)

    def _drop(self, record: TaskRecord) -> None:
        del self._tasks[record.id]
        number = self._numbers.pop(record.id)
        del self._ids[number]
        owner = self._owners[record.owner]
        del owner.numbers[bisect_right(owner.numbers, number) - 1]
        owner.weight -= record.weight
        self._weight -= record.weight
        if not owner.numbers:
            del self._owners[record.owner]
        self._dropped[record.id] = (record.owner, number)
        if len(self._dropped) > MAX_REMEMBERED:
            self._dropped.popitem(last=False)


def _end_of(record: TaskRecord) -> float | None:
    return None if record.ttl is None else record.created + record.ttl
