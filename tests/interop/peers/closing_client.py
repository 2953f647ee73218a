"""The official Python SDK's client, of either generation, closes a server over stdio while a call is in flight.

Usage: closing_client.py TIMES TOGETHER COMMAND [ARG...]; prints the seconds that the slowest close took.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def once(command: str, *args: str) -> float:
    begun = anyio.Event()

    async def on_progress(*report: Any) -> None:
        begun.set()

    async with stdio_client(StdioServerParameters(command=command, args=list(args))) as (reads, writes):
        async with ClientSession(reads, writes) as session:
            await session.initialize()
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    # Given up together with the session, not by a cancellation of the request.
                    await session.call_tool("hang", {}, progress_callback=on_progress)

                group.start_soon(call)
                await begun.wait()
                # The peer's program is told nothing: its input ends, as when a host exits.
                await writes.aclose()
                group.cancel_scope.cancel()
        began = time.monotonic()
    return time.monotonic() - began


async def main(times: int, together: int, *command: str) -> None:
    taken: list[float] = []
    limiter = anyio.CapacityLimiter(together)

    async def one() -> None:
        async with limiter:
            taken.append(await once(*command))

    async with anyio.create_task_group() as group:
        for _ in range(times):
            group.start_soon(one)
    print(max(taken))


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
