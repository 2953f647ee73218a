"""Calls per second of the official client against an official server in the same process."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from mcp import Client

from benchmarks.peers.official import server


async def measure(client: Any, window: int, seconds: float) -> dict[str, float]:
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            result = await client.call_tool("add", {"a": done, "b": 1})
            assert result.structured_content["total"] > 0
            done += 1

    started, cpu_started = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(window)))
    cpu_seconds = time.process_time() - cpu_started
    return {"per_second": done / (time.perf_counter() - started), "cpu_us": cpu_seconds / done * 1e6}


async def main(era: str, window: int, seconds: float) -> None:
    async with Client(server, mode="legacy" if era == "legacy" else "auto") as client:
        await measure(client, window, min(0.5, seconds))
        print(json.dumps(await measure(client, window, seconds)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
