"""`SqliteShared`: opens the file as a node of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mcp_actors.abc.shared import EventLog
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.shared.memory import MemoryState
from mcp_actors.shared.sqlite import schema, steps
from mcp_actors.shared.sqlite.batches import BatchedConnection
from mcp_actors.shared.sqlite.steps import Place
from mcp_actors.shared.sqlite.tasks import SqliteTaskStore
from mcp_actors.supervision import outliving, start_again
from mcp_actors.task_kinds import SHARED_STATE, SQLITE_LEASE, SQLITE_WORKER

__all__ = ["DEFAULT_LEASE", "DEFAULT_TIMEOUT", "SqliteShared", "SqliteState"]

# Seconds. A process that is merely busy renews in time; tasks of one that died wait so long until they are ended.
DEFAULT_LEASE = 10.0
# Seconds. A commit takes milliseconds; a disk that takes longer than this does not work.
DEFAULT_TIMEOUT = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_OF_MACOS = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
_BOOT_ID_TIME = 2.0


class SqliteState:
    """The state that `SqliteShared` opens: the tasks are in the file, all else is in memory.

    Args:
        memory: The node and its other roles.
        tasks: The tasks.
    """

    def __init__(self, memory: MemoryState, tasks: SqliteTaskStore) -> None:
        self.node = memory.node
        self.sessions = memory.sessions
        self.events = memory.events
        self.bus = memory.bus
        self.replays = memory.replays
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"<SqliteState {self.node}>"


class SqliteShared:
    """Tasks in a file, for the processes of one machine. A `mcp_actors.abc.SharedState`.

    The tasks survive the death of all processes, and with it a loss of power: a change is on the disk before anybody is
    told of it. Sessions, events, the bus and the memory of what was used are those of each process alone. The file is
    made readable for its owner only, because it holds the arguments and results of tasks; it must be on a disk of this
    machine, not of the network, and must not be moved or deleted while a server runs. It does not shrink: the room of
    dropped tasks is used again.

    A node that is not heard of for the length of its lease is gone. The leases are measured by the clock of the machine
    since its start, so that nobody ends one by setting the time. A lock that another program holds, a full disk and
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
        state = SqliteState(memory, SqliteTaskStore(place, writing, reading))
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
            writing = schema.open_database(self._path, self._timeout)
            try:
                writing.execute("BEGIN IMMEDIATE")
                steps.renew(writing, place, time.time(), self._lease)
                writing.execute("COMMIT")
                return writing, schema.open_connection(self._path, self._timeout)
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
            BatchedConnection(writing, "BEGIN IMMEDIATE", self._timeout),
            BatchedConnection(reading, "BEGIN", self._timeout),
        )

    async def _renew(self, place: Place, writing: BatchedConnection) -> None:
        """Renews the lease of a node, and drops what is over in steps."""
        renewing = _renewing(place, self._lease)
        failed = False
        while True:
            await trio.sleep(self._lease / 3)
            try:
                while await writing.run(renewing) >= steps.DROPPED_AT_ONCE:
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
    return lambda connection: steps.renew(connection, place, time.time(), lease)


async def _close(place: Place, writing: BatchedConnection, reading: BatchedConnection) -> None:
    try:
        try:
            await reading.finish()
        finally:
            await writing.finish(lambda connection: steps.leave(connection, place))
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
