"""Connections that reach one SQLite file and nothing else, and a program that runs one statement.

What keeps a read-only server read-only, each of them enough by itself: the file is opened with ``mode=ro``,
``query_only`` is on, and an authorizer (which holds for the writable server too) refuses what reaches past the one
file: ``ATTACH``, ``VACUUM INTO``, ``load_extension`` and every pragma that is not listed here.

A statement of a client runs in a process of its own, ``python -I -S guard.py`` with the `Order` as JSON on stdin.
SQLite looks whether it is interrupted between the steps of its virtual machine; a function that is called within one
step, such as ``instr`` or ``printf``, can work for minutes or days, and no thread can be stopped. A process can, and
the system bounds its memory; on macOS and Windows it does not, and only the time is bounded there. Each line that it
prints is a JSON object: ``{"arrived": 100}`` as rows come, then the result, or ``{"error": "..."}``. This file imports
the standard library alone: a process begins within 40 ms.
"""

from __future__ import annotations

import base64
import json
import math
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

if sys.platform != "win32":
    import resource

MAX_VALUE_BYTES = 32 * 1024 * 1024  # no string or blob may grow past it, also in the middle of an expression
MAX_PATTERN_BYTES = 1_000  # LIKE and GLOB take time in the square of it
MAX_RESULT_BYTES = 1_000_000  # a result is read by a model: far more than it can use, far less than hurts
MAX_MEMORY_BYTES = 512 * 1024 * 1024  # of addresses: a dozen values of the largest size, and the interpreter
ROWS_PER_STEP = 100  # rows fetched between two reports of progress
BUSY_SECONDS = 0.5  # how long to wait for a lock; SQLite cannot be interrupted while it waits
STEPS_PER_CHECK = 10_000  # SQLite's virtual machine looks this often whether the call was cancelled

Parameter = bool | int | float | str | None

# Pragmas that only report something. The first kind takes the name of a table or index, the second takes nothing:
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


class Order(TypedDict):
    """A statement and its limits. ``seconds`` of a processor's time end it, even if its parent is gone."""

    file: str
    writable: bool
    sql: str
    parameters: list[Parameter] | dict[str, Parameter]
    max_rows: int
    seconds: int


def connect(file: Path, *, writable: bool, stop: Callable[[], int] | None = None) -> sqlite3.Connection:
    """Opens ``file``, which must exist; raises `sqlite3.Error` if it cannot be opened.

    SQLite calls ``stop`` now and then; an exception of it, or a result other than 0, ends the statement that runs.
    """
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
    connection.set_progress_handler(stop, STEPS_PER_CHECK)
    return connection


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


def _run(order: Order) -> None:
    """Runs the statement and prints how far it is, then its result or error."""
    try:
        connection = connect(Path(order["file"]), writable=order["writable"])
        cursor = connection.execute(order["sql"], order["parameters"])
        rows, truncated = _fetched(cursor, order["max_rows"])
        columns = [name for name, *_ in cursor.description or ()]
        changes = max(cursor.rowcount, 0)
        connection.close()
        _tell({"columns": columns, "rows": rows, "truncated": truncated, "changes": changes})
    except MemoryError:
        _tell({"error": f"the statement needs more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"})
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        _tell({"error": str(error)})


def _fetched(cursor: sqlite3.Cursor, max_rows: int) -> tuple[list[list[object]], bool]:
    rows: list[list[object]] = []
    bytes_left = MAX_RESULT_BYTES
    reported = 0
    for row in cursor:
        bytes_left -= sum(_size(value) for value in row)
        if len(rows) == max_rows or bytes_left < 0:
            break
        rows.append([_presentable(value) for value in row])
        if len(rows) == reported + ROWS_PER_STEP:
            reported = len(rows)
            _tell({"arrived": reported})
    else:
        if len(rows) > reported:
            _tell({"arrived": len(rows)})
        return rows, False
    return rows, True


def _size(value: object) -> int:
    return len(value) + 8 if isinstance(value, (str, bytes)) else 8


def _presentable(value: int | float | str | bytes | None) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value


def _tell(line: dict[str, object]) -> None:
    print(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace").decode(), flush=True)


def main() -> None:
    """Reads the order from stdin and runs it under limits of memory and time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the server's terminal is the server's to answer
    if sys.platform != "win32":
        # The reader of the answer is gone: the process ends without a word.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    order: Order = json.load(sys.stdin.buffer)
    if sys.platform != "win32":
        if sys.platform != "darwin":  # which has the name and refuses the limit
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (order["seconds"], order["seconds"]))
    _run(order)


if __name__ == "__main__":
    main()
