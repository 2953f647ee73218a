"""This package: ``ours URL [FILE ...]``; the files are Python programs that register transports."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TypedDict

import trio

from benchmarks.suite.programs.telling import tell
from mcp_actors import Context, Server
from mcp_actors.abc.discovery import register_transport


class Sum(TypedDict):
    total: int


# More than the default, for the scenario that asks how many are too many.
MOST_CONNECTIONS = 20_000
ITEM = "bench://item"
server = Server("ours")


@server.tool
async def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return {"total": a + b}


@server.tool
async def add_awaiting(a: int, b: int) -> Sum:
    """Adds two numbers, after others had their turn."""
    await trio.lowlevel.checkpoint()
    return {"total": a + b}


@server.tool(inline=True)
def add_inline(a: int, b: int) -> Sum:
    """Adds two numbers, without a task."""
    return {"total": a + b}


@server.tool
async def echo(text: str) -> str:
    """Gives back what it gets."""
    return text


@server.tool
async def hang() -> None:
    """Waits for good; tells when it began and when it was cancelled."""
    tell("began")
    try:
        await trio.sleep_forever()
    finally:
        tell("cancelled")


@server.tool
async def steps(count: int, size: int, ctx: Context) -> str:
    """Reports progress ``count`` times with messages of ``size`` characters."""
    for number in range(1, count + 1):
        await ctx.progress(number, total=count, message="x" * size)
    return "done"


@server.tool
async def touch() -> str:
    """Changes the one resource."""
    server.resource_updated(ITEM)
    return "touched"


@server.resource(ITEM)
async def item() -> str:
    """The one resource."""
    return "an item"


@server.prompt
async def greet(name: str) -> str:
    """The one prompt."""
    return f"Greet {name}."


if __name__ == "__main__":
    # What is not always used is loaded late: what a start costs is measured too.
    if sys.argv[1].startswith("codec:"):
        codec = importlib.import_module("benchmarks.suite.programs.codec")
        codec.measure(codec.OURS, sys.argv[1])
    else:
        scheme = sys.argv[1].partition(":")[0]
        if scheme in ("tcp", "unix"):
            sockets = importlib.import_module("mcp_transports.sockets")
            register_transport(
                scheme, functools.partial(sockets.from_url, max_connections=2 * MOST_CONNECTIONS)
            )
        elif scheme == "http":
            # All clients have one address here, which by default has half of the connections.
            http = importlib.import_module("mcp_transports.http")
            limits = importlib.import_module("mcp_transports.http.h1.limits")
            most = limits.HttpLimits(connections=2 * MOST_CONNECTIONS)
            register_transport(scheme, functools.partial(http.from_url, limits=most))
        elif scheme == "ws":
            websocket = importlib.import_module("mcp_transports.websocket")
            most = 2 * MOST_CONNECTIONS
            register_transport(scheme, functools.partial(websocket.from_url, max_connections=most))
        if sys.argv[2:]:
            importlib.import_module("benchmarks.suite.loading").load_files(sys.argv[2:])
        server.run(sys.argv[1])
