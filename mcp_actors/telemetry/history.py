"""The last ten minutes of a server, for its live view: they are there before anybody looks.

A `Metrics` counts and times each call once. Every ten seconds a `HistoryRecorder` reads what it has counted, and the
differences between two readings are the history; a call costs nothing more for it. Without `Metrics` there is the
history of what the server counts itself: its requests, sessions and queues, and of the process.

Its memory has a bound: `SAMPLES` readings of `MOST_KEPT` operations each, some 5 MB if each of them is called all the
time.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import add, sub
from typing import NamedTuple

import msgspec
import trio

from mcp_actors._server.runtime import ServerRuntime
from mcp_actors.abc import Telemetry
from mcp_actors.errors import INTERNAL_ERROR
from mcp_actors.supervision.histogram import quantile_of_buckets
from mcp_actors.supervision.platform import process_numbers
from mcp_actors.supervision.printable import printable
from mcp_actors.telemetry.combined import Together
from mcp_actors.telemetry.exposition import FINE_BUCKETS, OTHER
from mcp_actors.telemetry.metrics import Key, Metrics
from mcp_actors.types.records import Number

__all__ = [
    "INTERVAL",
    "SAMPLES",
    "HistoryRecorder",
    "LoadHistory",
    "OperationRow",
    "ProcessRow",
    "counting",
    "is_failure",
    "metrics_in",
]

INTERVAL = 10.0
"""Seconds between two readings."""
SAMPLES = 60
"""Readings that are kept: ten minutes."""
# Operations whose calls one reading keeps apart, and those that a snapshot shows: the ones with the most calls.
MOST_KEPT, MOST_SHOWN = 200, 50
# Sessions that are looked at in one turn of the event loop.
SLICE = 1_000
# Methods whose calls last as long as their client likes, so that their latency says nothing of the server.
_OPEN_ENDED = frozenset({"subscriptions/listen", "tasks/result"})


class LoadHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The last ten minutes of a node, the oldest first: of each list one value for `interval` seconds."""

    interval: float
    until: float
    """The end of the last one, in seconds since the epoch."""
    requests: list[float] = []
    """Requests a second."""
    failed: list[float] = []
    """Failed calls a second; empty where no `Metrics` counts them, as the two that follow."""
    p50: list[float | None] = []
    """Seconds within which half of the calls ended; ``None`` without calls."""
    p99: list[float | None] = []
    running: list[Number] = []
    waiting: list[Number] = []
    sessions: list[Number] = []
    processor: list[float] = []
    """Processors that the process used: 1 is one of them all the time."""
    memory: list[Number] = []
    """Resident bytes; 0 where the system does not say it."""
    lag: list[float] = []
    """Seconds that a turn of the event loop took."""


