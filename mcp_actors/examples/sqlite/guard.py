"""Connections to one SQLite file that cannot be talked into anything else.

What keeps a read-only server read-only, each of them enough by itself: the file is opened with ``mode=ro``,
``query_only`` is on, and an authorizer (which holds for the writable server too) refuses what reaches past the one
file: ``ATTACH``, ``VACUUM INTO``, ``load_extension`` and every pragma that is not listed here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from mcp_actors.errors import ToolError

MAX_VALUE_BYTES = 32 * 1024 * 1024  # no string or blob may grow past it, also in the middle of an expression
MAX_PATTERN_BYTES = 1_000  # LIKE and GLOB run inside one step, where nothing can interrupt them
BUSY_SECONDS = 0.5  # how long to wait for a lock; SQLite cannot be interrupted while it waits
STEPS_PER_CHECK = 10_000  # SQLite's virtual machine looks this often whether the call was cancelled

# Pragmas that only tell something. The first kind takes the name of a table or index, the second takes nothing:
# with an argument those would set something.
_ABOUT_A_NAME = frozenset(
    (
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "table_info",
        "table_list",
        "table_xinfo",
    )
)
_BY_THEMSELVES = frozenset(
    (
        "application_id",
        "data_version",
        "encoding",
        "freelist_count",
        "page_count",
        "page_size",
        "schema_version",
        "user_version",
    )
)
# The first runs a library, the second tells an address in memory.
_DANGEROUS_FUNCTIONS = frozenset(("load_extension", "fts3_tokenizer"))


def connect(file: Path, *, writable: bool) -> sqlite3.Connection:
    """Opens ``file``, which must exist; raises `ToolError` if it cannot be opened."""
    with readable_errors():
        connection = sqlite3.connect(
            f"{file.as_uri()}?mode={'rw' if writable else 'ro'}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,  # a statement is its own transaction: no BEGIN behind the caller's back
            check_same_thread=False,  # the steps of one call may run in different threads, never two at once
        )
        connection.text_factory = _decode_text
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA foreign_keys = ON" if writable else "PRAGMA query_only = ON")
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(_stop_when_cancelled, STEPS_PER_CHECK)
    return connection


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turns SQLite's errors into `ToolError`, with SQLite's own words."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise ToolError(f"the database cannot be read: {error}") from error


def _stop_when_cancelled() -> int:
    """Ends a statement whose call was cancelled: SQLite takes any exception here as a stop."""
    trio.from_thread.check_cancelled()
    return 0


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, source: str | None
) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        allowed = name in _ABOUT_A_NAME or (name in _BY_THEMSELVES and second is None)
    elif action == sqlite3.SQLITE_ATTACH:
        allowed = first == ""  # a plain VACUUM attaches a nameless temporary file
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in _DANGEROUS_FUNCTIONS
    else:
        allowed = True
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # SQLite does not check what is stored as text
