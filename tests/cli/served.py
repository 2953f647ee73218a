"""A small server for the tests of the command line: ``mcp-actors serve tests/cli/served.py``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trio

from mcp_actors import Context, Server, ToolError
from mcp_actors.types import ImageContent

server = Server("served", version="1.2", instructions="Only for tests.")


@server.tool
async def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: the first
    """
    return a + b


@server.tool
async def echo(value: dict[str, Any]) -> dict[str, Any]:
    """Gives back what it got."""
    return value


@server.tool
async def refuse() -> str:
    """Reports an error."""
    raise ToolError("no, because \x1b[31mred\x1b[0m")


@server.tool
async def picture() -> ImageContent:
    """An image of three bytes."""
    return ImageContent("AAEC", "image/png")


@server.tool
async def chatty(ctx: Context) -> str:
    """Logs before it answers."""
    await ctx.log("warning", "mind the gap", "train")
    return "done"


@server.tool
async def ask(ctx: Context) -> str:
    """Asks for a form."""
    answer = await ctx.elicit(
        "Who are you?",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "age": {"type": "integer"},
                "colour": {"type": "string", "enum": ["red", "green"], "default": "green"},
            },
            "required": ["name", "age"],
        },
    )
    content = answer.content or {}
    return f"{answer.action} {sorted(content.items())}"


@server.tool
async def wait(begun: str, ended: str, ctx: Context) -> str:
    """Makes the file ``begun``, waits to be cancelled, and makes the file ``ended`` when it is."""
    try:
        await ctx.progress(1, 4, "waiting")
        Path(begun).touch()  # noqa: ASYNC240 - a moment
        await trio.sleep(60)
    except trio.Cancelled:
        Path(ended).touch()  # noqa: ASYNC240 - no checkpoint on the way out
        raise
    return "never"


@server.tool
async def crash() -> None:
    """Ends the process."""
    os.write(2, b"the last words\n")
    os._exit(7)


@server.resource("note://text", mime_type="text/plain")
async def text() -> str:
    """Text without a newline at its end."""
    return "no newline"


@server.resource("note://bytes", mime_type="application/octet-stream")
async def data() -> bytes:
    """Bytes that no terminal wants."""
    return b"\x00\x01\xff"


@server.resource("note://{topic}/{number}")
async def numbered(topic: str, number: str) -> str:
    """One of many."""
    return f"{topic} {number}"


@server.prompt
async def greet(name: str, manner: str = "kindly") -> str:
    """Asks for a greeting."""
    return f"Greet {name} {manner}."
