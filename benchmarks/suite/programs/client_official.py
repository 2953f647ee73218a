"""The official Python client, in a loop; runs in an environment of its own. See `scenarios.clients`."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import sys
import time
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters


async def measure(client: Any, window: int, seconds: float) -> dict[str, float]:
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            number = done
            result = await client.call_tool("add", {"a": number, "b": 1})
            assert result.structured_content["total"] == number + 1
            done += 1

    started, cpu_started = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(window)))
    cpu_used, elapsed = time.process_time() - cpu_started, time.perf_counter() - started
    return {"in_flight": window, "calls": done, "seconds": elapsed, "cpu": cpu_used}


async def main(work: dict[str, Any]) -> None:
    target: Any = work["url"]
    if target == "memory:":
        # Where it is imported it switches on logging, so not for the other transports.
        target = importlib.import_module("official").server
    elif target.startswith("stdio:"):
        command, *arguments = shlex.split(target.removeprefix("stdio:"))
        target = StdioServerParameters(command=command, args=arguments)
    async with Client(target, mode="legacy" if work["era"] == "legacy" else "auto") as client:
        await measure(client, max(work["windows"]), work["warm_up"])
        print(json.dumps([await measure(client, window, work["seconds"]) for window in work["windows"]]))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
