"""A server with tasks, made with the first generation of the official Python SDK, over stdio."""

from __future__ import annotations

from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
server: Any = Server("official-tasks")
server.experimental.enable_tasks()
looked = anyio.Event()


def said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def work(task: Any) -> types.CallToolResult:
    """Is under way until the client has seen that it is, whenever a busy machine comes to that."""
    for step in range(3):
        await task.update_status(f"step {step + 1}")
        await anyio.sleep(0.1)
    await looked.wait()
    return said("worked")


async def ask(task: Any) -> types.CallToolResult:
    answer = await task.elicit("Who?", FORM)
    return said(f"{answer.action}: {(answer.content or {}).get('name')}")


async def ask_later(task: Any) -> types.CallToolResult:
    answer = await task.elicit_as_task("Who, later?", FORM, ttl=30_000)
    return said(f"{answer.action}: {(answer.content or {}).get('name')}")


async def forever(task: Any) -> types.CallToolResult:
    await anyio.sleep_forever()
    raise AssertionError


async def broken(task: Any) -> types.CallToolResult:
    raise ValueError("it is broken")


WORK = {each.__name__: each for each in (work, ask, ask_later, forever, broken)}


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    required = types.ToolExecution(taskSupport=types.TASK_REQUIRED)
    tools = [types.Tool(name=name, inputSchema=empty, execution=required) for name in WORK]
    return [*tools, *(types.Tool(name=name, inputSchema=empty) for name in ("host", "go_on"))]


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    ctx = server.request_context
    if name == "go_on":
        looked.set()
        return said("gone on")
    if name == "host":
        answer = await ctx.session.experimental.elicit_as_task("Who, as a task?", FORM, ttl=30_000)
        return said(f"{answer.action}: {(answer.content or {}).get('name')}")
    ctx.experimental.validate_task_mode(types.TASK_REQUIRED)
    return await ctx.experimental.run_task(WORK[name])


async def main() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
