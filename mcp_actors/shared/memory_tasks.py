"""Tasks in the memory of one process: the default store, and the reference for all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs
import trio

from mcp_actors.abc.shared import TaskBounds, TaskRecord

__all__ = ["MemoryTaskStore"]


@attrs.define
class _Owner:
    tasks: dict[str, None] = attrs.field(factory=dict)
    weight: int = 0


class MemoryTaskStore:
    """A `mcp_actors.abc.TaskStore` in memory. Tasks whose time is over are dropped at the next call.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tasks: dict[str, TaskRecord] = {}
        self._owners: dict[str, _Owner] = {}
        self._weight = 0

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
        """See `mcp_actors.abc.TaskStore.create`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        owner = self._owners.get(record.owner) or _Owner()
        if len(owner.tasks) >= bounds.of_owner or owner.weight + record.weight > bounds.bytes_of_owner:
            return "owner"
        if len(self._tasks) >= bounds.of_all or self._weight + record.weight > bounds.bytes_of_all:
            return "all"
        self._owners[record.owner] = owner
        self._keep(record)
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
        self._keep(record)
        return True

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`."""
        await trio.lowlevel.checkpoint()
        self._drop_expired()
        raise NotImplementedError

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`."""
        await trio.lowlevel.checkpoint()
        return ()

    def _keep(self, record: TaskRecord) -> None:
        before = self._tasks.get(record.id)
        change = record.weight - (0 if before is None else before.weight)
        owner = self._owners[record.owner]
        owner.tasks[record.id] = None
        owner.weight += change
        self._weight += change
        self._tasks[record.id] = record

    def _drop_expired(self) -> None:
        now = self._clock()
        for record in [each for each in self._tasks.values() if _is_over(each, now)]:
            del self._tasks[record.id]
            owner = self._owners[record.owner]
            del owner.tasks[record.id]
            owner.weight -= record.weight
            self._weight -= record.weight
            if not owner.tasks:
                del self._owners[record.owner]


def _is_over(record: TaskRecord, now: float) -> bool:
    return record.ttl is not None and now >= record.created + record.ttl
