"""The steps of the store: functions of a connection that run in a thread, inside a transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.shared.stored_records import read_record, read_records, stored_record

__all__ = [
    "Place",
    "abandoned",
    "create",
    "drop_expired",
    "get",
    "leave",
    "now_of_machine",
    "page",
    "renew",
    "replace",
]

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
    """Seconds of a clock that all processes of the machine share, and that nobody sets: leases are measured by it."""
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
    return drop_expired(connection, now)


def leave(connection: sqlite3.Connection, place: Place) -> None:
    """Says that this node has ended."""
    connection.execute("DELETE FROM nodes WHERE server = ? AND name = ?", (place.server, place.node))
