"""This package over HTTP: the tool of the load, and two that are measured by how they end."""

from __future__ import annotations

import itertools
import sys
import time

import trio

from benchmarks.peers.ours import server
from mcp_actors import Context


@server.tool
async def hang() -> None:
    """Waits for good; tells by the system's monotonic clock when it began and when it was cancelled."""
    print("began", time.monotonic(), flush=True)
    try:
        await trio.sleep_forever()
    finally:
        print("cancelled", time.monotonic(), flush=True)


@server.tool
async def flood(size: int, ctx: Context) -> None:
    """Reports progress in long messages as fast as they are taken."""
    for number in itertools.count(1):
        await ctx.progress(number, message="x" * size)


if __name__ == "__main__":
    server.run(f"http://127.0.0.1:{sys.argv[-1]}/mcp")
