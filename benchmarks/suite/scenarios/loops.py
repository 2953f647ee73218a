"""Closed loops, with a fixed number of requests in flight, and open loops, with a fixed rate of requests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.suite.bench import Bench
from benchmarks.suite.peers import PEERS
from mcp_actors.cli.bench.plan import Calls, LoadError, Message, check_sums, id_of

__all__ = ["Taken", "closed_loop", "open_loop", "warm_up"]

WARM_UP_CALLS = 300
WARM_UP_SECONDS = 3.0
# Where calls are fast, Node compiles the last of what they need after more than those of its warm-up: over stdio after
# some 40,000. So a warm-up by calls takes so long at least, or so many times the length of a loop: toys need less.
COMPILED_WITHIN_SECONDS = 4.0
LOOPS_OF_WARM_UP = 8.0
# A program that has not answered its calls by then gives no figure, because a ratio to it would flatter us.
WARM_WITHIN_SECONDS = 90.0
SLICE_SECONDS = 0.5
# More than that is not sent at once, however far behind the server is; their time runs all the same.
MOST_IN_FLIGHT = 1000
# A rate that is not held is given up after so many times the length of the loop.
PATIENCE = 3.0


@dataclass
class Taken:
    """The seconds of each request, the answers, and in an open loop the delay of the generator itself."""

    took: list[float] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def check(self, chance: random.Random) -> None:
        """Every answer is a good sum, and there is one. Raises `LoadError` otherwise."""
        if not self.answers:
            raise LoadError("nothing was answered")
        check_sums(self.answers, chance)


def _match(sent: dict[int, float], data: bytes) -> float | None:
    """The time at which the request of an answer was sent, or ``None`` for a notification."""
    if b'"method"' in data[:40]:
        return None
    id = id_of(data)
    if id is None:
        return None
    try:
        return sent.pop(id)
    except KeyError:
        raise LoadError(f"an answer that was not asked for, or given twice: {data[:200]!r}") from None


async def closed_loop(
    bench: Bench,
    lanes: Sequence[int],
    make: Callable[[int], Message],
    *,
    window: int,
    seconds: float,
    most: int = 2**53,
) -> Taken:
    """Keeps ``window`` requests in flight, each on the next of ``lanes``, for so long or so many."""
    taken = Taken()
    bench_field, ids, clock = bench.field, bench.ids, time.perf_counter
    post, sent = bench_field.post, dict[int, float]()
    rest = bench_field.rest if len(lanes) > 1 else None
    number, asked = len(lanes), 0
    deadline = clock() + seconds
    now = clock()
    for _ in range(min(window, most)):
        id = next(ids)
        sent[id] = now
        post(lanes[asked % number], make(id))
        asked += 1
    while sent:
        arrived = await bench_field.arrivals()
        now = clock()
        for lane, data in arrived:
            before = _match(sent, data)
            if before is None:
                continue
            taken.took.append(now - before)
            taken.answers.append(data)
            if rest is not None:
                rest(lane)
            if now < deadline and asked < most:
                id = next(ids)
                sent[id] = now
                post(lanes[asked % number], make(id))
                asked += 1
    return taken


async def open_loop(
    bench: Bench, lane: int, make: Callable[[int], Message], *, rate: float, seconds: float
) -> Taken:
    """Requests arrive at a fixed rate whatever the server does; each takes from when it was meant to be sent."""
    taken = Taken()
    sent: dict[int, float] = {}
    clock = time.perf_counter
    total, number = max(1, round(rate * seconds)), 0
    begun = clock()
    give_up = begun + PATIENCE * seconds
    while number < total or sent:
        now = clock()
        while number < total and len(sent) < MOST_IN_FLIGHT and (due := begun + number / rate) <= now:
            id = next(bench.ids)
            sent[id] = due
            taken.late.append(now - due)
            bench.field.post(lane, make(id))
            number += 1
        if now > give_up:
            number = total
        idle = number >= total or len(sent) >= MOST_IN_FLIGHT
        arrived = await bench.field.arrivals(None if idle else begun + number / rate)
        now = clock()
        for _, data in arrived:
            before = _match(sent, data)
            if before is not None:
                taken.took.append(now - before)
                taken.answers.append(data)
    return taken


async def warm_up(
    bench: Bench, lane: int, window: int = 16, *, tool: str = "add", briefly: bool = False
) -> None:
    """Calls that are in no figure: what is loaded, compiled and allocated once belongs to no request.

    Briefly where memory is measured: what a long load leaves to be collected would be taken for what comes after it.
    """
    make = Calls(bench.era, tool).__getitem__
    calls = PEERS[bench.job.peer].warm_up_calls
    if calls and not briefly:
        await _until_compiled(bench, lane, make, window, calls)
        return
    most = min(WARM_UP_CALLS, round(WARM_UP_CALLS * bench.job.seconds) + window)
    await closed_loop(bench, [lane], make, window=window, seconds=WARM_UP_SECONDS, most=most)


async def _until_compiled(
    bench: Bench, lane: int, make: Callable[[int], Message], window: int, calls: int
) -> None:
    """Raises `LoadError` if so many calls are not answered in time."""
    begun, answered = time.perf_counter(), 0
    wanted = min(COMPILED_WITHIN_SECONDS, bench.job.seconds * LOOPS_OF_WARM_UP)
    while answered < calls or time.perf_counter() < begun + wanted:
        if time.perf_counter() > begun + WARM_WITHIN_SECONDS:
            raise LoadError(f"only {answered} of {calls} calls to warm it up in {WARM_WITHIN_SECONDS:g} s")
        taken = await closed_loop(bench, [lane], make, window=window, seconds=SLICE_SECONDS)
        answered += len(taken.took)
