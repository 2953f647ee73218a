"""A server with tasks, for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import trio

from mcp_actors import Context, Server
from mcp_actors.types import ElicitResult

server = Server("tasks")


@server.tool(task="optional")
async def until(released: str, ctx: Context) -> str:
    """Goes on until the file ``released`` is there."""
    await ctx.progress(1, 2, "halfway")
    while not Path(released).exists():  # noqa: ASYNC110, ASYNC240 - another program makes the file
        await trio.sleep(0.02)
    return "released"


@server.tool(task="required")
async def ask(ctx: Context) -> str:
    """Asks for a name."""
    answer: ElicitResult = await ctx.elicit(
        "Who?", {"type": "object", "properties": {"name": {"type": "string"}}}
    )
    return f"{answer.action} {answer.content}"


@server.tool
async def plain() -> str:
    """Is no task."""
    return "at once"
