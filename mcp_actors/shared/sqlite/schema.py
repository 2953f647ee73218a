"""The tables of the file, and how it is opened. Everything here blocks and runs in a thread."""

from __future__ import annotations

import os
import sqlite3
import time

__all__ = ["APPLICATION_ID", "VERSION", "open_connection", "open_database"]

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


def open_database(path: str, timeout: float) -> sqlite3.Connection:
    """Opens the file, or makes it, with its tables, for its owner alone.

    Raises:
        OSError: The file cannot be made.
        sqlite3.Error: It is no database, or that of another program or of a later version, or is locked for too long.
    """
    # SQLite would make it for everybody; what it makes beside it has the mode of this one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
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
