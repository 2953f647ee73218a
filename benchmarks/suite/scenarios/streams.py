"""More than one message for a request: progress as fast as it goes, a peer that reads none of it, long messages."""

from __future__ import annotations

import time

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.job import Point
from benchmarks.suite.scenarios.loops import Taken, closed_loop, warm_up
from benchmarks.suite.scenarios.roundtrip import latency
from mcp_actors.cli.bench.plan import Calls, LoadError, answer_to, id_of, request

__all__ = ["large_payload", "progress_stream", "stalled_peer"]

PROGRESS_BYTES = 64
STALLED_MESSAGES, STALLED_BYTES = 100_000_000, 16_384
# What the kernels hold between a server and a client that does not read is filled by then.
FILL_SECONDS = 0.4
BESIDE_WITHIN_SECONDS = 5.0
SLICES = 4


async def progress_stream(bench: Bench) -> list[Point]:
    """Calls that report progress; every report is counted."""
    lane = await bench.field.begin()
    await warm_up(bench, lane)
    points = []
    for messages in bench.get("messages"):
        received, took = 0, list[float]()
        with bench.timed() as clock:
            until = time.perf_counter() + bench.job.seconds
            while time.perf_counter() < until:
                arguments = {"count": messages, "size": PROGRESS_BYTES}
                params = {"name": "steps", "arguments": arguments}
                message = request(bench.era, next(bench.ids), "tools/call", params, progress=True)
                asked, seen, done = time.perf_counter(), 0, False
                bench.field.post(lane, message)
                while not done:
                    for _, data in await bench.field.arrivals():
                        seen += b"notifications/progress" in data
                        done = done or (id_of(data) == message.id and b'"result"' in data)
                took.append(time.perf_counter() - asked)
                if seen != messages:
                    raise LoadError(f"{seen} of {messages} progress reports came")
                received += seen
        metrics = {
            "per_second": received / clock.seconds,
            "cpu_us": clock.server_cpu / received * 1e6,
            "p50_us": percentile_us(took, 0.5),
        }
        points.append(Point({"reports_a_call": messages}, metrics, took, clock.generator))
    return points


async def stalled_peer(bench: Bench) -> list[Point]:
    """Live calls without, then beside a peer that asks for much and reads nothing; slices take turns."""
    field = bench.field
    live = await field.begin()
    await warm_up(bench, live)
    points = []
    for window in bench.get("live"):
        slices: dict[bool, list[Taken]] = {False: [], True: []}
        resident = bench.server.resident_kib()
        growth = 0.0
        with bench.timed() as clock:
            for number in range(SLICES):
                beside = number % 2 == 1
                if not beside:
                    slices[beside].append(await _live_calls(bench, live, window))
                    continue
                stalled = await _stalled(bench, live)
                slices[beside].append(await _live_calls(bench, live, window))
                growth = max(growth, (bench.server.resident_kib() - resident) / 1024)
                await field.leave(stalled)
                await field.pause(FILL_SECONDS)
        for beside, several in slices.items():
            joined = Taken([each for taken in several for each in taken.took])
            metrics = latency(joined) | ({"growth_mib": growth} if beside else {})
            at: dict[str, int | str] = {"live_calls": window, "beside": "stalled" if beside else "nobody"}
            points.append(Point(at, metrics, joined.took, clock.generator))
    return points


async def _live_calls(bench: Bench, lane: int, window: int) -> Taken:
    make = Calls(bench.era).__getitem__
    taken = await closed_loop(bench, [lane], make, window=window, seconds=bench.job.seconds / 2)
    taken.check(bench.chance)
    return taken


async def _stalled(bench: Bench, live: int) -> int:
    """A peer that wants more than it will ever read. Raises `LoadError` if no other peer is answered beside it."""
    field, server = bench.field, bench.server
    lane = await field.begin()
    arguments = {"count": STALLED_MESSAGES, "size": STALLED_BYTES}
    params = {"name": "steps", "arguments": arguments}
    field.post(lane, request(bench.era, next(bench.ids), "tools/call", params, progress=True))
    await field.stall(lane)
    await field.pause(FILL_SECONDS)
    before, cpu_before, asked = server.resident_kib(), server.cpu_seconds(), time.perf_counter()
    field.post(live, Calls(bench.era)[next(bench.ids)])
    # Only the live lane is read from now on, and this is all that it has asked.
    if not await field.arrivals(asked + BESIDE_WITHIN_SECONDS):
        grown, busy = server.resident_kib() - before, server.cpu_seconds() - cpu_before
        raise LoadError(
            f"nobody is answered beside a peer that does not read: in {BESIDE_WITHIN_SECONDS:g} s the server was "
            f"busy for {busy:.1f} s and took {grown / 1024:.0f} MiB more, as one does whose sends wait for nothing"
        )
    return lane


async def large_payload(bench: Bench) -> list[Point]:
    """One text there and back, longer and longer; ends at the first length that the peer does not take."""
    lane = await bench.field.begin()
    await warm_up(bench, lane)
    points: list[Point] = []
    for size in bench.get("bytes"):
        text = "x" * size
        took: list[float] = []
        until = time.perf_counter() + bench.job.seconds
        try:
            with bench.timed() as clock:
                while not took or time.perf_counter() < until:
                    params = {"name": "echo", "arguments": {"text": text}}
                    message = request(bench.era, next(bench.ids), "tools/call", params)
                    asked = time.perf_counter()
                    bench.field.post(lane, message)
                    arrived = await bench.field.arrivals()
                    took.append(time.perf_counter() - asked)
            if answer_to(arrived[-1][1])["content"][0]["text"] != text:
                raise LoadError(f"{size} bytes came back changed")
        except LoadError as error:
            if not points:
                raise
            points[-1].note = f"{size} bytes: {error}"
            break
        metrics = {
            "p50_us": percentile_us(took, 0.5),
            "mib_per_second": 2 * size * len(took) / sum(took) / 2**20,
            "rss_mib": bench.server.peak_mib(),
            "cpu_us": clock.server_cpu / len(took) * 1e6,
        }
        points.append(Point({"bytes": size}, metrics, took))
    return points
