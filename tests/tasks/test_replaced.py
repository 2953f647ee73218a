"""Tasks of a server whose place another one takes: they go on with the old code, and clients find them as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Context, Server
from mcp_actors.abc import SharedState
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.tasks import Tasks

from .nodes import FakeShared
from .talking import CORE, EXTENSION, talking

pytestmark = pytest.mark.parametrize("version", [CORE, EXTENSION])


def make(number: int, noted: list[str], shared: SharedState | None = None) -> Server:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[int]:
        noted.append(f"enter {number}")
        yield number
        noted.append(f"leave {number}")

    server: Server[Any] = Server(
        "s", extensions=[Tasks(clock=trio.current_time)], shared=shared, lifespan=lifespan
    )

    @server.tool(task="optional")
    async def work(ctx: Context, seconds: float) -> str:
        """Takes its time."""
        try:
            await ctx.progress(1)
            await trio.sleep(seconds)
        except trio.Cancelled:
            noted.append(f"cancelled {number}")
            raise
        return f"{number} {ctx.state}"

    return server


async def test_a_task_goes_on_and_its_lifespan_ends_after_it(version: str, autojump_clock: MockClock) -> None:
    noted: list[str] = []
    server = ReplaceableServer(make(1, noted, FakeShared(spans=False)))
    async with talking(server, version) as talk:
        old = await talk.begin("work", {"seconds": 50})
        await server.replace(make(2, noted))
        new = await talk.begin("work", {"seconds": 10})
        assert (await talk.get(old))["status"] == "working"
        await talk.until(new)
        await trio.sleep(1)
        assert noted == ["enter 1", "enter 2"]
        await talk.until(old)
        await trio.sleep(1)
        assert noted == ["enter 1", "enter 2", "leave 1"]
        if version == CORE:
            ended = [await talk.result("tasks/result", {"taskId": id}) for id in (old, new)]
        else:
            ended = [(await talk.get(id))["result"] for id in (old, new)]
        assert [each["content"][0]["text"] for each in ended] == ["1 1", "2 2"]


async def test_a_task_of_the_old_server_is_cancelled_through_the_new_one(
    version: str, autojump_clock: MockClock
) -> None:
    noted: list[str] = []
    server = ReplaceableServer(make(1, noted, FakeShared(spans=False)))
    async with talking(server, version) as talk:
        id = await talk.begin("work", {"seconds": 5000})
        for number in (2, 3):
            await server.replace(make(number, noted))
        await talk.result("tasks/cancel", {"taskId": id})
        assert (await talk.until(id))["status"] == "cancelled"
        await trio.sleep(1)
        assert sorted(noted[:3]) == ["enter 1", "enter 2", "enter 3"]
        assert sorted(noted[3:]) == ["cancelled 1", "leave 1", "leave 2"]
        assert noted.index("cancelled 1") < noted.index("leave 1")
