"""Calls of a small typed tool: their rate and latency at several loads, in both eras, and as they arrive."""

from __future__ import annotations

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.job import Point
from benchmarks.suite.peers import OURS
from benchmarks.suite.scenarios.loops import Taken, closed_loop, open_loop, warm_up
from mcp_actors.cli.bench.plan import Calls

__all__ = ["awaits_once", "latency", "measure_window", "ragged_arrival", "roundtrip"]

# Of fewer requests that percentile is the longest.
ENOUGH_FOR_P999 = 1000
# It lets others run once before it adds, in each program in its own way: one turn of the scheduler and of its I/O.
AWAITING = "add_awaiting"


def latency(taken: Taken) -> dict[str, float]:
    return {"p50_us": percentile_us(taken.took, 0.5), "p99_us": percentile_us(taken.took, 0.99)}


async def measure_window(bench: Bench, lanes: list[int], window: int, tool: str, seconds: float) -> Point:
    """One closed loop; with one request in flight, generator and server share a processor."""
    calls = Calls(bench.era, tool)
    with bench.one_processor(window == 1), bench.timed() as clock:
        taken = await closed_loop(bench, lanes, calls.__getitem__, window=window, seconds=seconds)
    taken.check(bench.chance)
    count = len(taken.took)
    metrics = {
        "per_second": count / clock.seconds,
        "cpu_us": clock.server_cpu / count * 1e6,
        "rss_mib": bench.server.peak_mib(),
    }
    # One processor for both: its share says nothing about who waits for whom.
    generator = clock.generator if window > 1 else None
    return Point({"in_flight": window}, metrics | latency(taken), taken.took, generator)


async def roundtrip(bench: Bench) -> list[Point]:
    """Closed loops of every window and every tool that is wanted of the peer, then open loops at every rate."""
    lane = await bench.field.begin()
    await warm_up(bench, lane)
    points = []
    tools = ["add", "add_inline"] if bench.job.peer == OURS and bench.get("inline") else ["add"]
    for tool in tools:
        for window in bench.get("windows"):
            point = await measure_window(bench, [lane], window, tool, bench.job.seconds)
            if tool != "add":
                point.at["tool"] = "inline"
            points.append(point)
    for rate in bench.get("rates"):
        with bench.timed() as clock:
            taken = await open_loop(
                bench, lane, Calls(bench.era).__getitem__, rate=rate, seconds=bench.job.seconds
            )
        taken.check(bench.chance)
        metrics = {
            "per_second": len(taken.took) / clock.seconds,
            "late_p99_us": percentile_us(taken.late, 0.99),
        }
        if len(taken.took) >= ENOUGH_FOR_P999:
            metrics["p999_us"] = percentile_us(taken.took, 0.999)
        points.append(Point({"arrivals_per_second": rate}, metrics | latency(taken), taken.took))
    return points


async def awaits_once(bench: Bench) -> list[Point]:
    """Closed loops of a tool that waits for the scheduler once, as a tool with any input or output does."""
    return await _windows(bench, AWAITING)


async def ragged_arrival(bench: Bench) -> list[Point]:
    """Closed loops over a field that sends requests in pieces: see `Scenario.ragged`."""
    return await _windows(bench, "add")


async def _windows(bench: Bench, tool: str) -> list[Point]:
    lane = await bench.field.begin()
    await warm_up(bench, lane, tool=tool)
    return [
        await measure_window(bench, [lane], window, tool, bench.job.seconds)
        for window in bench.get("windows")
    ]
