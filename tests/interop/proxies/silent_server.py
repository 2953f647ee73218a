"""A server with one tool, which says nothing until it is done."""

from __future__ import annotations

import trio

from mcp_actors import Server

server = Server("silent")


@server.tool
async def say_nothing(seconds: float) -> str:
    """Sleeps, and says so at the end."""
    await trio.sleep(seconds)
    return f"slept {seconds:g} s"
