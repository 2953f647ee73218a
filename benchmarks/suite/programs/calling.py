"""A closed loop of calls, for the measurement of a client on Trio."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

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
    async with trio.open_nursery() as nursery:
        for _ in range(window):
            nursery.start_soon(caller)
    cpu, elapsed = time.process_time() - cpu_started, time.perf_counter() - started
    return {"in_flight": window, "calls": done, "seconds": elapsed, "cpu": cpu}
