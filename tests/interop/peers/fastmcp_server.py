"""A server made with FastMCP, dual-era, over Streamable HTTP at a free port, which the web server writes to stderr."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel

server: Any = FastMCP("on FastMCP", instructions="A server on FastMCP.")
state = {"sleeping": 0, "slept": 0, "cancelled": 0}


class Sum(BaseModel):
    total: float


class Person(BaseModel):
    name: str


@server.tool
def echo(message: str) -> str:
    """The same again."""
    return message


@server.tool
def add(a: float, b: float) -> Sum:
    """A sum."""
    return Sum(total=a + b)


@server.tool
def fail() -> str:
    """An error for the model."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def log(ctx: Context) -> str:
    """One log message."""
    await ctx.info("a message")
    return "logged"


@server.tool
async def sleep(seconds: float, steps: int, ctx: Context) -> str:
    """Sleeps, with progress."""
    state["sleeping"] += 1
    try:
        for step in range(1, steps + 1):
            await anyio.sleep(seconds / steps)
            await ctx.report_progress(step, steps)
    except anyio.get_cancelled_exc_class():
        state["cancelled"] += 1
        raise
    finally:
        state["sleeping"] -= 1
    state["slept"] += 1
    return f"slept {seconds:g} s"


@server.tool
def activity() -> dict[str, int]:
    """What the sleeps did."""
    return state


@server.tool
async def ask(ctx: Context) -> Any:
    """Asks the user, in the way of the era."""
    if ctx.request_context.protocol_version < "2026":
        answer = await ctx.elicit("Who?", Person)
        return f"Hello, {answer.data.name}!"
    if ctx.input_responses:
        return f"Hello, {ctx.input_responses['who'].content['name']}!"
    params = mcp_types.ElicitRequestFormParams(message="Who?", requested_schema=Person.model_json_schema())
    return mcp_types.InputRequiredResult(input_requests={"who": mcp_types.ElicitRequest(params=params)})


@server.resource("fast://text", mime_type="text/plain")
def text() -> str:
    """A text."""
    return "a text"


@server.resource("fast://template/{id}/data")
def template(id: str) -> str:
    """One for each id."""
    return f"Data for ID: {id}"


@server.prompt
def greet(name: str) -> str:
    """A greeting."""
    return f"Greet {name}."


if __name__ == "__main__":
    server.run("http", port=0, show_banner=False)
