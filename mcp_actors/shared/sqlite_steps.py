"""The tables of the SQLite file, and the steps of its store.

Everything here blocks and runs in a thread. A step is a function of a connection, and runs inside a transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.supervision.logging import log

__all__ = [
    "APPLICATION_ID",
    "VERSION",
    "Place",
    "abandoned",
    "create",
    "drop_expired",
    "get",
    "leave",
    "load_value",
    "now_of_machine",
    "open_connection",
    "open_database",
    "page",
    "read_record",
    "read_records",
    "renew",
    "replace",
    "replace_value",
    "stored_record",
]


# -- tasks as bytes, also for other stores outside of the process ------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TaskRecord).decode


def stored_record(record: TaskRecord) -> bytes:
    """Returns the bytes of a task."""
    return _encode(record)


def read_record(data: object) -> TaskRecord | None:
    """Returns the task that a store has kept; ``None`` for anything else.

    Others can write to a store: programs of another version, or people. If what they have written is not a task, it
    costs no other task anything, and is dropped with its time.
    """
    try:
        return _decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        log.warning("a stored task cannot be read and is passed over", reason=str(error)[:200])
        return None


def read_records(found: Iterable[object]) -> list[TaskRecord]:
    """Returns the tasks that a store has kept, and leaves out anything else."""
    return [record for data in found if (record := read_record(data)) is not None]


# -- the file ----------------------------------------------------------------------------------------------------------

_VALUES = """
CREATE TABLE IF NOT EXISTS stored_values (
    server TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, expires REAL NOT NULL, PRIMARY KEY (server, name)
) WITHOUT ROWID
"""
# "mcpa": the file says whose it is, in the place that SQLite has for that.
APPLICATION_ID = 0x6D637061
VERSION = 1
# Seconds between two tries to set a file up that another process is just setting up.
_RETRY = 0.02

# `bytes` and `tasks` of `totals` are kept by triggers, so that no step can forget them. `dropped` remembers for a while
# where a task stood that clients may page behind.
_SCHEMA = """
CREATE TABLE tasks (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    server TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
    terminal INTEGER NOT NULL, revision INTEGER NOT NULL, expires REAL, weight INTEGER NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (server, id)
);
CREATE INDEX tasks_of_owner ON tasks (server, owner, seq);
CREATE INDEX tasks_that_expire ON tasks (expires) WHERE expires IS NOT NULL;
CREATE INDEX tasks_that_run ON tasks (server, node) WHERE terminal = 0;

CREATE TABLE dropped (
    server TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, seq INTEGER NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (server, id)
) WITHOUT ROWID;
CREATE INDEX dropped_until ON dropped (until);

CREATE TABLE nodes (
    server TEXT NOT NULL, name TEXT NOT NULL, boot TEXT NOT NULL, renewed REAL NOT NULL, until REAL NOT NULL,
    PRIMARY KEY (server, name)
) WITHOUT ROWID;

CREATE TABLE totals (
    server TEXT NOT NULL, of_all INTEGER NOT NULL, owner TEXT NOT NULL,
    tasks INTEGER NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (server, of_all, owner)
) WITHOUT ROWID;
CREATE TRIGGER task_created AFTER INSERT ON tasks BEGIN
    INSERT INTO totals VALUES (new.server, 0, new.owner, 1, new.weight), (new.server, 1, '', 1, new.weight)
        ON CONFLICT DO UPDATE SET tasks = tasks + 1, bytes = bytes + new.weight;
END;
CREATE TRIGGER task_replaced AFTER UPDATE OF weight ON tasks BEGIN
    UPDATE totals SET bytes = bytes + new.weight - old.weight WHERE server = new.server
        AND (of_all = 0 AND owner = new.owner OR of_all = 1 AND owner = '');
END;
CREATE TRIGGER task_dropped AFTER DELETE ON tasks BEGIN
    UPDATE totals SET tasks = tasks - 1, bytes = bytes - old.weight WHERE server = old.server
        AND (of_all = 0 AND owner = old.owner OR of_all = 1 AND owner = '');
    DELETE FROM totals WHERE server = old.server AND of_all = 0 AND owner = old.owner AND tasks = 0;
