"""Calls per second of the official client against an official server in the same process."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from mcp import Client

from benchmarks.peers.official import server


async def calls_per_second(client: Any, window: int, seconds: float) -> float:
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            result = await client.call_tool("add", {"a": done, "b": 1})
            assert result.structured_content["total"] > 0
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(window)))
    return done / (time.perf_counter() - started)


async def main(era: str, window: int, seconds: float) -> None:
    async with Client(server, mode="legacy" if era == "legacy" else "auto") as client:
        await calls_per_second(client, window, min(0.5, seconds))
        print(json.dumps({"per_second": await calls_per_second(client, window, seconds)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
