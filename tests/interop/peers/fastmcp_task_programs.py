"""Tasks of the stateless revision (SEP-2663) with FastMCP, either side, over stdio.

    fastmcp_task_programs.py serve
    fastmcp_task_programs.py call COMMAND [ARG...]

The caller prints what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension, call_tool_task
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SOON = timedelta(milliseconds=50)
server = FastMCP("fastmcp")
server.add_extension(TasksExtension(url="memory://"))


@server.tool(task=TaskConfig(mode="required", poll_interval=SOON))
async def work(steps: int) -> str:
    return f"{steps} steps"


@server.tool(task=TaskConfig(mode="optional", poll_interval=SOON), output_schema=None)
async def ask(ctx: Context) -> Any:
    """It runs again once its question is answered."""
    if not ctx.input_responses:
        params = ElicitRequestFormParams(message="Who?", requested_schema=FORM)
        return InputRequiredResult(input_requests={"name": ElicitRequest(params=params)})
    answer = ctx.input_responses["name"]
    return f"{answer.action}: {answer.content['name']}"


@server.tool(task=TaskConfig(mode="optional", poll_interval=SOON))
async def forever() -> str:
    await asyncio.sleep(3600)
    return "never"


@server.tool(task=TaskConfig(mode="optional", poll_interval=SOON))
async def broken() -> str:
    raise ToolError("it is broken")


async def call(command: list[str]) -> dict[str, Any]:
    asked = []

    async def answer(message: str, *_: object) -> dict[str, str]:
        asked.append(message)
        return {"name": "Ada"}

    seen: dict[str, Any] = {"asked": asked}
    transport = StdioTransport(command[0], command[1:])
    async with Client(transport, elicitation_handler=answer) as client:
        seen["work"] = (await client.call_tool("work", {"steps": 3})).content[0].text
        asking = await call_tool_task(client, "ask")
        seen["ask"] = (await asking).content[0].text
        broken = await call_tool_task(client, "broken", raise_on_error=False)
        seen["broken"] = (await broken).is_error
        forever = await call_tool_task(client, "forever")
        seen["started"] = (await forever.status()).status
        await forever.cancel()
        seen["cancelled"] = (await forever.wait()).status
    return seen


if sys.argv[1] == "serve":
    server.run(show_banner=False)
else:
    print(json.dumps(asyncio.run(call(sys.argv[2:]))))
