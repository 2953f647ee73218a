"""Changes tasks in the store: each change is a compare and swap, so that the first terminal state wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio

from mcp_actors.abc import TaskRecord, TaskStore
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.logging import log
from mcp_actors.tasks.states import seconds_left

__all__ = ["Changes", "Step", "Take", "TaskWatch"]


# Seconds for which a cancellation waits for a store at most.
STORE_BOUND = 10.0

Step = Callable[[TaskRecord, float], TaskRecord | None]
"""Makes a task's next value at a time, ``None`` if there is nothing to change; see `mcp_actors.tasks.states`."""


class Changes:
    """The changes of this node.

    Args:
        store: Where the tasks are.
        watch: Receives each change.
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
        """Makes one change; tries again as often as another change came first.

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
        """Keeps a change. No cancellation cuts it: a change kept and not published would leave its function waiting.

        The store answers, or gives up, within a time of its own; a store that does neither is given up here.
        """
        try:
            with trio.move_on_after(STORE_BOUND, shield=True):
                return await self.store.replace(after)
            raise SharedStateUnavailable("tasks", f"the store has not answered for {STORE_BOUND:g} s")
        except SharedStateUnavailable:
            # It may have been kept all the same: those who wait look as soon as the store can be reached.
            self.watch.changed_elsewhere(after.id)
            raise

    def announce(self, record: TaskRecord) -> None:
        """Announces a value that was kept, at this node and at the others. Never waits."""
        self.watch.changed(record)
        self._announce(record)


# -- Those who wait for a task learn what became of it, wherever it was changed ---

Take = Callable[[TaskRecord | None], None]
"""Is given a task's newest value, or ``None`` once it is gone. It must neither wait nor raise."""

# Seconds between two looks where processes share a store and changes are not announced: a person who answers
# or cancels hardly notices it, and one query for all tasks costs a database on the same machine next to nothing.
LOOK_EVERY = 0.5


class TaskWatch:
    """The tasks that this node waits for. A change made here is seen at once, one made elsewhere at the next look.

    Args:
        store: Where the tasks are.
        every: Seconds between two looks at all that is waited for; ``None`` where changes are announced.
        listened: Returns the ids of tasks that clients listen for here: they are looked at as well.
        publish: Is given the id of such a task when a look finds it changed.
    """

    def __init__(
        self,
        store: TaskStore,
        every: float | None,
        listened: Callable[[], Iterable[str]],
        publish: Callable[[str], None],
    ) -> None:
        self._store = store
        self._every = every
        self._listened = listened
        self._publish = publish
        # The revisions of the tasks that clients listen for, as the last look found them.
        self._seen: dict[str, int] = {}
        self._interests: dict[str, dict[Take, None]] = {}
        self._dirty: set[str] = set()
        self._woken = trio.Event()

    def __repr__(self) -> str:
        return f"<TaskWatch of {len(self._interests)} tasks>"

    @contextmanager
    def interest(self, id: str, take: Take) -> Iterator[None]:
        """Has ``take`` called for every value of a task while the block runs. Values may be left out."""
        interests = self._interests.setdefault(id, {})
        interests[take] = None
        try:
            yield
        finally:
            del interests[take]
            if not interests:
                del self._interests[id]

    def changed(self, record: TaskRecord) -> None:
        """Announces a change that was made at this node to those who wait here."""
        self._announce(record.id, record)

    def changed_elsewhere(self, id: str) -> None:
        """Notes that a task was changed at another node. Never waits."""
        if id in self._interests:
            self._dirty.add(id)
            self._woken.set()

    def missed(self) -> None:
        """Notes that everything may have changed. Never waits."""
        self._dirty.update(self._interests)
        self._woken.set()

    async def run(self) -> None:
        """Looks at what may have changed elsewhere, until it is cancelled."""
        while True:
            with trio.move_on_after(math.inf if self._every is None else self._every):
                await self._woken.wait()
            self._woken = trio.Event()
            await self._look()

    async def _look(self) -> None:
        wanted = [id for id in self._dirty if id in self._interests]
        self._dirty.clear()
        if self._every is not None:
            wanted = list({**self._interests, **dict.fromkeys(self._listened())})
        if not wanted:
            return
        try:
            found = await self._store.get(wanted)
        except SharedStateUnavailable as error:
            log.debug("tasks could not be looked at", tasks=len(wanted), cause=error.cause)
            self._dirty.update(wanted)
            await trio.sleep(LOOK_EVERY)
            self._woken.set()
            return
        for id in wanted:
            self._announce(id, found.get(id))
        if self._every is not None:
            self._publish_found(found)

    def _publish_found(self, found: Mapping[str, TaskRecord]) -> None:
        revisions = {id: found[id].revision for id in self._listened() if id in found}
        for id, revision in revisions.items():
            if self._seen.get(id, revision) != revision:
                self._publish(id)
        self._seen = revisions

    def _announce(self, id: str, record: TaskRecord | None) -> None:
        for take in list(self._interests.get(id, ())):
            take(record)

    async def until(
        self, id: str, satisfied: Callable[[TaskRecord], bool], clock: Callable[[], float]
    ) -> TaskRecord | None:
        """Waits for a value of a task that satisfies the caller; returns ``None`` once the task is gone.

        Cancelled, it leaves nothing behind.

        Args:
            id: The task.
            satisfied: Whether a value is good enough.
            clock: Returns seconds since the epoch, by which a task's time ends.

        Raises:
            SharedStateUnavailable: The task could not be looked at when the wait began.
        """
        newest: list[TaskRecord | None] = []
        changed = trio.Event()

        def take(record: TaskRecord | None) -> None:
            newest[:] = [record]
            changed.set()

        with self.interest(id, take):
            record = (await self._store.get([id])).get(id)
            while True:
                if newest:
                    record = newest.pop()
                if record is None or satisfied(record):
                    return record
                changed = trio.Event()
                with trio.move_on_after(seconds_left(record, clock())) as out_of_time:
                    await changed.wait()
                if out_of_time.cancelled_caught:
                    return None
