"""Calls per second of our client against our server in the same process."""

from __future__ import annotations

import json
import sys
import time
from typing import Literal

import trio

from benchmarks.peers.ours import server
from mcp_actors import Client


async def calls_per_second(client: Client, window: int, seconds: float) -> float:
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            result = await client.call_tool("add", {"a": done, "b": 1})
            assert result.structured_content["total"] > 0
            done += 1

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(window):
            nursery.start_soon(caller)
    return done / (time.perf_counter() - started)


async def main(era: str, window: int, seconds: float) -> None:
    mode: Literal["auto", "legacy"] = "legacy" if era == "legacy" else "auto"
    async with Client(server, era=mode) as client:
        await calls_per_second(client, window, min(0.5, seconds))
        print(json.dumps({"per_second": await calls_per_second(client, window, seconds)}))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
