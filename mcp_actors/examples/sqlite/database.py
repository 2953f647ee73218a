"""One SQLite file, opened anew for each call and worked on in threads.

A connection per call costs about a tenth of a millisecond and gives each call its own statement to interrupt, its own
transaction to roll back and no state that one caller could leave behind for the next.
"""

from __future__ import annotations

import base64
import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from mcp_actors.errors import ToolError
from mcp_actors.examples.sqlite.guard import connect, readable_errors

T = TypeVar("T")

Progress = Callable[[float, float | None, str | None], Awaitable[None]]

MAX_SECONDS = 60  # of work for one query; a client that wants less cancels the call
MAX_RESULT_BYTES = 1_000_000  # a result is read by a model: far more than it can use, far less than hurts
ROWS_PER_STEP = 100  # rows fetched between two reports of progress


@dataclass(frozen=True)
class Blob:
    """A binary value."""

    base64: str


Value = int | float | str | Blob | None
Parameter = bool | int | float | str | None
Parameters = list[Parameter] | dict[str, Parameter]


@dataclass(frozen=True)
class QueryResult:
    """The result of a statement: ``changes`` counts the rows it wrote, ``truncated`` says that there were more rows."""

    columns: list[str]
    rows: list[list[Value]]
    truncated: bool = False
    changes: int = 0


@dataclass(frozen=True)
class Table:
    """One table or view; ``kind`` tells which."""

    name: str
    kind: str
    columns: list[str]


class Database:
    """The SQLite file ``file``, changed only when ``writable``.

    Raises `ValueError`, with a text for people, if that is no database file.
    """

    def __init__(self, file: Path, *, writable: bool = False) -> None:
        if not file.is_file():
            raise ValueError(f"there is no database file {str(file)!r}")
        with file.open("rb") as head:
            if head.read(16) not in (b"", b"SQLite format 3\0"):
                raise ValueError(f"{str(file)!r} is not an SQLite database")
        self.file = file.resolve()
        self.writable = writable
        self._threads = trio.CapacityLimiter(8)  # of our own: a heavy query takes no thread from anybody else

    async def query(self, sql: str, parameters: Parameters, max_rows: int, progress: Progress) -> QueryResult:
        """Runs one statement and returns at most ``max_rows`` rows and about a megabyte.

        Reports the number of rows after every hundred, and a sign of life each second in between. Raises `ToolError`
        with SQLite's own words, or after a minute of work. Cancelling interrupts the statement; what it wrote is
        rolled back.
        """
        with trio.move_on_after(MAX_SECONDS):
            async with self._connected() as connection:
                statement = _Statement(connection, self._threads, max_rows, progress)
                answer: QueryResult | Exception | None = None
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_interrupt_when_cancelled, connection)
                    nursery.start_soon(statement.show_life)
                    answer = await statement.run(sql, parameters)
                    nursery.cancel_scope.cancel()
                if isinstance(answer, QueryResult):
                    return answer
                # an error made by our own interrupt is no answer: here a cancelled call ends as cancelled
                await trio.lowlevel.checkpoint_if_cancelled()
                raise ToolError(str(answer)) from answer
        raise ToolError(f"stopped after {MAX_SECONDS} s of work")

    async def tables(self) -> list[Table]:
        """All tables and views in the order of their names, without those of SQLite itself."""

        def read(connection: sqlite3.Connection) -> list[Table]:
            found = connection.execute(
                "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')"
                " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
            ).fetchall()
            return [Table(name, kind, _columns(connection, name)) for name, kind in found]

        return await self._read(read)

    async def schema(self, table: str) -> str | None:
        """The statements that made ``table``, its indexes and triggers, or None if there is no such table."""

        def read(connection: sqlite3.Connection) -> list[tuple[str]]:
            return connection.execute(
                "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL"
                " ORDER BY type IN ('table', 'view') DESC, type, name",
                (table,),
            ).fetchall()

        statements = await self._read(read)
        return "\n".join(f"{sql};" for (sql,) in statements) or None

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def attempt() -> T:
            with closing(self._connect()) as connection, readable_errors():
                return work(connection)

        try:
            return await trio.to_thread.run_sync(attempt, limiter=self._threads)
        except ToolError:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise

    def _connect(self) -> sqlite3.Connection:
        return connect(self.file, writable=self.writable)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[sqlite3.Connection]:
        connection = await trio.to_thread.run_sync(self._connect, limiter=self._threads)
        try:
            yield connection
        finally:
            with trio.CancelScope(
                shield=True
            ):  # rolls back what was left open; not behind the queue of our own threads
                await trio.to_thread.run_sync(connection.close)


class _Statement:
    """One statement on its way; ``rows`` is what arrived so far."""

    def __init__(
        self, connection: sqlite3.Connection, threads: trio.CapacityLimiter, max_rows: int, progress: Progress
    ) -> None:
        self.rows: list[list[Value]] = []
        self._connection = connection
        self._threads = threads
        self._max_rows = max_rows
        self._progress = progress
        self._bytes_left = MAX_RESULT_BYTES
        self._cursor: sqlite3.Cursor | None = None
        self._more = True
        self._truncated = False

    async def run(self, sql: str, parameters: Parameters) -> QueryResult | Exception:
        """Runs the statement to its end. An error is returned, as raising it in a nursery would wrap it."""
        try:
            await trio.to_thread.run_sync(self._start, sql, parameters, limiter=self._threads)
            while self._more:
                before = len(self.rows)
                await trio.to_thread.run_sync(self._fetch, limiter=self._threads)
                if len(self.rows) > before:
                    await self._progress(len(self.rows), self._max_rows, f"{len(self.rows)} rows")
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            return error
        assert self._cursor is not None
        columns = [name for name, *_ in self._cursor.description or ()]
        return QueryResult(columns, self.rows, self._truncated, max(self._cursor.rowcount, 0))

    async def show_life(self) -> None:
        """Reports once a second, also while no row arrives, so that no client takes the work for dead.

        Progress must grow: the fraction above the number of rows does, and never reaches the next row.
        """
        seconds = 0
        while True:
            await trio.sleep(1)
            seconds += 1
            arrived = len(self.rows)
            done = arrived + seconds / (seconds + 1)
            await self._progress(done, self._max_rows, f"{arrived} rows, {seconds} s")

    def _start(self, sql: str, parameters: Parameters) -> None:
        self._cursor = self._connection.execute(sql, parameters)

    def _fetch(self) -> None:
        assert self._cursor is not None
        for _ in range(ROWS_PER_STEP):
            row = self._cursor.fetchone()
            if row is None:
                self._more = False
                return
            self._bytes_left -= sum(_size(value) for value in row)
            if len(self.rows) == self._max_rows or self._bytes_left < 0:
                self._more, self._truncated = False, True
                return
            self.rows.append([_presentable(value) for value in row])


async def _interrupt_when_cancelled(connection: sqlite3.Connection) -> None:
    """Ends the statement that runs in a thread when the call is cancelled, within one step of a query plan."""
    try:
        await trio.sleep_forever()
    finally:
        connection.interrupt()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    try:
        return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    except sqlite3.Error:  # a view on a table that is gone: listed all the same
        return []


def _size(value: object) -> int:
    return len(value) + 8 if isinstance(value, (str, bytes)) else 8


def _presentable(value: int | float | str | bytes | None) -> Value:
    if isinstance(value, bytes):
        return Blob(base64.b64encode(value).decode("ascii"))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value
