"""The time from a client's cancellation to the ``Cancelled`` in the handler."""

from __future__ import annotations

import time

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.job import Point
from benchmarks.suite.scenarios.loops import warm_up
from mcp_actors.cli.bench.plan import LoadError, request

__all__ = ["cancel_latency"]

BEGIN_WITHIN_SECONDS = 10.0
# Handlers that are not cancelled by then are counted as if they had been; the figure is a lower bound then.
CANCEL_WITHIN_SECONDS = 2.0
LOOK_EVERY_SECONDS = 0.0005
# A caller changes its mind at no particular moment of the server's clocks.
LONGEST_STAY_SECONDS = 0.005


async def _moment_of(bench: Bench, word: str, within: float) -> float | None:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for said, moment in bench.server.events.all():
            if said == word:
                return moment
        await bench.field.pause(LOOK_EVERY_SECONDS)
    return None


async def cancel_latency(bench: Bench) -> list[Point]:
    """Callers one after the other; the times are both of the system's monotonic clock, one by each process."""
    lane = await bench.field.begin()
    await warm_up(bench, lane)
    took: list[float] = []
    never = 0
    for _ in range(bench.get("cancels")):
        id = next(bench.ids)
        bench.field.post(lane, request(bench.era, id, "tools/call", {"name": "hang", "arguments": {}}))
        if await _moment_of(bench, "began", BEGIN_WITHIN_SECONDS) is None:
            raise LoadError("the handler did not begin")
        await bench.field.pause(bench.chance.uniform(0.0, LONGEST_STAY_SECONDS))
        asked = time.monotonic()
        bench.field.cancel(lane, id)
        await bench.field.pause(0.0)
        ended = await _moment_of(bench, "cancelled", CANCEL_WITHIN_SECONDS)
        took.append(max(0.0, ended - asked) if ended is not None else CANCEL_WITHIN_SECONDS)
        never += ended is None
        if never >= 3:
            break
    metrics = {"p50_us": percentile_us(took, 0.5), "max_us": max(took) * 1e6, "never": float(never)}
    return [Point({}, metrics, took)]
