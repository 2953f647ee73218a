"""The tasks, in Redis: see `mcp_actors.shared.redis.task_scripts` for its keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import trio

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.shared.redis.keys import Keys, short
from mcp_actors.shared.redis.link import RedisLink, Script
from mcp_actors.shared.redis.task_scripts import ABANDONED, CREATE, GET, PAGE, REPLACE
from mcp_actors.shared.stored_records import read_record, read_records, stored_record

__all__ = ["RedisTaskStore"]

_Side = Literal["owner", "all"]
_OUTCOMES: dict[int, _Side | None] = {0: None, 1: "owner", 2: "all"}


class RedisTaskStore:
    """A `mcp_actors.abc.TaskStore` in Redis.

    Tasks survive their processes, and a restart of Redis as far as it is told to keep what it has.

    Args:
        link: The connection.
        keys: The names of the keys.
        lease: Seconds for which every node may come back after an outage, before its tasks count as abandoned.
    """

    spans_processes = True
    survives = True

    def __init__(self, link: RedisLink, keys: Keys, lease: float) -> None:
        self._link = link
        self._keys = keys
        self._lease = lease

    def __repr__(self) -> str:
        return f"<RedisTaskStore {self._keys.root}>"

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """See `mcp_actors.abc.TaskStore.create`."""
        outcome = await self._run(
            CREATE, *_values(record), repr(record.created), *bounds, weight=record.weight
        )
        return _OUTCOMES[outcome]

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        found = await self._run(GET, *(short(id) for id in ids))
        pairs = [(id, read_record(data)) for id, data in zip(ids, found, strict=True) if data is not None]
        return {id: record for id, record in pairs if record is not None}

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        return bool(await self._run(REPLACE, *_values(record), weight=record.weight))

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. Nothing is behind a task that was dropped more than an hour ago."""
        found = await self._run(PAGE, short(owner), "" if after is None else short(after), limit)
        return read_records(found)

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`. After an outage, each node has the time of a lease to come back."""
        since = self._link.connected_at
        all_are_back = since is not None and trio.current_time() >= since + self._lease
        return read_records(await self._run(ABANDONED, limit, int(all_are_back)))

    async def _run(self, script: Script, *arguments: Any, weight: int = 0) -> Any:
        return await self._link.run_script(
            "tasks", script, self._keys.root, repr(time.time()), *arguments, weight=weight
        )


def _values(record: TaskRecord) -> tuple[Any, ...]:
    expiry = "" if record.ttl is None else repr(record.created + record.ttl)
    terminal = int(record.is_terminal)
    return (
        short(record.id),
        short(record.owner),
        stored_record(record),
        record.revision,
        terminal,
        record.node,
        expiry,
        record.weight,
    )
