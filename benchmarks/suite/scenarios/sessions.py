"""Many sessions at once: the memory of an idle one, the cost of calls beside them, and a change sent to all."""

from __future__ import annotations

import time

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.job import Point
from benchmarks.suite.peers import PEERS
from benchmarks.suite.scenarios.loops import closed_loop, warm_up
from benchmarks.suite.scenarios.roundtrip import latency
from mcp_actors.cli.bench.plan import Calls, LoadError, request

__all__ = ["fan_out", "many_sessions"]

ITEM = "bench://item"
WINDOW = 32
SETTLE_SECONDS = 0.2
NOT_WARM = "for the sake of the memory it was not warmed by many calls: ratios to its speed flatter us"
TOLD_WITHIN_SECONDS = 30.0


async def many_sessions(bench: Bench) -> list[Point]:
    """More and more sessions; at each number, their memory, calls spread over all of them, then churn.

    Ends at the first number that the peer does not take.
    """
    field = bench.field
    first = await field.begin()
    await warm_up(bench, first, briefly=True)
    field.rest(first)
    # Never two at once on one connection: among few sessions they would share reads and writes, among many not.
    window = min(WINDOW, *bench.get("sessions"))
    for _ in range(window):
        lane = await field.begin()
        field.rest(lane)
    lanes = [first]
    calls = Calls(bench.era)
    note = NOT_WARM if PEERS[bench.job.peer].warm_up_calls else ""
    empty = bench.server.resident_kib()
    points: list[Point] = []
    for number in bench.get("sessions"):
        before = len(lanes)
        try:
            with bench.timed() as begun:
                while len(lanes) <= number:
                    lane = await field.begin()
                    lanes.append(lane)
                    field.rest(lane)
        except LoadError as error:
            if not points:
                raise
            points[-1].note = f"session {len(lanes)}: {error}"
            return points
        await field.pause(SETTLE_SECONDS)
        metrics = {
            "kib_each": (bench.server.resident_kib() - empty) / number,
            "setups_per_second": (len(lanes) - before) / begun.seconds,
            "setup_cpu_us": begun.server_cpu / (len(lanes) - before) * 1e6,
        }
        order = bench.chance.sample(lanes, len(lanes))
        with bench.timed() as clock:
            taken = await closed_loop(
                bench, order, calls.__getitem__, window=window, seconds=bench.job.seconds
            )
        taken.check(bench.chance)
        count = len(taken.took)
        metrics |= {"per_second": count / clock.seconds, "cpu_us": clock.server_cpu / count * 1e6}
        metrics |= latency(taken)
        points.append(Point({"sessions": number}, metrics, taken.took, clock.generator, note))
    churned, deadline = 0, time.perf_counter() + bench.job.seconds
    with bench.timed() as clock:
        while time.perf_counter() < deadline:
            lane = await field.begin()
            await field.leave(lane)
            churned += 1
    points[-1].metrics["churn_per_second"] = churned / clock.seconds
    return points


async def _subscribe(bench: Bench) -> int:
    lane = await bench.field.begin()
    if bench.era == "legacy":
        await bench.field.attend(lane)
        await bench.field.ask(lane, request("legacy", next(bench.ids), "resources/subscribe", {"uri": ITEM}))
        return lane
    wanted = {"notifications": {"resourceSubscriptions": [ITEM]}}
    bench.field.post(lane, request("modern", next(bench.ids), "subscriptions/listen", wanted))
    while not any(b"acknowledged" in data for _, data in await bench.field.arrivals()):
        pass
    return lane


async def fan_out(bench: Bench) -> list[Point]:
    """Sends one change to many subscribers, and measures when each of them receives it."""
    field = bench.field
    points = []
    teller = await field.begin()
    await warm_up(bench, teller)
    subscribers: set[int] = set()
    for number in bench.get("subscribers"):
        while len(subscribers) < number:
            subscribers.add(await _subscribe(bench))
        took: list[float] = []
        rounds = 0
        with bench.timed() as clock:
            while rounds < bench.get("changes"):
                heard: set[int] = set()
                id = next(bench.ids)
                asked, answered = time.perf_counter(), False
                field.post(teller, request(bench.era, id, "tools/call", {"name": "touch", "arguments": {}}))
                while len(heard) < number or not answered:
                    for lane, data in await field.arrivals(asked + TOLD_WITHIN_SECONDS):
                        if b"resources/updated" in data and lane not in heard:
                            heard.add(lane)
                            took.append(time.perf_counter() - asked)
                        answered = answered or (lane == teller and b'"result"' in data)
                    if time.perf_counter() > asked + TOLD_WITHIN_SECONDS:
                        raise LoadError(f"only {len(heard)} of {number} subscribers were notified")
                rounds += 1
        metrics = {
            "per_second": len(took) / clock.seconds,
            "p50_us": percentile_us(took, 0.5),
            "p99_us": percentile_us(took, 0.99),
            "max_us": max(took) * 1e6,
            "cpu_us": clock.server_cpu / len(took) * 1e6,
        }
        points.append(Point({"subscribers": number}, metrics, took, clock.generator))
    return points