END;
"""


# Who may write the file may give anybody the tasks of anybody.
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def open_database(path: str, timeout: float) -> sqlite3.Connection:
    """Opens the file, or makes it, with its tables, for its owner alone.

    Raises:
        OSError: The file cannot be made.
        sqlite3.Error: It is not a database, or one of another program or a later version, or locked for too long.
    """
    # SQLite would make it for everybody; what it makes beside it has the mode of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if sys.platform != "win32" and mode & _OF_OTHERS:
        raise OSError(
            errno.EPERM, f"other users may write it (mode {mode:o}): chmod 600 it, or name another file"
        )
    end = time.monotonic() + timeout
    while True:
        connection = open_connection(path, timeout)
        try:
            _set_up(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            # Changing the journal's mode does not wait for others, whatever the timeout says.
            if time.monotonic() > end or "locked" not in str(error):
                raise
            time.sleep(_RETRY)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def open_connection(path: str, timeout: float) -> sqlite3.Connection:
    """Opens a connection to a file that is there. Other threads may use it, one at a time."""
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    # A commit is on the disk when it returns, so that a result that a client saw survives a loss of power. With
    # NORMAL only the death of processes is survived. What waits together is committed together, which pays for it.
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    # A file of another program must be left as it is, its journal's mode too.
    _is_new(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection):
            _create(connection)
        # A file that an earlier version has made has no such table.
        connection.execute(_VALUES)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_new(connection: sqlite3.Connection) -> bool:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if (application, version) == (APPLICATION_ID, VERSION):
        return False
    if application or version or connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise sqlite3.DatabaseError(
            f"the file belongs to another program, or to another version of this one ({version}, not {VERSION}): "
            "name another file"
        )
    return True


def _create(connection: sqlite3.Connection) -> None:
    statement = ""
    for line in _SCHEMA.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


# -- steps -------------------------------------------------------------------------------------------------------------

# Tasks that are dropped in one transaction: more would hold up what waits behind them.
DROPPED_AT_ONCE = 200
# Seconds for which the place of a dropped task is remembered, for clients in the middle of their pages.
DROPPED_REMEMBERED = 3600.0

# Seconds: a lease that was renewed so far ahead of now is one of an earlier start of the machine, where its name is not
# known. Less would be wrong: while this process reads the clock and then the leases, others renew theirs.
STRANGE = 60.0


class Place(NamedTuple):
    """A node in a file."""

    server: str
    node: str
    boot: str
    """Names the time between two starts of the machine."""


def now_of_machine() -> float:
    """Seconds of a clock that all processes of the machine share and cannot set: leases are measured by it."""
    return time.monotonic()


def create(
    connection: sqlite3.Connection, place: Place, now: float, record: TaskRecord, bounds: TaskBounds
) -> Literal["owner", "all"] | None:
    """Keeps a new task if there is room, once the tasks whose time is over have made some."""
    full = _full(connection, place, record, bounds)
    while full and drop_expired(connection, now):
        full = _full(connection, place, record, bounds)
    if full:
        return full
    connection.execute(
        "INSERT INTO tasks (server, id, owner, node, terminal, revision, expires, weight, record)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (place.server, record.id, record.owner, *_columns(record)),
    )
    return None


def _full(
    connection: sqlite3.Connection, place: Place, record: TaskRecord, bounds: TaskBounds
) -> Literal["owner", "all"] | None:
    for scope, owner, tasks, size in (
        (0, record.owner, bounds.of_owner, bounds.bytes_of_owner),
        (1, "", bounds.of_all, bounds.bytes_of_all),
    ):
        row = connection.execute(
            "SELECT tasks, bytes FROM totals WHERE server = ? AND of_all = ? AND owner = ?",
            (place.server, scope, owner),
        ).fetchone()
        held, weight = row or (0, 0)
        if held >= tasks or weight + record.weight > size:
            return "all" if scope else "owner"
    return None


def _columns(record: TaskRecord) -> tuple[str, bool, int, float | None, int, bytes]:
    expires = None if record.ttl is None else record.created + record.ttl
    return record.node, record.is_terminal, record.revision, expires, record.weight, stored_record(record)


def get(
    connection: sqlite3.Connection, place: Place, now: float, ids: Sequence[str]
) -> dict[str, TaskRecord]:
    """Returns those tasks that are there."""
    found = {}
    for id in ids:
        row = connection.execute(
            "SELECT record FROM tasks WHERE server = ? AND id = ? AND (expires IS NULL OR expires > ?)",
            (place.server, id, now),
        ).fetchone()
        record = read_record(row[0]) if row else None
        if record is not None:
            found[id] = record
    return found


def replace(connection: sqlite3.Connection, place: Place, now: float, record: TaskRecord) -> bool:
    """Keeps the next value of a task."""
    changed = connection.execute(
        "UPDATE tasks SET node = ?, terminal = ?, revision = ?, expires = ?, weight = ?, record = ?"
        " WHERE server = ? AND id = ? AND terminal = 0 AND revision = ? AND (expires IS NULL OR expires > ?)",
        (*_columns(record), place.server, record.id, record.revision - 1, now),
    )
    return changed.rowcount == 1


def page(
    connection: sqlite3.Connection, place: Place, now: float, owner: str, after: str | None, limit: int
) -> list[TaskRecord]:
    """Returns tasks of an owner in the order of their creation."""
    begin = 0
    if after is not None:
        key = (place.server, after, owner)
        row = connection.execute(
            "SELECT seq FROM tasks WHERE server = ? AND id = ? AND owner = ? UNION ALL"
            " SELECT seq FROM dropped WHERE server = ? AND id = ? AND owner = ?",
            (*key, *key),
        ).fetchone()
        if row is None:
            return []
        begin = row[0]
    rows = connection.execute(
        "SELECT record FROM tasks WHERE server = ? AND owner = ? AND seq > ? AND (expires IS NULL OR expires > ?)"
        " ORDER BY seq LIMIT ?",
        (place.server, owner, begin, now, limit),
    )
    return read_records(record for (record,) in rows)


def abandoned(connection: sqlite3.Connection, place: Place, now: float, limit: int) -> list[TaskRecord]:
    """Returns tasks that run at no node that is there. This node is there, whatever its lease says."""
    machine = now_of_machine()
    rows = connection.execute(
        "SELECT record FROM tasks WHERE server = ? AND terminal = 0 AND node <> ? AND node NOT IN"
        " (SELECT name FROM nodes WHERE server = ? AND boot = ? AND renewed <= ? AND until > ?)"
        " AND (expires IS NULL OR expires > ?) LIMIT ?",
        (place.server, place.node, place.server, place.boot, machine + STRANGE, machine, now, limit),
    )
    return read_records(record for (record,) in rows)


def drop_expired(connection: sqlite3.Connection, now: float) -> int:
    """Drops some of the tasks whose time is over, of every server, and returns how many."""
    expired = "SELECT seq FROM tasks WHERE expires <= ? ORDER BY expires LIMIT ?"
    connection.execute(
        "INSERT OR REPLACE INTO dropped SELECT server, id, owner, seq, ?"
        f" FROM tasks WHERE seq IN ({expired})",
        (now + DROPPED_REMEMBERED, now, DROPPED_AT_ONCE),
    )
    dropped = connection.execute(f"DELETE FROM tasks WHERE seq IN ({expired})", (now, DROPPED_AT_ONCE))
    return dropped.rowcount


def renew(connection: sqlite3.Connection, place: Place, now: float, lease: float) -> int:
    """Says that this node is there for the length of its lease, and clears away. Returns how many tasks went."""
    machine = now_of_machine()
    connection.execute(
        "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)",
        (place.server, place.node, place.boot, machine, machine + lease),
    )
    connection.execute("DELETE FROM nodes WHERE boot <> ? OR until <= ?", (place.boot, machine))
    connection.execute(
        "DELETE FROM dropped WHERE (server, id) IN (SELECT server, id FROM dropped WHERE until <= ? LIMIT ?)",
        (now, DROPPED_AT_ONCE),
    )
    connection.execute(
        "DELETE FROM stored_values WHERE (server, name) IN "
        "(SELECT server, name FROM stored_values WHERE expires <= ? LIMIT ?)",
        (now, DROPPED_AT_ONCE),
    )
    return drop_expired(connection, now)


def load_value(connection: sqlite3.Connection, place: Place, now: float, key: str) -> bytes | None:
    """Returns the value of a key."""
    found = connection.execute(
        "SELECT value FROM stored_values WHERE server = ? AND name = ? AND expires > ?",
        (place.server, key, now),
    ).fetchone()
    return None if found is None else bytes(found[0])


def replace_value(
    connection: sqlite3.Connection,
    place: Place,
    now: float,
    key: str,
    before: bytes | None,
    after: bytes | None,
    until: float,
) -> bool:
    """Puts a value in the place of another one, if that is there."""
    if load_value(connection, place, now, key) != before:
        return False
    if after is None:
        connection.execute("DELETE FROM stored_values WHERE server = ? AND name = ?", (place.server, key))
    else:
        connection.execute(
            "INSERT OR REPLACE INTO stored_values VALUES (?, ?, ?, ?)", (place.server, key, after, until)
        )
    return True


def leave(connection: sqlite3.Connection, place: Place) -> None:
    """Says that this node has ended."""
    connection.execute("DELETE FROM nodes WHERE server = ? AND name = ?", (place.server, place.node))
