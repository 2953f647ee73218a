"""Whether a client that reads nothing slows the others: the 99th percentile of live calls, without and beside it."""

from __future__ import annotations

import itertools
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from benchmarks.http.driver import ANSWER_WITHIN_SECONDS, connect
from benchmarks.http.listening import ListeningServer
from benchmarks.http.load import load_server, percentile_ms
from benchmarks.http.wire import FIRST_ID, LAST_ID, call, sum_template
from benchmarks.suite.process import LoadError

__all__ = ["StalledMeasured", "measure_stalled"]

CONNECTIONS = 200
# Slices with and without take turns, so that a drift of the machine meets both.
SLICES = 6
FLOOD_MESSAGE_BYTES = 16384
# What the kernels hold between a server and a client that does not read is filled by then.
FILL_SECONDS = 0.5


@dataclass
class StalledMeasured:
    """Milliseconds; medians over the slices of the round."""

    alone_p99_ms: float
    beside_p99_ms: float
    times: float
    per_second_alone: float
    per_second_beside: float


@contextmanager
def _stalled(port: int) -> Iterator[socket.socket]:
    """A client whose call reports progress without end: it reads the head of the stream, and no more."""
    with connect(port) as connection:
        connection.sendall(call(port, "modern", "", LAST_ID, "flood", {"size": FLOOD_MESSAGE_BYTES}))
        connection.settimeout(ANSWER_WITHIN_SECONDS)
        head = connection.recv(512)
        if b" 200 " not in head or b"text/event-stream" not in head.lower():
            raise LoadError(f"this is no event stream: {head!r}")
        time.sleep(FILL_SECONDS)
        yield connection


def measure_stalled(command: list[str], *, seconds: float, connections: int = CONNECTIONS) -> StalledMeasured:
    """Starts ``command PORT``; loads it for ``seconds`` in all, half of them beside a client that reads nothing."""
    p99: dict[bool, list[float]] = {False: [], True: []}
    rate: dict[bool, list[float]] = {False: [], True: []}
    ids = itertools.count(FIRST_ID)
    with ListeningServer(command) as server:
        template = sum_template(server.port, "modern")
        load_server(server.port, template, ids, connections=connections, seconds=60.0, most=5)
        for number in range(SLICES):
            beside = number % 2 == 1
            with _stalled(server.port) if beside else nullcontext():
                driven, tally = load_server(
                    server.port, template, ids, connections=connections, seconds=seconds / SLICES
                )
            p99[beside].append(percentile_ms(tally.took, 0.99))
            rate[beside].append(len(tally.took) / driven.seconds)
    alone, with_it = statistics.median(p99[False]), statistics.median(p99[True])
    return StalledMeasured(
        alone, with_it, with_it / alone, statistics.median(rate[False]), statistics.median(rate[True])
    )