class OperationRow(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one tool, prompt or other method in the last ten minutes, or the requests to one upstream."""

    method: str
    """Empty for an upstream."""
    target: str | None = None
    """The name of the tool or prompt."""
    upstream: str | None = None
    ended: Number
    """Calls that have ended since the server began."""
    rate: float | None = None
    """Calls that end in a second, since the last snapshot."""
    calls: Number = 0
    """Calls that have ended in the last ten minutes."""
    failed: Number = 0
    """Those of them that failed, as `is_failure` has it."""
    buckets: list[Number] = []
    """How many of them took how long, by `Snapshot.bounds`, and above all of these."""
    series: list[Number] = []
    """Calls in each interval of the history."""
    series_failed: list[Number] = []
    series_p99: list[float | None] = []
    """Seconds."""

    @property
    def name(self) -> str:
        """The name for people."""
        return self.upstream or self.target or self.method

    def quantile(self, share: float) -> float | None:
        """Returns the seconds within which that share of the calls ended; ``None`` without calls."""
        return quantile_of_buckets(FINE_BUCKETS, self.buckets, share)


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a node. What its system does not say is ``None``."""

    processor: float
    """Seconds of processor time since it began."""
    memory: Number | None = None
    """Resident bytes."""
    descriptors: Number | None = None
    descriptors_limit: Number | None = None

    @classmethod
    def now(cls) -> ProcessRow:
        """Returns the numbers of this process, for which the system counts its open descriptors."""
        numbers = process_numbers()
        whole = {
            name: int(numbers[key])
            for name, key in (
                ("memory", "process_resident_memory_bytes"),
                ("descriptors", "process_open_fds"),
                ("descriptors_limit", "process_max_fds"),
            )
            if key in numbers
        }
        return cls(processor=numbers["process_cpu_seconds_total"], **whole)


def metrics_in(telemetry: Telemetry | None) -> Metrics | None:
    """Returns the `Metrics` that count the calls of a server, ``None`` if nothing does."""
    if isinstance(telemetry, Metrics):
        return telemetry
    if isinstance(telemetry, Together):
        found = (metrics_in(each) for each in telemetry.telemetries)
        return next((each for each in found if each is not None), None)
    counted = getattr(telemetry, "metrics", None)
    return counted if isinstance(counted, Metrics) else None


def counting(telemetry: Telemetry | None) -> Telemetry:
    """Returns telemetry that counts calls, too: the same if it does, and otherwise with a `Metrics` beside it."""
    if telemetry is None:
        return Metrics()
    return telemetry if metrics_in(telemetry) is not None else Together(telemetry, Metrics())


def is_failure(side: str, kind: str, code: int | None) -> bool:
    """Whether a call that ended so failed, for which the alerts of ``docs/how-to/operations`` have the same rule.

    What a client did wrong, or cancelled, is no failure of a server.
    """
    if kind == "error":
        return code == INTERNAL_ERROR or (code is not None and 500 <= code < 600)
    return kind in (("tool_error",) if side == "server" else ("lost", "timeout"))


# -- reading and keeping -------------------------------------------------------------------------------


class _Operation(NamedTuple):
    method: str
    target: str | None
    upstream: str | None


class _Counted(NamedTuple):
    """Calls of one operation."""

    failed: int = 0
    buckets: tuple[int, ...] = (0,) * (len(FINE_BUCKETS) + 1)

    def with_(self, failed: int, buckets: Iterable[int]) -> _Counted:
        return _Counted(self.failed + failed, tuple(map(add, self.buckets, buckets)))

    def since(self, before: _Counted) -> _Counted:
        return _Counted(self.failed - before.failed, tuple(map(sub, self.buckets, before.buckets)))

    @property
    def calls(self) -> int:
        return sum(self.buckets)


_NONE = _Counted()
_Counts = Mapping[_Operation, _Counted]


class _Interval(NamedTuple):
    """The counts of one interval."""

    operations: _Counts
    requests: float
    running: int
    waiting: int
    sessions: int
    processor: float
    memory: int
    lag: float

    @property
    def together(self) -> _Counted:
        """The calls of clients, but for those that last as long as their client likes."""
        every = _NONE
        for operation, counted in self.operations.items():
            if operation.upstream is None and operation.method not in _OPEN_ENDED:
                every = every.with_(*counted)
        return every


class HistoryRecorder:
    """Keeps the last ten minutes of a server.

    Args:
        running: The live side of the server.
        telemetry: The telemetry that it serves with.
    """

    def __init__(self, running: ServerRuntime, telemetry: Telemetry | None) -> None:
        self._running = running
        self._metrics = metrics_in(telemetry)
        self._readings: deque[_Interval] = deque(maxlen=SAMPLES)
        self._before: _Counts = self._counts()
        self._at, self._until = trio.current_time(), time.time()
        self._requests, self._processor = self._requests_without_session(), time.process_time()
        self._process: ProcessRow | None = None
        self._rows: dict[_Operation, OperationRow] = {}
        self._history = self._history_of([])

    def __repr__(self) -> str:
        return f"<HistoryRecorder of {len(self._readings) * INTERVAL:.0f} s>"

    @property
    def counts_calls(self) -> bool:
        """Whether the calls of the server are counted by operation."""
        return self._metrics is not None

    async def run(self) -> None:
        """Reads every `INTERVAL` until cancelled."""
        while True:
            await trio.sleep(INTERVAL)
            began = trio.current_time()
            await trio.lowlevel.checkpoint()
            await self._read(trio.current_time() - began)

    def process(self) -> ProcessRow:
        """Returns the numbers of the process: the processor time as it is, the others as they were read last."""
        if self._process is None:
            self._process = ProcessRow.now()
        return msgspec.structs.replace(self._process, processor=time.process_time())

    def history(self) -> LoadHistory:
        """Returns what was read."""
        return self._history

    def operations(self) -> list[OperationRow]:
        """Returns the operations with the most calls, with those since the last reading; those of upstreams too."""
        counts = self._counts()
        found = [row for operation, row in self._rows.items() if operation not in counts]
        for operation, counted in counts.items():
            kept = self._rows.get(operation)
            new = counted.since(self._before.get(operation, _NONE))
            calls = new.calls
            if kept is None and not calls:
                continue
            row = kept or _row(operation, counted, [])
            if calls or kept is None:
                row = msgspec.structs.replace(
                    row,
                    ended=counted.calls,
                    calls=row.calls + calls,
                    failed=row.failed + new.failed,
                    buckets=list(map(add, row.buckets, new.buckets)),
                )
            found.append(row)
        of_tools = [each for each in found if each.upstream is None]
        of_upstreams = [each for each in found if each.upstream is not None]
        return [*_most_called(of_tools), *_most_called(of_upstreams)]

    async def _read(self, lag: float) -> None:
        running, now = self._running, trio.current_time()
        seconds = max(now - self._at, 1e-3)
        sessions = [*running.sessions]
        requests = self._requests_without_session()
        for start in range(0, len(sessions), SLICE):
            if start:
                await trio.lowlevel.checkpoint()
            requests += sum(each.dispatcher.counters.requests for each in sessions[start : start + SLICE])
        counts, processor = self._counts(), time.process_time()
        self._process = ProcessRow.now()
        new = {
            operation: counted.since(self._before.get(operation, _NONE))
            for operation, counted in counts.items()
            if counted != self._before.get(operation)
        }
        limiter = running.limiter.statistics()
        self._readings.append(
            _Interval(
                operations=_bounded(new),
                # A session that ends while the others are looked at may be counted twice, and then once.
                requests=round(max(requests - self._requests, 0) / seconds, 3),
                running=limiter.inside,
                waiting=limiter.waiting,
                sessions=len(sessions),
                processor=round((processor - self._processor) / seconds, 4),
                memory=int(self._process.memory or 0),
                lag=round(lag, 6),
            )
        )
        self._before, self._requests, self._processor = counts, requests, processor
        self._at, self._until = now, time.time()
        self._rows, self._history = self._rows_of(counts), self._history_of(list(self._readings))

    def _history_of(self, readings: Sequence[_Interval]) -> LoadHistory:
        # Only where calls are counted there is something to say of them.
        calls = [] if self._metrics is None else [each.together for each in readings]
        return LoadHistory(
            interval=INTERVAL,
            until=self._until,
            requests=[each.requests for each in readings],
            failed=[round(each.failed / INTERVAL, 3) for each in calls],
            p50=[_quantile(each, 0.5) for each in calls],
            p99=[_quantile(each, 0.99) for each in calls],
            running=[each.running for each in readings],
            waiting=[each.waiting for each in readings],
            sessions=[each.sessions for each in readings],
            processor=[each.processor for each in readings],
            memory=[each.memory for each in readings],
            lag=[each.lag for each in readings],
        )

    def _requests_without_session(self) -> int:
        """Returns the requests that belong to no session, and those of the sessions that have ended."""
        ended = self._running.sessions.past.counters.requests
        return ended + sum(each.dispatcher.counters.requests for each in self._running.exchanges())

    def _counts(self) -> _Counts:
        found: dict[_Operation, _Counted] = {}
        for key, buckets in () if self._metrics is None else self._metrics.calls():
            operation = _operation_of(key)
            if operation is not None:
                failed = sum(buckets) if is_failure(key[0], key[3], key[4]) else 0
                found[operation] = found.get(operation, _NONE).with_(failed, buckets)
        return found

    def _rows_of(self, counts: _Counts) -> dict[_Operation, OperationRow]:
        """Returns the row of each operation that was called in the last ten minutes."""
        called = {operation for each in self._readings for operation in each.operations}
        return {
            operation: _row(
                operation,
                counts.get(operation, _NONE),
                [each.operations.get(operation, _NONE) for each in self._readings],
            )
            for operation in called
        }


def _operation_of(key: Key) -> _Operation | None:
    side, method, target, _, _, upstream = key
    if side == "server":
        return _Operation(method, target, None)
    # What clients of the server's own program do is not shown.
    return None if upstream is None else _Operation("", None, upstream)


def _row(operation: _Operation, counted: _Counted, readings: Sequence[_Counted]) -> OperationRow:
    every = _NONE
    for each in readings:
        if each is not _NONE:
            every = every.with_(*each)
    method, target, upstream = operation
    return OperationRow(
        method=printable(method, _CHARACTERS),
        target=None if target is None else printable(target, _CHARACTERS),
        upstream=None if upstream is None else printable(upstream, _CHARACTERS),
        ended=counted.calls,
        calls=every.calls,
        failed=every.failed,
        buckets=list(every.buckets),
        series=[each.calls for each in readings],
        series_failed=[each.failed for each in readings],
        series_p99=[_quantile(each, 0.99) for each in readings],
    )


# Characters of a name in a row.
_CHARACTERS = 120


def _quantile(counted: _Counted, share: float) -> float | None:
    if counted is _NONE:
        return None
    found = quantile_of_buckets(FINE_BUCKETS, counted.buckets, share)
    return None if found is None else float(f"{found:.4g}")


def _bounded(operations: _Counts) -> _Counts:
    """Returns those with the most calls, and the others together."""
    if len(operations) <= MOST_KEPT:
        return operations
    ordered = sorted(operations.items(), key=lambda each: -each[1].calls)
    found, other = dict(ordered[: MOST_KEPT - 1]), _Operation(OTHER, None, None)
    for operation, counted in ordered[MOST_KEPT - 1 :]:
        if operation.upstream is None:
            found[other] = found.get(other, _NONE).with_(*counted)
    return found


def _most_called(rows: list[OperationRow]) -> list[OperationRow]:
    return heapq.nlargest(MOST_SHOWN, rows, key=lambda each: each.calls)
