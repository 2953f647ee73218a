"""The tasks in a file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.shared.sqlite import steps
from mcp_actors.shared.sqlite.batches import BatchedConnection
from mcp_actors.shared.sqlite.steps import Place

__all__ = ["SqliteTaskStore"]


class SqliteTaskStore:
    """A `mcp_actors.abc.TaskStore` in a file, which all processes of one machine may open.

    Args:
        place: This node.
        writing: The connection for what changes tasks.
        reading: The connection for the rest; nothing that is written holds it up.
        clock: Returns seconds since the epoch, to which the times of the records are compared.
    """

    def __init__(
        self,
        place: Place,
        writing: BatchedConnection,
        reading: BatchedConnection,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._writing = writing
        self._reading = reading
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SqliteTaskStore {self._place.node}>"

    @property
    def spans_processes(self) -> bool:
        """True: all processes that open the file see its tasks."""
        return True

    @property
    def survives(self) -> bool:
        """True: the file is there when no process is."""
        return True

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """See `mcp_actors.abc.TaskStore.create`.

        Raises:
            SharedStateUnavailable: The file cannot be written; the task may be there, and is abandoned then.
            ValueError: There is a task with this id.
        """

        def step(connection: sqlite3.Connection) -> Literal["owner", "all"] | None:
            return steps.create(connection, self._place, self._clock(), record, bounds)

        try:
            return await self._writing.run(step, record.weight)
        except sqlite3.IntegrityError:
            text = "there is a task with this id: ids must be unguessable, and used once"
            raise ValueError(text) from None

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        return await self._reading.run(
            lambda connection: steps.get(connection, self._place, self._clock(), ids)
        )

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        return await self._writing.run(
            lambda connection: steps.replace(connection, self._place, self._clock(), record), record.weight
        )

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. Behind a task that is not known, or is another owner's, there is none.

        The place of a dropped task is known for an hour.
        """
        return await self._reading.run(
            lambda connection: steps.page(connection, self._place, self._clock(), owner, after, limit)
        )

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`."""
        return await self._reading.run(
            lambda connection: steps.abandoned(connection, self._place, self._clock(), limit)
        )
