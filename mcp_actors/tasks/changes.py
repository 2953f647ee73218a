"""Changes tasks in the store: each change is a compare and swap, so that the first terminal state wins."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.abc import TaskRecord, TaskStore
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.tasks.watch import TaskWatch

__all__ = ["Changes", "Step"]

# Seconds for which a cancellation waits for a store at most.
STORE_BOUND = 10.0

Step = Callable[[TaskRecord, float], TaskRecord | None]
"""Makes a task's next value at a time, ``None`` if there is nothing to change; see `mcp_actors.tasks.states`."""


class Changes:
    """The changes of this node.

    Args:
        store: Where the tasks are.
        watch: Is told of each change.
        announce: Is given the id of each task that was changed, for other nodes and for those who listen.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        store: TaskStore,
        watch: TaskWatch,
        announce: Callable[[TaskRecord], None],
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self.watch = watch
        self.clock = clock
        self._announce = announce

    async def apply(self, record: TaskRecord, step: Step) -> TaskRecord | None:
        """Makes one change, looking again as often as others are faster.

        Args:
            record: The newest value that the caller knows.
            step: Makes the next value.

        Returns:
            The newest value: with the change, or without it if there was nothing to change; ``None`` if the task is
            gone.

        Raises:
            SharedStateUnavailable: The state cannot be reached; the change may have been made.
        """
        while True:
            after = step(record, self.clock())
            if after is None:
                return record
            if await self._replace(after):
                self.announce(after)
                return after
            found = (await self.store.get([record.id])).get(record.id)
            if found is None:
                return None
            record = found

    async def _replace(self, after: TaskRecord) -> bool:
        """Keeps a change. One that was kept and not told of would leave its function waiting: no cancellation cuts it.

        The store answers, or gives up, within a time of its own; a store that does neither is given up here.
        """
        try:
            with trio.move_on_after(STORE_BOUND, shield=True):
                return await self.store.replace(after)
            raise SharedStateUnavailable("tasks", f"the store has not answered for {STORE_BOUND:g} s")
        except SharedStateUnavailable:
            # It may have been kept all the same: whoever waits looks as soon as the store can be reached.
            self.watch.changed_elsewhere(after.id)
            raise

    def announce(self, record: TaskRecord) -> None:
        """Tells everybody of a value that was kept. Never waits."""
        self.watch.changed(record)
        self._announce(record)
