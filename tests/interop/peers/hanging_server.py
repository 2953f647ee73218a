"""A server of ours over stdio with a call that never ends, for the tests of how official clients close.

Usage: hanging_server.py FILE; the lifespan's cleanup adds a line to FILE.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mcp_actors import Context, Server


def note_cleanup(path: Path) -> None:
    with path.open("a") as file:
        file.write("cleaned up\n")


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[None]:
    try:
        yield
    finally:
        # What closes a database takes a moment too.
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
        note_cleanup(Path(sys.argv[1]))


server = Server("hanging", lifespan=lifespan)


@server.tool
async def hang(ctx: Context) -> str:
    """Says that it has begun, and never returns."""
    await ctx.progress(1)
    await trio.sleep_forever()
    return ""


if __name__ == "__main__":
    server.run()
