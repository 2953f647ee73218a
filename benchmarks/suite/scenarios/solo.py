"""Scenarios that start servers themselves: the time of a start, both eras side by side, and JSON alone."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from benchmarks.suite.bench import Bench
from benchmarks.suite.job import BenchmarkJob, Point
from benchmarks.suite.peers import server_command
from benchmarks.suite.scenarios.loops import warm_up
from benchmarks.suite.scenarios.roundtrip import measure_window
from benchmarks.suite.server import ROOT
from mcp_actors.cli.bench.plan import Era, LoadError

__all__ = ["Start", "codec", "eras", "startup"]

CODEC_WITHIN_SECONDS = 60.0
SLICES = 3

# Starts a server of the job, in the given era, for the length of a block.
Start = Callable[[Era], AbstractAsyncContextManager[Bench]]


async def startup(job: BenchmarkJob, start: Start) -> list[Point]:
    """From starting the process to its first answer.

    A start before that is in no figure: with it the files are in the system's cache, and what Python and Node compile
    of them in theirs, as it is on a machine where the server was ever used.
    """
    async with start(job.era) as bench:
        await bench.field.begin()
    started = time.perf_counter()
    async with start(job.era) as bench:
        await bench.field.begin()
        elapsed = time.perf_counter() - started
        metrics = {"start_ms": elapsed * 1000, "rss_mib": bench.server.peak_mib()}
        if bench.server.pid:
            metrics["start_cpu_ms"] = bench.server.cpu_seconds() * 1000
    return [Point({}, metrics)]


async def eras(job: BenchmarkJob, start: Start) -> list[Point]:
    """One server for each era; slices take turns, so that a drift of the machine meets both."""
    found: dict[tuple[str, int], list[Point]] = {}
    async with AsyncExitStack() as stack:
        benches = [await stack.enter_async_context(start(era)) for era in ("legacy", "modern")]
        lanes = [await bench.field.begin() for bench in benches]
        for bench, lane in zip(benches, lanes, strict=True):
            await warm_up(bench, lane)
        for window in job.parameters["windows"]:
            for _ in range(SLICES):
                for bench, lane in zip(benches, lanes, strict=True):
                    point = await measure_window(bench, [lane], window, "add", job.seconds / SLICES)
                    found.setdefault((bench.era, window), []).append(point)
    return [_joined(era, window, points) for (era, window), points in found.items()]


def _joined(era: str, window: int, points: list[Point]) -> Point:
    metrics = {
        name: sum(point.metrics[name] for point in points) / len(points)
        for name in ("per_second", "cpu_us", "p50_us", "p99_us")
    }
    took = [each for point in points for each in point.took]
    shares = [point.generator for point in points if point.generator is not None]
    return Point({"era": era, "in_flight": window}, metrics, took, max(shares) if shares else None)


async def codec(job: BenchmarkJob, start: Start) -> list[Point]:
    """The peer's own way from bytes to a message and back, no transport and no scheduler."""
    command = server_command(job.peer, job.prepared, f"codec:{job.seconds}")
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        command, cwd=ROOT, capture_output=True, text=True, timeout=CODEC_WITHIN_SECONDS, check=False
    )
    if done.returncode:
        raise LoadError(f"codec: {done.stderr[-500:]}")
    answer = json.loads(done.stdout)
    return [Point({"bytes": size}, metrics) for size, metrics in answer.items()]
