"""Shared state in a SQLite file: tasks and values, of all processes of one machine. The rest is in memory.

Steps (`mcp_actors.shared.sqlite_steps`) that wait for a connection are run together: by one thread at a time, in one
transaction, with one write to the disk.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import attrs
import outcome
import trio

from mcp_actors.abc.shared import EventLog, TaskBounds, TaskRecord
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.shared import sqlite_steps
from mcp_actors.shared.memory import MemoryState
from mcp_actors.shared.sqlite_steps import Place
from mcp_actors.supervision.containment import outliving, start_again
from mcp_actors.supervision.logging import RareWarning, log
from mcp_actors.supervision.task_kinds import SHARED_STATE, SQLITE_LEASE, SQLITE_WORKER

__all__ = [
    "DEFAULT_LEASE",
    "DEFAULT_TIMEOUT",
    "BatchedConnection",
    "FileStep",
    "SqliteShared",
    "SqliteState",
    "SqliteTaskStore",
    "SqliteValueStore",
]


# Seconds. A process that is merely busy renews in time; tasks of one that died wait so long until they are ended.
DEFAULT_LEASE = 10.0
# Seconds. A commit takes milliseconds; a disk that takes longer than this does not work.
DEFAULT_TIMEOUT = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_OF_MACOS = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
_BOOT_ID_TIME = 2.0
# Steps of one transaction: other processes wait for its end.
MAX_BATCH = 256
# Steps that wait, and their bytes; more are refused.
MAX_WAITING = 8192
MAX_WAITING_BYTES = 64 * 1024 * 1024

Result = TypeVar("Result", covariant=True)


class FileStep(Protocol[Result]):
    """A function of a connection, which runs in a thread and inside a transaction."""

    def __call__(self, connection: sqlite3.Connection, /) -> Result: ...


@attrs.define(eq=False)
class _WaitingStep:
    step: FileStep[Any]
    weight: int
    done: trio.Event = attrs.field(factory=trio.Event)
    result: outcome.Outcome[Any] | None = None
    given_up: bool = False


class BatchedConnection:
    """A connection that one thread at a time uses, for all the steps that wait for it.

    Args:
        connection: It is used by this object alone, until `finish` returns.
        begin: The statement that begins a transaction: ``BEGIN IMMEDIATE`` for steps that write.
        timeout: Seconds that a step may take, waiting included.
        path: The file.
    """

    def __init__(self, connection: sqlite3.Connection, begin: str, timeout: float, path: str) -> None:
        self._connection = connection
        self._begin = begin
        self._timeout = timeout
        # A thread that is stuck in the file system keeps its token, so that there is never a second one.
        self._limiter = trio.CapacityLimiter(1)
        self._waiting: deque[_WaitingStep] = deque()
        self._weight = 0
        self._arrived = trio.Event()
        self._file, self._identity = path, _identity(path)
        self._failed_weight = 0
        self._has_changed = True
        """Whether the last transaction has written something, or the connection is one for reading."""
        self.failing = RareWarning(
            "the file of tasks cannot be used: calls that need it are refused",
            over="the file of tasks can be used again",
        )

    def __repr__(self) -> str:
        return f"<BatchedConnection {len(self._waiting)} waiting>"

    async def run(self, step: FileStep[Result], weight: int = 0) -> Result:
        """Runs a step and returns its result when its transaction is committed.

        If it is cancelled, the step is run or not run.

        Args:
            step: The function.
            weight: Bytes that it holds while it waits.

        Raises:
            SharedStateUnavailable: The file cannot be read or written, is locked, or it took too long; the step
                may have been run.
        """
        if len(self._waiting) >= MAX_WAITING or self._weight + weight > max(MAX_WAITING_BYTES, weight):
            await trio.lowlevel.checkpoint()
            raise SharedStateUnavailable("tasks", f"{len(self._waiting)} steps wait for the file")
        waiting = _WaitingStep(step, weight)
        self._waiting.append(waiting)
        self._weight += weight
        self._arrived.set()
        try:
            with trio.move_on_after(self._timeout):
                await waiting.done.wait()
        finally:
            waiting.given_up = True
        if waiting.result is None:
            raise self._too_slow()
        result: Result = waiting.result.unwrap()
        return result

    async def work(self) -> None:
        """Runs what waits, until it is cancelled."""
        while True:
            batch = self._take()
            if not batch:
                self._arrived = trio.Event()
                await self._arrived.wait()
                continue
            try:
                results = await trio.to_thread.run_sync(
                    self._transact,
                    [each.step for each in batch],
                    limiter=self._limiter,
                    abandon_on_cancel=True,
                )
            except (sqlite3.Error, OSError) as error:
                self.failing(str(error), file=self._file)
                self._failed_weight = sum(each.weight for each in batch)
                for each in batch:
                    each.result = outcome.Error(_unavailable(error))
            else:
                weight = sum(each.weight for each in batch)
                if self._has_changed and weight >= self._failed_weight:
                    self.failing.over()
                for each, result in zip(batch, results, strict=True):
                    each.result = result
            finally:
                for each in batch:
                    each.done.set()

    def _take(self) -> list[_WaitingStep]:
        batch: list[_WaitingStep] = []
        while self._waiting and len(batch) < MAX_BATCH:
            waiting = self._waiting.popleft()
            self._weight -= waiting.weight
            if not waiting.given_up:
                batch.append(waiting)
        return batch

    def _transact(self, steps: Sequence[FileStep[Any]]) -> list[outcome.Outcome[Any]]:
        """Runs steps in a transaction, in a thread. A step that refuses its arguments has changed nothing."""
        if _identity(self._file) != self._identity:
            # SQLite goes on with what no other process finds any more, and nobody after a restart.
            raise OSError("the file was deleted, moved or replaced; start the server again")
        before = self._connection.total_changes
        self._connection.execute(self._begin)
        try:
            results = [_outcome_of(step, self._connection) for step in steps]
            self._connection.execute("COMMIT")
            self._has_changed = self._begin == "BEGIN" or self._connection.total_changes > before
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return results

    async def finish(self, last: FileStep[object] | None = None) -> None:
        """Runs a last step and closes the connection, when nothing else uses it. It is bounded, and not cancelled.

        Raises:
            SharedStateUnavailable: The last step failed, or took too long.
        """

        def close() -> None:
            try:
                if last is not None:
                    self._transact([last])
            finally:
                self._connection.close()

        try:
            with trio.move_on_after(self._timeout, shield=True) as waiting:
                await trio.to_thread.run_sync(close, limiter=self._limiter, abandon_on_cancel=True)
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error
        if waiting.cancelled_caught:
            raise self._too_slow()

    def _too_slow(self) -> SharedStateUnavailable:
        cause = f"the file did not answer for {self._timeout:g} s"
        self.failing(cause, file=self._file)
        return SharedStateUnavailable("tasks", cause)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _outcome_of(step: FileStep[Any], connection: sqlite3.Connection) -> outcome.Outcome[Any]:
    try:
        return outcome.Value(step(connection))
    except (sqlite3.IntegrityError, ValueError, OverflowError) as error:
        return outcome.Error(error)


def _unavailable(error: Exception) -> SharedStateUnavailable:
    unavailable = SharedStateUnavailable("tasks", str(error))
    unavailable.__cause__ = error
    return unavailable


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
            return sqlite_steps.create(connection, self._place, self._clock(), record, bounds)

        try:
            return await self._writing.run(step, record.weight)
        except sqlite3.IntegrityError:
            text = "there is a task with this id: ids must be unguessable, and used once"
            raise ValueError(text) from None

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        return await self._reading.run(
            lambda connection: sqlite_steps.get(connection, self._place, self._clock(), ids)
        )

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        return await self._writing.run(
            lambda connection: sqlite_steps.replace(connection, self._place, self._clock(), record),
            record.weight,
        )

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. The page behind an unknown task, or another owner's, is empty.

        The place of a dropped task is known for an hour.
        """
        return await self._reading.run(
            lambda connection: sqlite_steps.page(connection, self._place, self._clock(), owner, after, limit)
        )

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`."""
        return await self._reading.run(
            lambda connection: sqlite_steps.abandoned(connection, self._place, self._clock(), limit)
        )


class SqliteValueStore:
    """A `mcp_actors.abc.ValueStore` in a file. The arguments are those of `SqliteTaskStore`."""

    spans_processes = True

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
        return f"<SqliteValueStore {self._place.node}>"

    async def load(self, key: str) -> bytes | None:
        """See `mcp_actors.abc.ValueStore.load`."""
        return await self._reading.run(
            lambda connection: sqlite_steps.load_value(connection, self._place, self._clock(), key)
        )

    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        """See `mcp_actors.abc.ValueStore.replace`."""

        def step(connection: sqlite3.Connection) -> bool:
            now = self._clock()
            return sqlite_steps.replace_value(connection, self._place, now, key, before, after, now + seconds)

        return await self._writing.run(step, len(before or b"") + len(after or b""))


class SqliteState:
    """The state that `SqliteShared` opens: tasks and values are in the file, all else is in memory.

    Args:
        memory: The node and its other roles.
        tasks: The tasks.
        values: The values.
        connections: What they are written and read with.
    """

    def __init__(
        self,
        memory: MemoryState,
        tasks: SqliteTaskStore,
        values: SqliteValueStore,
        connections: Sequence[BatchedConnection],
    ) -> None:
        self.node = memory.node
        self.sessions = memory.sessions
        self.events = memory.events
        self.bus = memory.bus
        self.replays = memory.replays
        self.tasks = tasks
        self.values = values
        self._connections = connections

    @property
    def failure(self) -> str | None:
        """See `mcp_actors.abc.OpenState.failure`."""
        causes = (each.failing.cause for each in self._connections)
        return next((cause for cause in causes if cause is not None), None)

    def __repr__(self) -> str:
        return f"<SqliteState {self.node}>"


class SqliteShared:
    """Tasks and values in a file, for the processes of one machine. A `mcp_actors.abc.SharedState`.

    They survive the death of all processes, and with it a loss of power: a change is on the disk before anyone
    learns of it. Sessions, events, the bus and the memory of what was used are those of each process alone. The file is
    made readable for its owner only, because it holds the arguments and results of tasks; it must be on a disk of this
    machine, not of the network, and must not be moved or deleted while a server runs. It does not shrink: the room of
    dropped tasks is used again.

    A node that is not heard of for the length of its lease is gone. The leases are measured by the clock of the machine
    since its start, so that setting the time does not end one. A lock that another program holds, a full disk and
    the like raise `~mcp_actors.errors.SharedStateUnavailable` for each call until they are over.

    Args:
        path: The file; it is made if it is not there, its folder is not.
        lease: Seconds; see `DEFAULT_LEASE`. It is renewed three times as often.
        timeout: Seconds that a call may take.
        events: The log of events; by default a `~mcp_actors.shared.MemoryEventLog` with its defaults.

    Raises:
        ValueError: A time is not positive.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease: float = DEFAULT_LEASE,
        timeout: float = DEFAULT_TIMEOUT,
        events: EventLog | None = None,
    ) -> None:
        if not (lease > 0 and timeout > 0):
            raise ValueError(
                f"lease and timeout are seconds and must be positive, not {lease!r} and {timeout!r}"
            )
        self._path = os.fspath(path)
        self._lease = lease
        self._timeout = timeout
        self._events = events

    def __repr__(self) -> str:
        return f"SqliteShared({self._path!r})"

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[SqliteState]:
        """See `mcp_actors.abc.SharedState.open`.

        Raises:
            SharedStateUnavailable: The file cannot be opened, or is not one of this version.
        """
        memory = MemoryState(self._events)
        place = Place(name, memory.node, await trio.to_thread.run_sync(_boot_id))
        writing, reading = await self._connect(place)
        values = SqliteValueStore(place, writing, reading)
        state = SqliteState(memory, SqliteTaskStore(place, writing, reading), values, (writing, reading))
        try:
            async with outliving(SHARED_STATE) as nursery:
                start_again(nursery, SQLITE_WORKER, writing.work, about="writing")
                start_again(nursery, SQLITE_WORKER, reading.work, about="reading")
                start_again(nursery, SQLITE_LEASE, self._renew, place, writing)
                yield state
        finally:
            await _close(place, writing, reading)

    async def _connect(self, place: Place) -> tuple[BatchedConnection, BatchedConnection]:
        def connect() -> tuple[sqlite3.Connection, sqlite3.Connection]:
            writing = sqlite_steps.open_database(self._path, self._timeout)
            try:
                writing.execute("BEGIN IMMEDIATE")
                sqlite_steps.renew(writing, place, time.time(), self._lease)
                writing.execute("COMMIT")
                return writing, sqlite_steps.open_connection(self._path, self._timeout)
            except BaseException:
                writing.close()
                raise

        try:
            writing, reading = await trio.to_thread.run_sync(connect)
        except (sqlite3.Error, OSError) as error:
            # An error of the system names the file a second time.
            reason = error.strerror if isinstance(error, OSError) else error
            raise SharedStateUnavailable("tasks", f"{self._path}: {reason}") from error
        return (
            BatchedConnection(writing, "BEGIN IMMEDIATE", self._timeout, self._path),
            BatchedConnection(reading, "BEGIN", self._timeout, self._path),
        )

    async def _renew(self, place: Place, writing: BatchedConnection) -> None:
        """Renews the lease of a node, and drops what is over in steps."""
        renewing = _renewing(place, self._lease)
        failed = False
        while True:
            await trio.sleep(self._lease / 3)
            try:
                while await writing.run(renewing) >= sqlite_steps.DROPPED_AT_ONCE:
                    pass
            except SharedStateUnavailable as error:
                if not failed:
                    log.warning("the lease of this node cannot be renewed", cause=error.cause)
                failed = True
            else:
                if failed:
                    log.info("the lease of this node is renewed again")
                failed = False


def _renewing(place: Place, lease: float) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: sqlite_steps.renew(connection, place, time.time(), lease)


async def _close(place: Place, writing: BatchedConnection, reading: BatchedConnection) -> None:
    try:
        try:
            await reading.finish()
        finally:
            await writing.finish(lambda connection: sqlite_steps.leave(connection, place))
    except SharedStateUnavailable as error:
        log.warning("this node could not say that it ends: others wait for its lease", cause=error.cause)


def _boot_id() -> str:
    """Names the time since the start of the machine; empty where the system has no name for it."""
    try:
        if sys.platform == "darwin":
            done = subprocess.run(
                _BOOT_ID_OF_MACOS, capture_output=True, text=True, timeout=_BOOT_ID_TIME, check=True
            )
            return done.stdout.strip()
        return _BOOT_ID.read_text().strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def from_url(url: str) -> SqliteShared:
    """Returns the state in the file that a URL names.

    Raises:
        ValueError: The URL has no path, or a host or options.
    """
    parts = urlsplit(url)
    if not parts.path.strip("/") or parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "the URL of a file is 'sqlite:///absolute/path' or 'sqlite:relative/path', without a host or options"
        )
    path = unquote(parts.path)
    if sys.platform == "win32" and path[2:3] == ":":
        path = path.removeprefix("/")  # sqlite:///C:/tasks.db names a drive
    return SqliteShared(path)
