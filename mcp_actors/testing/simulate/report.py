"""The figures of an experiment, as a value, a table or JSON, and the ledger of calls from which they are computed.

The ledger records both sides of every simulated call, which a number in its metadata identifies. The same seed gives
the same figures.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from mcp_actors.errors import RpcError
from mcp_actors.server import Context
from mcp_actors.supervision.histogram import quantile_of

__all__ = [
    "NUMBER",
    "CallLedger",
    "HandlerTimes",
    "Latencies",
    "Report",
    "SimulatedCall",
    "latencies",
    "name_of",
]


# -- the ledger of calls -------------------------------------------------------------------------------

# The key in the `_meta` of a simulated call that identifies it on the side of the server.
NUMBER = "mcp-actors.simulate/call"


class SimulatedCall:
    """One call, seen from both sides."""

    __slots__ = ("began", "number", "outcome", "worked")

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = trio.current_time()
        # How the call ended for the client: "answered", "cancelled" or "failed"; ``None`` while the client waits.
        self.outcome: str | None = None
        # The seconds of each run of its handler, which are not yet known to be useful or wasted.
        self.worked: list[float] = []


class CallLedger:
    """Counts the calls of all clients. Times are virtual seconds."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.connected = 0
        self.handlers = HandlerTimes()
        self._open: dict[int, SimulatedCall] = {}

    def __repr__(self) -> str:
        return f"<CallLedger {self.calls} calls, {len(self._open)} open>"

    def begin(self) -> SimulatedCall:
        """Records a new call of a client."""
        self.calls += 1
        call = self._open[self.calls] = SimulatedCall(self.calls)
        return call

    def answered(self, call: SimulatedCall) -> None:
        """Records that a call got its result."""
        self.latencies.append(trio.current_time() - call.began)
        self._close(call, "answered")

    def given_up(self, call: SimulatedCall) -> None:
        """Records that the client cancelled a call."""
        self.cancelled += 1
        self._close(call, "cancelled")

    def failed(self, call: SimulatedCall, why: str) -> None:
        """Records that a call got an error."""
        self.errors[why] += 1
        self._close(call, "failed")

    def _close(self, call: SimulatedCall, why: str) -> None:
        call.outcome = why
        del self._open[call.number]
        if why != "answered":
            self.handlers.waste(call)

    @property
    def unfinished(self) -> int:
        """Calls in flight."""
        return len(self._open)

    async def middleware(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Times every handler that works for a simulated call."""
        number = ctx.meta.get(NUMBER)
        if not isinstance(number, int):
            return await call_next()
        # A call that ended before it arrived at the server is not found.
        return await self.handlers.measure(self._open.get(number), call_next)


class HandlerTimes:
    """Counts the runs of handlers and their virtual seconds, useful and wasted."""

    def __init__(self) -> None:
        self.runs = 0
        self.stopped = 0
        self.cancels_confirmed = 0
        self.wasted_runs = 0
        # Summed up once at the end by `math.fsum`, whose result does not depend on the order.
        self._ended: list[float] = []
        self._wasted: list[float] = []
        # For each running handler when it began, and for which call.
        self._running: dict[int, tuple[float, SimulatedCall | None]] = {}

    async def measure(self, call: SimulatedCall | None, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits ``handler()`` and records how long it took, and whether it was cancelled."""
        self.runs += 1
        run = self.runs
        began = trio.current_time()
        self._running[run] = began, call
        try:
            return await handler()
        except trio.Cancelled:
            self.stopped += 1
            if call is not None and call.outcome == "cancelled":
                self.cancels_confirmed += 1
            raise
        finally:
            del self._running[run]
            self._add(call, trio.current_time() - began)

    def waste(self, call: SimulatedCall) -> None:
        """Counts the runs for a call as wasted, because its answer reached no caller."""
        self.wasted_runs += len(call.worked)
        self._wasted += call.worked

    def _add(self, call: SimulatedCall | None, seconds: float) -> None:
        self._ended.append(seconds)
        if call is None or call.outcome is not None:
            self.wasted_runs += 1
            self._wasted.append(seconds)
        else:
            call.worked.append(seconds)

    def times(self) -> tuple[list[float], list[float], int]:
        """Returns the seconds of all runs, those of wasted runs, and the number of wasted runs.

        Handlers that are running count with their time so far.
        """
        now = trio.current_time()
        worked, wasted, runs = list(self._ended), list(self._wasted), self.wasted_runs
        for began, call in self._running.values():
            worked.append(now - began)
            if call is None or call.outcome is not None:
                wasted.append(now - began)
                runs += 1
        return worked, wasted, runs


def name_of(error: Exception) -> str:
    """Returns the name under which an error is counted."""
    name = type(error).__name__
    return f"{name} {error.code}" if type(error) is RpcError else name


# -- the report ----------------------------------------------------------------------------------------

# Virtual time is a sum of floats. Digits beyond the nanosecond depend on the order in which they were added up.
DIGITS = 9


@attrs.frozen
class Latencies:
    """Seconds from the call to its answer as the caller saw it, waiting for a new connection included.

    Percentiles are exact: each is the smallest value that so many of all values do not exceed.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@attrs.frozen(kw_only=True)
class Report:
    """The figures of one run. Times are virtual seconds."""

    seed: int
    duration: float
    clients: int
    servers: int
    calls: int
    """Calls that were begun: ``answered + cancelled + failed + unfinished``."""
    answered: int
    """Those that got their result."""
    latency: Latencies
    """Of the calls that were answered."""
    cancelled: int
    """Calls that their client cancelled on purpose before the answer."""
    cancels_confirmed: int
    """Those of them whose handler was stopped by it; the others had ended, were lost, or never began."""
    failed: int
    """Calls that ended in an error."""
    errors: dict[str, int]
    """Errors of calls by type, the most frequent first; ``isError`` is a tool's own failure."""
    unfinished: int
    """Calls that were in flight when the time was over."""
    connected: int
    """Clients that got a session at least once."""
    refused: dict[str, int]
    """Errors of clients that tried for their first session, by type; they try again."""
    reconnects: int
    """Connections that were made after a client's first one."""
    disconnects: int
    """Connections that broke."""
    handler_runs: int
    """Calls that reached their handler."""
    handlers_stopped: int
    """Handlers that were cancelled before their end, for any reason."""
    handler_seconds: float
    """Time that handlers spent on calls."""
    wasted_seconds: float
    """The part of it that was spent on calls whose answer reached no caller, because it had left, got an
    error, or the answer was lost; calls in flight at the end are not in it."""
    wasted_runs: int
    """Runs of handlers whose answer reached no caller."""
    messages: int
    """Frames that were sent on all links, both ways."""
    messages_lost: int
    """Those that arrived nowhere."""
    bytes: int
    """Bytes of all frames that were sent."""
    stalls: int
    """Times that a line stalled."""

    def to_json(self) -> str:
        """One JSON object; the same figures give the same bytes."""
        return json.dumps(attrs.asdict(self), indent=2)

    def __str__(self) -> str:
        return _table(self)


def latencies(values: Sequence[float]) -> Latencies:
    """Returns the summary of some values, all zero if there are none."""
    ordered = sorted(values)
    if not ordered:
        return Latencies(0, 0.0, 0.0, 0.0, 0.0, 0.0)

    mean = round(math.fsum(ordered) / len(ordered), DIGITS)
    percentiles = (round(quantile_of(ordered, share), DIGITS) for share in (0.5, 0.9, 0.99, 1))
    return Latencies(len(ordered), mean, *percentiles)


def _table(report: Report) -> str:
    ms = 1000
    latency = report.latency
    wasted = report.wasted_seconds / report.handler_seconds if report.handler_seconds else 0.0
    rows = [
        (
            "world",
            f"{report.clients:,} clients, {report.servers:,} servers, {report.duration:g} s, seed {report.seed}",
        ),
        ("calls", f"{report.calls:,}"),
        ("  answered", f"{report.answered:,}{_share(report.answered, report.calls)}"),
        ("  cancelled", f"{report.cancelled:,}, {report.cancels_confirmed:,} confirmed by the handler"),
        (
            "  failed",
            f"{report.failed:,}{_share(report.failed, report.calls)}  {_listed(report.errors)}".rstrip(),
        ),
        ("  unfinished", f"{report.unfinished:,}"),
        (
            "latency, ms",
            f"p50 {latency.p50 * ms:,.1f}  p90 {latency.p90 * ms:,.1f}  p99 {latency.p99 * ms:,.1f}"
            f"  max {latency.max * ms:,.1f}  mean {latency.mean * ms:,.1f}",
        ),
        (
            "sessions",
            f"{report.connected:,} clients connected, {report.disconnects:,} disconnects,"
            f" {report.reconnects:,} reconnects  {_listed(report.refused)}".rstrip(),
        ),
        (
            "handlers",
            f"{report.handler_runs:,} runs, {report.handlers_stopped:,} stopped, {report.handler_seconds:,.3f} s",
        ),
        ("  wasted", f"{report.wasted_runs:,} runs, {report.wasted_seconds:,.3f} s ({wasted:.2%})"),
        (
            "links",
            f"{report.messages:,} messages, {report.messages_lost:,} lost, {report.bytes:,} bytes,"
            f" {report.stalls:,} stalls",
        ),
    ]
    return "\n".join(f"{name:<14}{text}" for name, text in rows)


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.2%})" if whole else ""


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
