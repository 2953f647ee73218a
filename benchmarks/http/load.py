"""Requests per second over HTTP: one tool, 32 keep-alive connections, the server's processor time per request."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.http.driver import Conversation, Driven, drive
from benchmarks.http.listening import ListeningServer
from benchmarks.http.wire import FIRST_ID, LAST_ID, Reply, handshake, initialized, result_of, sum_template
from benchmarks.load import Era
from benchmarks.suite.process import LoadError, cpu_seconds, resident_kib

__all__ = ["HttpMeasured", "Tally", "load_server", "measure_http", "open_session", "percentile_ms"]

CONNECTIONS = 32
WARM_UP_CALLS = 300
# Replies whose sum is decoded and compared after the clock has stopped; of all others the id is.
SAMPLE = 200


@dataclass
class HttpMeasured:
    """One round. ``cpu_us`` is the processor time that the server process took per request, whoever else was busy;
    ``generator`` is the share of a processor that the load itself took, ``bytes_each`` the length of a response.
    """

    requests: int
    seconds: float
    per_second: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    rss_mib: float
    bytes_each: float
    generator: float


@dataclass
class Tally:
    """What was asked and answered; checked when the clock has stopped."""

    asked: list[int] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def check(self) -> None:
        """Every answer is a good one to its own request. Raises `LoadError` with the number of those that are not."""
        bad = [
            reply
            for asked, reply in zip(self.asked, self.replies, strict=True)
            if reply.status != 200
            or b"%d" % asked not in reply.body
            or b'"error"' in reply.body
            or b'"isError":true' in reply.body
        ]
        if bad:
            first = f"{bad[0].status} {bad[0].body[:300]!r}"
            raise LoadError(f"{len(bad)} of {len(self.replies)} answers are not good; the first: {first}")
        for number in random.sample(range(len(self.asked)), min(SAMPLE, len(self.asked))):
            result = result_of(self.replies[number])
            if result.get("structuredContent") != {"total": self.asked[number] + 1}:
                raise LoadError(f"a wrong sum: {self.replies[number].body[:300]!r}")


def percentile_ms(took: list[float], share: float) -> float:
    """Milliseconds within which that share of requests was answered."""
    return sorted(took)[min(len(took) - 1, int(len(took) * share))] * 1000


def open_session(port: int) -> str:
    """Begins a legacy session; returns its id."""
    session = ""

    def conversation() -> Conversation:
        nonlocal session
        reply = yield handshake(port)
        result_of(reply)
        session = reply.session
        reply = yield initialized(port, session)
        if reply.status != 202:
            raise LoadError(f"initialized: {reply.status} {reply.body[:300]!r}")

    drive(port, [conversation()])
    return session


def _calls(template: bytes, ids: Iterator[int], until: float, most: int, tally: Tally) -> Conversation:
    clock = time.perf_counter
    asked, replies, took = tally.asked.append, tally.replies.append, tally.took.append
    for _ in range(most):
        id = next(ids)
        sent = clock()
        reply = yield template % (id, id)
        now = clock()
        took(now - sent)
        asked(id)
        replies(reply)
        if now >= until:
            return


def load_server(
    port: int, template: bytes, ids: Iterator[int], *, connections: int, seconds: float, most: int = LAST_ID
) -> tuple[Driven, Tally]:
    """Calls ``add`` over so many connections, each at most ``most`` times; every answer is a good one."""
    tally = Tally()
    until = time.perf_counter() + seconds
    driven = drive(port, [_calls(template, ids, until, most, tally) for _ in range(connections)])
    tally.check()
    return driven, tally


def measure_http(
    command: list[str],
    *,
    era: Era,
    seconds: float,
    connections: int = CONNECTIONS,
    warm_up: int = WARM_UP_CALLS,
) -> HttpMeasured:
    """Starts ``command PORT``, warms it up, and loads it for ``seconds``. All legacy calls are of one session."""
    with ListeningServer(command) as server:
        session = open_session(server.port) if era == "legacy" else ""
        template = sum_template(server.port, era, session)
        ids = itertools.count(FIRST_ID)
        most = 1 + warm_up // connections
        load_server(server.port, template, ids, connections=connections, seconds=60.0, most=most)
        cpu_before = cpu_seconds(server.pid)
        driven, tally = load_server(server.port, template, ids, connections=connections, seconds=seconds)
        cpu_used = cpu_seconds(server.pid) - cpu_before
        resident = resident_kib(server.pid)
    driven.warn()
    count = len(tally.took)
    return HttpMeasured(
        requests=count,
        seconds=driven.seconds,
        per_second=count / driven.seconds,
        cpu_us=cpu_used / count * 1e6,
        p50_ms=percentile_ms(tally.took, 0.5),
        p99_ms=percentile_ms(tally.took, 0.99),
        rss_mib=resident / 1024,
        bytes_each=driven.received / count,
        generator=driven.own_share,
    )
