"""Programs for asyncio and without a loop as type checkers see them, in their strict modes; it is never run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_type

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Progress, Server
from mcp_actors.client import ClientCall, Event, SendNext
from mcp_actors.middleware import Retry, Timing
from mcp_actors.types import (
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    TextContent,
    Tool,
)
from mcp_actors.types.tasks import TaskStatus


async def elicit_later(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    await asyncio.sleep(0)
    return ElicitResult("cancel")


def elicit_at_once(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("cancel")


def sample(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent("said"), model="m")


async def log_later(call: ClientCall, call_next: SendNext) -> object:
    return await call_next(call)


def log_at_once(call: ClientCall, call_next: Callable[[], object]) -> object:
    return call_next()


async def report(progress: Progress) -> None:
    await asyncio.sleep(0)


async def in_a_loop(server: Server) -> None:
    async with mcp_actors.asyncio.Client(
        server, elicitation=elicit_later, sampling=sample, middleware=[log_later, Retry(), Timing()]
    ) as client:
        assert_type(client, mcp_actors.asyncio.Client)
        assert_type(await client.call_tool("forecast", on_progress=report), CallToolResult)
        assert_type(await client.call_tool("count", returns=int), int)
        assert_type([tool async for tool in client.tools()], list[Tool])
        handle = await client.start_tool("forecast")
        assert_type(handle, mcp_actors.asyncio.TaskHandle)
        assert_type([status async for status in handle.updates()], list[TaskStatus])
        async with client.listen(tools=True) as changes:
            assert_type(await anext(changes), Event)
    opened = await mcp_actors.asyncio.Client("stdio:server").open()
    assert_type(opened, mcp_actors.asyncio.Client)
    await opened.aclose()
    async with mcp_actors.asyncio.ClientPool() as pool:
        assert_type(await pool.open(opened), mcp_actors.asyncio.Client)
    async with mcp_actors.asyncio.ClientGroup("mcp.json", restart=False) as group:
        assert_type(group["one"], mcp_actors.asyncio.Client)
        assert_type(await group.tools(), list[Tool])
        assert_type(await group.call_tool("one__forecast"), CallToolResult)


def without_a_loop(server: Server) -> None:
    with mcp_actors.sync.Client(
        server,
        elicitation=elicit_at_once,
        roots=lambda: ["file:///work"],
        middleware=[log_at_once, Retry(), Timing()],
    ) as client:
        assert_type(client, mcp_actors.sync.Client)
        assert_type(client.call_tool("forecast", on_progress=print), CallToolResult)
        assert_type(client.call_tool("count", returns=int), int)
        assert_type(list(client.tools()), list[Tool])
        handle = client.start_tool("forecast")
        assert_type(handle, mcp_actors.sync.TaskHandle)
        assert_type(list(handle.updates()), list[TaskStatus])
        with client.listen(tools=True) as changes:
            assert_type(next(changes), Event)
    mcp_actors.sync.Client("stdio:server").open().close()
    with mcp_actors.sync.ClientPool() as pool:
        assert_type(pool.open(client), mcp_actors.sync.Client)
    with mcp_actors.sync.ClientGroup({"one": server}) as group:
        assert_type(group["one"], mcp_actors.sync.Client)
        assert_type(group.call_all([("one__forecast", None)]), list[CallToolResult | Exception])
