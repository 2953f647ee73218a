"""Serves one SQLite database, read-only by default::

    mcp-actors serve mcp_actors.examples.sqlite -- my.db
    mcp-actors serve mcp_actors.examples.sqlite -- my.db --write

Tools ``query`` and ``list_tables``; resources ``db://tables`` and ``db://schema/{table}``. Each query runs in a process
of its own, which is killed when the call is cancelled or a minute has passed, and may take 512 MiB (on Windows as much
as there is); four run at once, and the others wait for their turn.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec
import trio
from msgspec import Meta

from mcp_actors import Context, ResourceNotFound, Server
from mcp_actors.errors import ToolError
from mcp_actors.examples.sqlite import guard
from mcp_actors.examples.sqlite.guard import MAX_RESULT_BYTES, Order, Parameter
from mcp_actors.types import Resource, ToolAnnotations

__all__ = ["Blob", "QueryResult", "Table", "TableList", "server"]


# -- The database, opened anew for each call: in a thread for our own SQL, in a process for a client's ---
#
# A process for a query costs 50 to 100 ms. It can be ended whatever the statement does, cannot take more memory than
# it is given, and leaves no state behind for the next caller.

T = TypeVar("T")

Progress = Callable[[float, float | None, str | None], Awaitable[None]]

MAX_SECONDS = 60  # for one query, waiting for its turn included; a client that wants less cancels the call
MAX_QUERIES = 4  # processes at once; further queries wait for their turn
MAX_ANSWER_BYTES = 8 * MAX_RESULT_BYTES  # as JSON: a character can need six bytes there


@dataclass(frozen=True)
class Blob:
    """A binary value."""

    base64: str


Value = int | float | str | Blob | None
Parameters = list[Parameter] | dict[str, Parameter]


@dataclass(frozen=True)
class QueryResult:
    """The result of a statement: ``changes`` counts the rows it wrote.

    ``truncated`` says that there was more: rows beyond the number asked for, or beyond a megabyte.
    """

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


@dataclass(frozen=True)
class TableList:
    """The tables and views; ``truncated`` says that there are more than fit into a megabyte."""

    tables: list[Table]
    truncated: bool = False


class Database:
    """The SQLite file ``file``, changed only when ``writable``.

    Raises `ValueError`, with a text for people, if that is not a database file.
    """

    def __init__(self, file: Path, *, writable: bool = False) -> None:
        if not file.is_file():
            raise ValueError(f"there is no database file {str(file)!r}")
        with file.open("rb") as head:
            if head.read(16) not in (b"", b"SQLite format 3\0"):
                raise ValueError(f"{str(file)!r} is not an SQLite database")
        self.file = file.resolve()
        self.writable = writable
        self._threads = trio.CapacityLimiter(8)  # of our own: a large schema takes no threads from others
        self._processes = trio.CapacityLimiter(MAX_QUERIES)

    async def query(self, sql: str, parameters: Parameters, max_rows: int, progress: Progress) -> QueryResult:
        """Runs one statement and returns at most ``max_rows`` rows and about a megabyte.

        Reports the number of rows after every hundred, and a sign of life each second in between. Raises `ToolError`
        with SQLite's own words, or after a minute. Cancelling kills the process; what the statement wrote is rolled
        back, at the latest when the file is opened the next time.
        """
        seconds = int(MAX_SECONDS) + 1  # of work: for a process whose server was killed
        order = Order(
            file=str(self.file),
            writable=self.writable,
            sql=sql,
            parameters=parameters,
            max_rows=max_rows,
            seconds=seconds,
        )
        answer: QueryResult | ToolError | None = None
        with trio.move_on_after(MAX_SECONDS):
            async with trio.open_nursery() as nursery:
                statement = _Statement(max_rows, progress)
                nursery.start_soon(statement.show_life)
                async with self._processes:
                    answer = await statement.run(json.dumps(order).encode())
                nursery.cancel_scope.cancel()
        if answer is None:
            raise ToolError(f"stopped after {MAX_SECONDS} s")
        if isinstance(answer, ToolError):
            raise answer
        return answer

    async def tables(self) -> TableList:
        """The tables and views in the order of their names, without those of SQLite itself."""

        def read(connection: sqlite3.Connection) -> TableList:
            found = connection.execute(
                "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')"
                " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
            )
            tables: list[Table] = []
            bytes_left = MAX_RESULT_BYTES
            for name, kind in found:
                table = Table(name, kind, _columns(connection, name))
                bytes_left -= 40 + sum(len(text) + 4 for text in (name, *table.columns))
                if bytes_left < 0:
                    return TableList(tables, truncated=True)
                tables.append(table)
            return TableList(tables)

        return await self._read(read)

    async def schema(self, table: str) -> str | None:
        """The statements that made ``table``, its indexes and triggers, or None if the table does not exist."""

        def read(connection: sqlite3.Connection) -> str:
            statements = connection.execute(
                "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL"
                " ORDER BY type IN ('table', 'view') DESC, type, name",
                (table,),
            )
            text = ""
            for (sql,) in statements:
                if len(text) + len(sql) > MAX_RESULT_BYTES:
                    return f"{text}-- cut here: the rest is more than {MAX_RESULT_BYTES} bytes\n"
                text += f"{sql};\n"
            return text

        return (await self._read(read)).rstrip("\n") or None

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def attempt() -> T:
            with _readable_errors():
                with closing(
                    guard.connect(self.file, writable=self.writable, stop=_stop_when_cancelled)
                ) as connection:
                    return work(connection)

        try:
            return await trio.to_thread.run_sync(attempt, limiter=self._threads)
        except ToolError:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise


class _Statement:
    """One statement on its way; ``arrived`` counts the rows so far."""

    def __init__(self, max_rows: int, progress: Progress) -> None:
        self.arrived = 0
        self._max_rows = max_rows
        self._progress = progress

    async def run(self, order: bytes) -> QueryResult | ToolError:
        """Runs the statement to its end. An error is returned, as raising it in a nursery would wrap it."""
        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=order,
                stdout=subprocess.PIPE,
                check=False,
            )
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            async with process.stdout, aclosing(_lines(process.stdout)) as lines:
                async for line in lines:
                    said = _SAID.decode(line)
                    if said.arrived is None:
                        return said.answer()
                    self.arrived = said.arrived
                    await self._progress(self.arrived, self._max_rows, f"{self.arrived} rows")
            nursery.cancel_scope.cancel()
        return ToolError("the statement was stopped: it ended, or the system ended it, without an answer")

    async def show_life(self) -> None:
        """Reports once a second, also while no row arrives, so that no client gives up.

        Progress must grow: the fraction above the number of rows does, and never reaches the next row.
        """
        seconds = 0
        while True:
            await trio.sleep(1)
            seconds += 1
            done = self.arrived + seconds / (seconds + 1)
            await self._progress(done, self._max_rows, f"{self.arrived} rows, {seconds} s")


class _Said(msgspec.Struct):
    """One line of the process: its progress, or the end."""

    arrived: int | None = None
    error: str | None = None
    columns: list[str] = []
    rows: list[list[Value]] = []
    truncated: bool = False
    changes: int = 0

    def answer(self) -> QueryResult | ToolError:
        """The result or the error of the statement."""
        if self.error is not None:
            return ToolError(self.error)
        return QueryResult(self.columns, self.rows, self.truncated, self.changes)


_SAID = msgspec.json.Decoder(_Said)


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
    """Lines of at most `MAX_ANSWER_BYTES`; a longer one ends them."""
    rest = bytearray()
    async for chunk in stream:
        first, *more = chunk.split(b"\n")
        rest += first
        for following in more:
            yield bytes(rest)
            rest = bytearray(following)
        if len(rest) > MAX_ANSWER_BYTES:
            return


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turns SQLite's errors into `ToolError`, with SQLite's own words."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise ToolError(f"the database cannot be read: {error}") from error


def _stop_when_cancelled() -> int:
    """Ends a statement whose call was cancelled: SQLite takes any exception here as a stop."""
    trio.from_thread.check_cancelled()
    return 0


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    try:
        return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    except sqlite3.Error:  # a view on a table that is gone: listed all the same
        return []


# -- The server ----------------------------------------------------------------------------------------

USAGE = "usage: mcp-actors serve mcp_actors.examples.sqlite -- DATABASE [--write]"


def server(*args: str) -> Server:
    """Makes the server for ``DATABASE [--write]``.

    Raises `ValueError`, with a text for people, if the arguments do not name a database.
    """
    files = [arg for arg in args if arg != "--write"]
    if len(files) != 1 or files[0].startswith("-"):
        raise ValueError(USAGE)
    database = Database(Path(files[0]), writable="--write" in args)
    app = Server(
        "sqlite",
        version="1.0",
        title=f"SQLite: {database.file.name}",
        instructions="Call list_tables first, read db://schema/{table} for details, then query with one statement.",
    )
    _add_tools(app, database)
    _add_resources(app, database)
    return app


def _add_tools(app: Server, database: Database) -> None:
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writing = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

    @app.tool(annotations=writing if database.writable else read_only)
    async def query(
        sql: str,
        parameters: Parameters | None = None,
        max_rows: Annotated[int, Meta(ge=1, le=10_000)] = 100,
        *,
        ctx: Context,
    ) -> QueryResult:
        """Runs one SQL statement; binary values come as base64.

        Args:
            sql: One statement in SQLite's dialect. Use ? or :name for values.
            parameters: A list of values for ?, or an object for :name.
            max_rows: Stop after this many rows; `truncated` tells whether there were more. A result
                is cut at a megabyte, and says so in the same way.
        """
        return await database.query(sql, parameters or [], max_rows, ctx.progress)

    @app.tool(annotations=read_only)
    async def list_tables() -> TableList:
        """Lists the tables and views with their columns."""
        return await database.tables()


def _add_resources(app: Server, database: Database) -> None:
    @app.resource("db://tables", name="tables", mime_type="application/json")
    async def tables() -> TableList:
        """The tables and views with their columns."""
        return await database.tables()

    async def schemas() -> list[Resource]:
        return [
            Resource(f"db://schema/{quote(table.name, safe='')}", table.name, mime_type="application/sql")
            for table in (await database.tables()).tables
        ]

    @app.resource("db://schema/{table}", name="schema", mime_type="application/sql", list=schemas)
    async def schema(table: str) -> str:
        """The SQL that made a table, its indexes and its triggers."""
        statements = await database.schema(table)
        if statements is None:
            raise ResourceNotFound(f"db://schema/{quote(table, safe='')}")
        return statements

    @app.completion(resource="db://schema/{table}", argument="table")
    async def complete_table(value: str) -> list[str]:
        wanted = value.casefold()
        return [
            table.name
            for table in (await database.tables()).tables
            if table.name.casefold().startswith(wanted)
        ]
