"""What the programs here serve: it counts its slow calls, and can be a server over stdio: ``tools.py``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import trio

from mcp_actors import Context, Server

server = Server("tools", version="1")
seen = {"pid": os.getpid(), "running": 0, "cancelled": 0}
ENDINGS: dict[str, Callable[[], object]] = {
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
}
"""The ends of a program. One that has a loop of its own adds "loop closed"."""


@server.tool
async def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool
async def steps(ctx: Context) -> str:
    """Three reports of progress."""
    for number in range(3):
        await ctx.progress(number + 1, total=3)
    return "all steps"


@server.tool
async def ask(ctx: Context) -> str:
    """What a person says."""
    answer = await ctx.elicit("Your name?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"{answer.action} {answer.content}"


@server.tool
async def slow(ctx: Context) -> str:
    """It reports that it runs, and never ends by itself."""
    seen["running"] += 1
    await ctx.progress(1)
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        seen["cancelled"] += 1
        raise
    return ""


@server.tool
async def state() -> dict[str, int]:
    """The process, and what became of slow calls."""
    return seen


@server.tool
async def end(how: str) -> str:
    """Ends the program."""
    ENDINGS[how]()
    await trio.sleep_forever()
    return ""


if __name__ == "__main__":
    server.run()
