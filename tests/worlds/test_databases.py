"""Asyncio programs with a database driver in their tools, and the clients of such a server."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
from interop.installation import Peers

from mcp_actors import Client, McpError
from tests.postgres_server import PostgresServer

from .conftest import Started

PATIENCE = 60  # seconds; nothing here takes a tenth of it


async def value(client: Client, tool: str) -> Any:
    return json.loads((await client.call_tool(tool)).content[0].text)


async def until_state(client: Client, **wanted: int) -> None:
    while not wanted.items() <= (await value(client, "state")).items():  # noqa: ASYNC110 - in another process
        await trio.sleep(0.02)


async def give_up(client: Client, number: int) -> None:
    """Cancels a call whose query runs; its program and the database have noticed when this returns."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "slow")
        # PostgreSQL forgets a cancellation that comes before the query.
        await until_state(client, running=number, active=1)
        nursery.cancel_scope.cancel()
    await until_state(client, cancelled=number, active=0)


async def lost_call(client: Client) -> None:
    with pytest.raises(McpError):
        await client.call_tool("slow")


async def use(started: Started, *words: str) -> None:
    """Writes, reads, leaves queries, and interrupts the program while another one runs."""
    with trio.fail_after(PATIENCE), started("databases.py", *words) as served:
        url = f"http://127.0.0.1:{served.port()}/mcp"
        told: list[float] = []
        async with Client(url) as modern, Client(url, era="legacy") as legacy:
            await modern.call_tool(
                "write", {"text": "one"}, on_progress=lambda report: told.append(report.progress)
            )
            assert told == [1, 2]
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(legacy.call_tool, "write", {"text": f"note {number:02}"})
            written = [*(f"note {number:02}" for number in range(20)), "one"]
            assert await value(legacy, "notes") == written
            await give_up(modern, 1)
            await give_up(legacy, 2)
            assert await value(modern, "notes") == written
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lost_call, modern)
                await until_state(legacy, running=3, active=1)
                served.process.send_signal(signal.SIGINT)
                code = await trio.to_thread.run_sync(served.process.wait, abandon_on_cancel=True)
        assert code == 0, served.output
        served.stop()
        assert served.output.splitlines()[1:] == ["interrupted {'running': 3, 'cancelled': 3}"], served.output


async def test_aiosqlite(started: Started, peers: Peers, tmp_path: Path) -> None:
    await use(started, "sqlite", str(tmp_path / "notes.db"))


async def test_asyncpg(started: Started, peers: Peers, postgres: PostgresServer) -> None:
    await use(started, "postgres", postgres.url)
