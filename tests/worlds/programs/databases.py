"""An asyncio program whose tools use a database driver: ``databases.py sqlite|postgres WHERE``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg

import mcp_actors.asyncio
from mcp_actors import Context, Server

server = Server("notes", version="1")
database: Any = None
seen = {"running": 0, "cancelled": 0}

INSERT = {"sqlite": "INSERT INTO notes VALUES (?)", "postgres": "INSERT INTO notes VALUES ($1)"}
ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgres": "SELECT pg_sleep(600)",
}


class Sqlite:
    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, statement: str, *values: object) -> None:
        await self._connection.execute(statement, values)

    async def fetch(self, statement: str) -> list[Any]:
        try:
            return list(await self._connection.execute_fetchall(statement))
        except asyncio.CancelledError:
            await self._connection.interrupt()
            raise


@asynccontextmanager
async def opened(kind: str, where: str) -> Any:
    if kind == "postgres":
        async with asyncpg.create_pool(where, min_size=1, max_size=4) as pool:
            yield pool
        return
    async with aiosqlite.connect(where) as connection:
        yield Sqlite(connection)


@server.tool(loop="asyncio")
async def write(text: str, ctx: Context) -> str:
    """Writes a note down, and says how far it is."""
    await ctx.progress(1, total=2, message="writing")
    await database.execute(INSERT[KIND], text)
    await ctx.progress(2, total=2, message="written")
    return "written"


@server.tool(loop="asyncio")
async def notes() -> list[str]:
    """All notes."""
    assert asyncio.get_running_loop() is program
    return sorted(row[0] for row in await database.fetch("SELECT text FROM notes"))


@server.tool(loop="asyncio")
async def slow() -> str:
    """A query that takes longer than anybody waits."""
    seen["running"] += 1
    try:
        await database.fetch(SLOW[KIND])
    except asyncio.CancelledError:
        seen["cancelled"] += 1
        raise
    return "done"


@server.tool(loop="asyncio")
async def state() -> dict[str, int]:
    """How many slow queries run in the database, and what became of their calls."""
    active = seen["running"] - seen["cancelled"]
    if KIND == "postgres":
        found = await database.fetch(ACTIVE)
        active = found[0][0]
    return {**seen, "active": active}


async def main() -> None:
    global database, program
    program = asyncio.get_running_loop()
    async with opened(KIND, sys.argv[2]) as database:
        await database.execute("CREATE TABLE notes (text TEXT)")
        await mcp_actors.asyncio.serve(
            server, "http://127.0.0.1:0/mcp", started=lambda where: print("serving", where[0], flush=True)
        )


KIND = sys.argv[1]
program: asyncio.AbstractEventLoop
if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted", seen, flush=True)
