"""Our server with tools that are tasks, over stdio, for official clients: ``task_server.py``."""

from __future__ import annotations

import trio

from mcp_actors import Context, Server

server = Server("tasks")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool(task="required")
async def work(steps: int, ctx: Context) -> str:
    """Takes a moment, and says where it stands."""
    for step in range(steps):
        await ctx.progress(step + 1, steps, f"step {step + 1}")
        await trio.sleep(0.05)
    return f"{steps} steps"


@server.tool(task="optional")
async def ask(ctx: Context) -> str:
    """Asks in the middle of a task."""
    answer = await ctx.elicit("Who?", FORM)
    return f"{answer.action}: {(answer.content or {}).get('name')}"


@server.tool(task="optional")
async def forever() -> str:
    """Runs until it is cancelled."""
    await trio.sleep_forever()
    return "never"


@server.tool(task="optional")
async def broken() -> str:
    """Fails."""
    raise ValueError("it is broken")


@server.tool
async def later(ctx: Context) -> str:
    """Asks a client that may answer as a task of its own."""
    answer = await ctx.elicit("Who, when you have the time?", FORM, ttl=60)
    return f"{answer.action}: {(answer.content or {}).get('name')}"


if __name__ == "__main__":
    server.run()
