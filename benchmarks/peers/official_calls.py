"""Calls per second of the official client: what is measured in memory and over HTTP alike.

Apart from the official server, which switches on logging where it is imported.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any


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
