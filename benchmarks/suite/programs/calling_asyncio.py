"""A closed loop of calls, for the measurement of a client on asyncio. It needs nothing, so that any peer can use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["measure"]


async def measure(add: Callable[[int], Awaitable[int]], window: int, seconds: float) -> dict[str, float]:
    """``add(number)`` calls the tool with it and one, and returns the sum. Raises `AssertionError` for a wrong one."""
    done = 0
    deadline = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            number = done
            assert await add(number) == number + 1
            done += 1

    started, cpu_started = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(window)))
    cpu, elapsed = time.process_time() - cpu_started, time.perf_counter() - started
    return {"in_flight": window, "calls": done, "seconds": elapsed, "cpu": cpu}
