"""The numbers of a server as a table: what it holds at the moment, and has counted since it began.

`Metrics` writes them as text for Prometheus, and `OpenTelemetry` reports them by observable instruments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs

from mcp_actors.crash_log import crash_log
from mcp_actors.errors import LocalProtocolError
from mcp_actors.logging import log
from mcp_actors.server import ServerStatistics

__all__ = ["GAUGES", "Gauge", "Value", "looked_at", "values_of"]

Value = tuple[float, dict[str, str]]
"""A number and its labels."""


@attrs.frozen
class Gauge:
    """One number, or one for each value of its labels, read from the statistics of servers."""

    name: str
    """The name in Prometheus; OpenTelemetry has dots in place of the underscores."""
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[ServerStatistics], Iterator[Value]]


def _plain(read: Callable[[ServerStatistics], float]) -> Callable[[ServerStatistics], Iterator[Value]]:
    def values(server: ServerStatistics) -> Iterator[Value]:
        yield read(server), {}

    return values


def _in_flight(server: ServerStatistics) -> Iterator[Value]:
    states = dict.fromkeys(("running", "waiting", "cancelled", "replaced", "answered"), 0)
    for calls in (*(each.calls for each in server.sessions), server.exchanges):
        for call in calls:
            states[call.state] += 1
    for state, number in states.items():
        yield number, {"state": state}


def _outbox(server: ServerStatistics) -> Iterator[Value]:
    links = [each.link for each in server.sessions if each.link is not None]
    yield sum(each.outbox for each in links), {"of": "all"}
    yield max((each.outbox for each in links), default=0), {"of": "fullest"}


def _held(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.held, {"kind": "in_flight"}
    yield server.memory.kept.held, {"kind": "kept"}


def _held_limits(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.limit, {"kind": "in_flight"}
    yield server.memory.kept.limit, {"kind": "kept"}


def _memory_refused(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.refused, {"kind": "in_flight"}
    yield server.memory.kept.refused, {"kind": "kept"}


def _crashes(server: ServerStatistics) -> Iterator[Value]:
    # The kinds are the rows of a table, so there are not many. Others count while they are read.
    for kind, number in sorted(crash_log.counts.copy().items()):
        yield number, {"kind": kind}


def _bytes(server: ServerStatistics) -> Iterator[Value]:
    yield server.totals.bytes_in, {"direction": "in"}
    yield server.totals.bytes_out, {"direction": "out"}


def _counts(name: str) -> Callable[[ServerStatistics], Iterator[Value]]:
    return _plain(lambda server: getattr(server.totals.counters, name))


GAUGES: Sequence[Gauge] = (
    Gauge("mcp_actors_sessions", "gauge", "Sessions and connections.", _plain(lambda s: len(s.sessions))),
    Gauge(
        "mcp_actors_sessions_total",
        "counter",
        "Sessions and connections that have begun.",
        _plain(lambda s: s.totals.sessions),
    ),
    Gauge("mcp_actors_calls_in_flight", "gauge", "Calls of clients in flight, by state.", _in_flight),
    Gauge(
        "mcp_actors_questions_in_flight",
        "gauge",
        "Requests to clients that wait for their answers.",
        _plain(lambda s: sum(len(each.pending) for each in s.sessions)),
    ),
    Gauge(
        "mcp_actors_limiter_inside",
        "gauge",
        "Places of the server taken.",
        _plain(lambda s: s.limiter.inside),
    ),
    Gauge(
        "mcp_actors_limiter_waiting",
        "gauge",
        "Calls that wait for a place of the server.",
        _plain(lambda s: s.limiter.waiting),
    ),
    Gauge(
        "mcp_actors_limiter_refused_total",
        "counter",
        "Calls refused because too many were in flight.",
        _plain(lambda s: s.limiter.refused),
    ),
    Gauge("mcp_actors_outbox_frames", "gauge", "Frames that wait to be written to clients.", _outbox),
    Gauge(
        "mcp_actors_senders_stalled",
        "gauge",
        "Senders that wait because a client does not read.",
        _plain(lambda s: sum(each.link.blocked for each in s.sessions if each.link is not None)),
    ),
    Gauge("mcp_actors_subscriptions", "gauge", "Open subscriptions.", _plain(lambda s: s.bus.subscriptions)),
    Gauge(
        "mcp_actors_subscription_events_waiting",
        "gauge",
        "Events that wait in the mailboxes of subscriptions.",
        _plain(lambda s: s.bus.pending),
    ),
    Gauge(
        "mcp_actors_events_published_total",
        "counter",
        "Changes that were published.",
        _plain(lambda s: s.bus.published),
    ),
    Gauge("mcp_actors_held_bytes", "gauge", "Bytes that clients make the server hold.", _held),
    Gauge("mcp_actors_held_bytes_limit", "gauge", "The limits of these bytes.", _held_limits),
    Gauge(
        "mcp_actors_held_bytes_refused_total",
        "counter",
        "Requests refused because of these limits.",
        _memory_refused,
    ),
    Gauge("mcp_actors_crashes_total", "counter", "Contained crashes of tasks, by kind.", _crashes),
    Gauge("mcp_actors_requests_total", "counter", "Requests that arrived.", _counts("requests")),
    Gauge(
        "mcp_actors_cancelled_total",
        "counter",
        "Calls that clients cancelled in flight.",
        _counts("cancelled"),
    ),
    Gauge(
        "mcp_actors_refused_total",
        "counter",
        "Requests answered with an error before a handler saw them.",
        _counts("refused"),
    ),
    Gauge(
        "mcp_actors_late_total",
        "counter",
        "Cancellations, answers and reports for what is not there any more.",
        _counts("late"),
    ),
    Gauge("mcp_actors_malformed_total", "counter", "Frames that were no message.", _counts("malformed")),
    Gauge(
        "mcp_actors_connection_bytes_total",
        "counter",
        "Bytes of messages over connections; single exchanges over HTTP are not among them.",
        _bytes,
    ),
)
"""All of them. `docs/telemetry.md` has this table."""

# The crashes are those of the process, and not of one server.
_OF_THE_PROCESS = frozenset({"mcp_actors_crashes_total"})


def looked_at(sources: Sequence[Callable[[], ServerStatistics]]) -> list[ServerStatistics]:
    """Returns the statistics of servers, each once; one whose event loop has ended, or is blocked, is left out."""
    found: list[ServerStatistics] = []
    # A server that is served twice at a time is told of twice.
    for source in dict.fromkeys(sources):
        try:
            found.append(source())
        except LocalProtocolError as error:
            log.warning("a server cannot be looked at", error=str(error))
    return found


def values_of(gauge: Gauge, servers: Sequence[ServerStatistics]) -> list[Value]:
    """Returns the numbers of a gauge, added up over the servers."""
    if gauge.name in _OF_THE_PROCESS:
        servers = servers[:1]
    found: dict[tuple[tuple[str, str], ...], float] = {}
    for server in servers:
        for number, labels in gauge.read(server):
            key = tuple(labels.items())
            found[key] = found.get(key, 0) + number
    return [(number, dict(key)) for key, number in found.items()]
