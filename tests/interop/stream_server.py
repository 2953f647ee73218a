"""Our server with a tool that yields, over stdio, for official clients: ``stream_server.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from mcp_actors import Server

server = Server("streams")
steps = trio.Semaphore(0)


@server.tool
async def story() -> AsyncIterator[str]:
    """Tells three parts, and waits after each until it may go on."""
    for part in ("once ", "upon ", "a time"):
        yield part
        await steps.acquire()


@server.tool
async def go_on() -> str:
    """Lets the story go on."""
    steps.release()
    return "done"


if __name__ == "__main__":
    server.run()
