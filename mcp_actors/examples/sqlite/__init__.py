"""Serves one SQLite database, read-only unless told otherwise::

    mcp-actors serve mcp_actors.examples.sqlite -- my.db
    mcp-actors serve mcp_actors.examples.sqlite -- my.db --write

Tools ``query`` and ``list_tables``; resources ``db://tables`` and ``db://schema/{table}``. Each query runs in a process
of its own, which is killed when the call is cancelled or a minute has passed, and may take 512 MiB (on Windows as much
as there is); four run at once, and the others wait for their turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from msgspec import Meta

from mcp_actors import Context, ResourceNotFound, Server
from mcp_actors.examples.sqlite.database import Blob, Database, Parameters, QueryResult, Table, TableList
from mcp_actors.types import Resource, ToolAnnotations

__all__ = ["Blob", "QueryResult", "Table", "TableList", "server"]

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
