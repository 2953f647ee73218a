"""Tools whose calls become tasks, for clients that can do that (SEP-2663; MCP 2025-11-25, Tasks)."""

from __future__ import annotations

from typing import Any

import trio

from mcp_actors import Context, RpcError, ToolError
from mcp_actors.examples.everything.app import server
from mcp_actors.examples.everything.asking import field, form
from mcp_actors.types import ElicitFormParams

__all__ = ["ask_for_a_name"]

NAME = form(name={"type": "string", "description": "Your name"})
CONFIRM = form(confirm={"type": "boolean", "description": "Whether to go on"})


@server.tool
async def greet(name: str) -> str:
    """Greets somebody, at once."""
    return f"Hello, {name}!"


@server.tool(task="optional")
async def slow_compute(seconds: float = 1, label: str = "", *, ctx: Context) -> str:
    """Computes for some seconds, and says how far it is."""
    done = 0.0
    while done < seconds:
        step = min(1.0, seconds - done)
        await trio.sleep(step)
        done += step
        await ctx.progress(done, seconds)
    return f"Computed {label} for {seconds:g} seconds"


@server.tool(task="required")
async def failing_job() -> str:
    """Fails in a way that the model should see."""
    raise ToolError("This job always fails")


@server.tool(task="required")
async def protocol_error_job() -> str:
    """Fails with an error of the protocol."""
    raise RpcError(-32603, "This job ends with a protocol error")


@server.tool(task="optional")
async def confirm_delete(filename: str = "file.txt", *, ctx: Context) -> str:
    """Asks before it deletes a file; nothing is deleted in fact."""
    answer = await ctx.elicit(f"Delete {filename}?", CONFIRM, key="confirm")
    agreed = answer.action == "accept" and bool((answer.content or {}).get("confirm"))
    return f"Deleted {filename}" if agreed else f"Kept {filename}"


@server.tool(task="optional")
async def multi_input(*, ctx: Context) -> str:
    """Asks two things at once."""
    answers = await ctx.ask(
        {
            "first": ElicitFormParams(message="What is your first name?", requested_schema=NAME),
            "last": ElicitFormParams(message="What is your last name?", requested_schema=NAME),
        }
    )
    return f"Hello, {field(answers['first'], 'name')} {field(answers['last'], 'name')}!"


async def ask_for_a_name(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Runs before the task exists: it asks for what the client has left out."""
    if "user_name" in arguments:
        return arguments
    answer = await ctx.elicit("What is your name?", NAME, key="user_name")
    return {**arguments, "user_name": field(answer, "name")}


@server.tool(name="test_tool_with_task", task="required", before_task=ask_for_a_name)
async def greet_later(user_name: str | None = None) -> str:
    """Greets the person who was asked for a name before the task began."""
    await trio.sleep(0.1)
    return f"Hello, {user_name or 'nobody'}!"
