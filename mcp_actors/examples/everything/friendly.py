"""Tools that a person would try first."""

from __future__ import annotations

import attrs
import trio

from mcp_actors import Context, ToolError
from mcp_actors.examples.everything.app import Activity, server
from mcp_actors.types import ToolAnnotations

__all__ = ["LONGEST_SLEEP", "Sum", "activity", "add", "divide", "echo", "sleep", "touch"]

LONGEST_SLEEP = 3600.0
"""Seconds. A tool that anybody may call needs an end, even if nobody cancels it."""


@attrs.frozen
class Sum:
    """The answer of ``add``: becomes the tool's output schema and its structured content."""

    total: float
    terms: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False))
async def echo(message: str) -> str:
    """Say the message back.

    Args:
        message: what to say
    """
    return message


@server.tool(annotations=ToolAnnotations(read_only_hint=True), inline=True)
def add(a: float, b: float) -> Sum:
    """Add two numbers.

    Args:
        a: the first term
        b: the second term
    """
    return Sum(total=a + b, terms=2)


@server.tool
def divide(a: float, b: float) -> float:
    """Divide a by b, in a worker thread; dividing by zero is an error that the model gets to read."""
    if b == 0:
        raise ToolError("cannot divide by zero")
    return a / b


@server.tool
async def sleep(seconds: float, steps: int = 10, *, ctx: Context) -> str:
    """Sleep, and report progress after each step. Cancel it to see what cancelling does.

    Args:
        seconds: how long to sleep altogether
        steps: how many times to report progress
    """
    if not 0 <= seconds <= LONGEST_SLEEP or not 1 <= steps <= 1000:
        raise ToolError(f"seconds must be within 0 and {LONGEST_SLEEP:g}, steps within 1 and 1000")
    state: Activity = ctx.state
    state.sleeping += 1
    try:
        for step in range(1, steps + 1):
            await trio.sleep(seconds / steps)
            await ctx.progress(step, steps, f"slept {step * seconds / steps:g} s")
    except trio.Cancelled:
        state.cancelled += 1
        raise
    finally:
        state.sleeping -= 1
    state.slept += 1
    return f"slept {seconds:g} s"


@server.tool
async def touch(text: str, *, ctx: Context) -> str:
    """Change the text of test://watched-resource and tell everyone who subscribed to it."""
    state: Activity = ctx.state
    state.watched_text = text
    ctx.server.resource_updated("test://watched-resource")
    return "touched"


@server.tool
async def activity(*, ctx: Context) -> dict[str, int]:
    """Counts the sleeps that run now, ended, and were cancelled since the server started."""
    state: Activity = ctx.state
    return {"sleeping": state.sleeping, "slept": state.slept, "cancelled": state.cancelled}
