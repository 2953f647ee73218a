"""The official Python SDK over HTTP: uvicorn without its access log, JSON replies unless ``--sse``."""

from __future__ import annotations

import itertools
import sys
import time

import anyio
from mcp.server.mcpserver import Context

from benchmarks.peers.official import server


async def hang() -> None:
    """Waits for good; tells by the system's monotonic clock when it began and when it was cancelled."""
    print("began", time.monotonic(), flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print("cancelled", time.monotonic(), flush=True)


async def flood(size: int, ctx: Context) -> None:
    """Reports progress in long messages as fast as they are taken."""
    for number in itertools.count(1):
        await ctx.report_progress(number, message="x" * size)


if __name__ == "__main__":
    server.add_tool(hang)
    server.add_tool(flood)
    server.settings.log_level = "WARNING"
    server.run(
        "streamable-http", port=int(sys.argv[-1]), json_response="--sse" not in sys.argv, max_sessions=None
    )
