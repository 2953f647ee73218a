"""The figures of an experiment, which are the same for the same seed, as a value, a table or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import attrs

from mcp_actors.simulate.percentiles import percentile

__all__ = ["Latencies", "Report", "latencies"]

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
    """Calls that their client gave up on purpose before there was an answer."""
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
    """Handlers that were cancelled before their end, for whatever reason."""
    handler_seconds: float
    """Time that handlers spent on calls."""
    wasted_seconds: float
    """The part of it that was spent on calls whose answer reached nobody, because the caller had left, got an
    error, or the answer was lost; calls in flight at the end are not in it."""
    wasted_runs: int
    """Runs of handlers whose answer reached nobody."""
    messages: int
    """Frames that were sent on all links, both ways."""
    messages_lost: int
    """Those that arrived nowhere."""
    bytes: int
    """Bytes of all frames that were sent."""
    stalls: int
    """Times that a line stood still."""

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
    percentiles = (round(percentile(ordered, percent), DIGITS) for percent in (50, 90, 99, 100))
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
        ("  for nobody", f"{report.wasted_runs:,} runs, {report.wasted_seconds:,.3f} s ({wasted:.2%})"),
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
