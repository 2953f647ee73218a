"""A mixed load: several users, each of which thinks, sends one of several requests and waits for the answer."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.job import Point
from benchmarks.suite.scenarios.loops import warm_up
from mcp_actors.cli.bench.plan import LoadError, Message, id_of, request

__all__ = ["mixed"]

ITEM = "bench://item"
TEXT = "x" * 2048
THINK_SECONDS = 0.02

# How often of a hundred, the method, its parameters, whether it reports progress.
MIX: tuple[tuple[int, str, dict[str, Any], bool], ...] = (
    (55, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, False),
    (15, "tools/call", {"name": "echo", "arguments": {"text": TEXT}}, False),
    (10, "resources/read", {"uri": ITEM}, False),
    (10, "tools/list", {}, False),
    (5, "prompts/get", {"name": "greet", "arguments": {"name": "Ann"}}, False),
    (5, "tools/call", {"name": "steps", "arguments": {"count": 3, "size": 64}}, True),
)


def _asks(bench: Bench) -> Callable[[int], Message]:
    weights = [each[0] for each in MIX]

    def make(id: int) -> Message:
        _, method, params, progress = bench.chance.choices(MIX, weights)[0]
        return request(bench.era, id, method, params, progress=progress)

    return make


def _think(bench: Bench) -> float:
    return bench.chance.expovariate(1.0 / THINK_SECONDS)


async def mixed(bench: Bench) -> list[Point]:
    """Users share one lane; a think time is drawn from an exponential distribution. From asking to the answer."""
    lane = await bench.field.begin()
    await warm_up(bench, lane)
    make = _asks(bench)
    points = []
    for users in bench.get("users"):
        sent: dict[int, float] = {}
        took: list[float] = []
        with bench.timed() as clock:
            begun = time.perf_counter()
            until = begun + bench.job.seconds
            due = sorted(begun + _think(bench) for _ in range(users))
            while sent or time.perf_counter() < until:
                now = time.perf_counter()
                while due and due[0] <= min(now, until):
                    id = next(bench.ids)
                    sent[id] = heapq.heappop(due)
                    bench.field.post(lane, make(id))
                waiting = due[0] if due and due[0] < until else None if sent else until
                for _, data in await bench.field.arrivals(waiting):
                    answered = None if b'"method"' in data[:40] else id_of(data)
                    if answered is None:
                        continue
                    if b'"error"' in data:
                        raise LoadError(f"not a good answer: {data[:300]!r}")
                    now = time.perf_counter()
                    took.append(now - sent.pop(answered))
                    heapq.heappush(due, now + _think(bench))
        metrics = {
            "per_second": len(took) / clock.seconds,
            "p50_us": percentile_us(took, 0.5),
            "p99_us": percentile_us(took, 0.99),
            "cpu_us": clock.server_cpu / len(took) * 1e6,
        }
        points.append(Point({"users": users}, metrics, took))
    return points
