"""Metrics of calls and servers without any dependency, as text for Prometheus.

Names that peers and models make up must not become time series without end, so the number of labels is bounded. What a
server holds at the moment, and has counted since it began, is a table of `Gauge` objects: `Metrics` writes them as text
for Prometheus, and `OpenTelemetry` reports them by observable instruments.

A counter begins at 0, before there is anything to count, because the increase from nothing to 1 is one that Prometheus
does not see.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Literal, get_args

import attrs

from mcp_actors._server.invoke import PROCESS_ENDS, isolation_of_process
from mcp_actors._server.runtime import ServerStatistics, UpstreamStatistics
from mcp_actors.abc import HttpRequest
from mcp_actors.abc.telemetry import (
    CallEnding,
    EndingKind,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)
from mcp_actors.errors import INTERNAL_ERROR, LocalProtocolError
from mcp_actors.supervision.blockages import blockage_log
from mcp_actors.supervision.containment import crash_log, http_refusals
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import encodable
from mcp_actors.supervision.task_kinds import TASKS
from mcp_actors.telemetry.exposition import (
    FINE_BUCKETS,
    OTHER,
    Family,
    Sample,
    coarse,
    page_of,
    process_families,
)

__all__ = [
    "GAUGES",
    "MOST_NAMES",
    "MOST_SERIES",
    "TARGETED",
    "Gauge",
    "Key",
    "Metrics",
    "Names",
    "Protocol",
    "Side",
    "Value",
    "looked_at",
    "network_of",
    "protocol_of",
    "values_of",
]


# -- labels --------------------------------------------------------------------------------------------

# Names in the program's own requests that become labels: those of its few servers' tools and prompts.
MOST_NAMES = 200
# The most characters of a name that becomes a label.
_LONGEST = 128
# The methods whose target is a name, of which a server has few; a URI is one of very many.
TARGETED = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
# The beginnings of the names of peers, with the transport that each means, and the protocol of which it says so. Ours
# speaks HTTP/1.1 alone.
_TRANSPORTS = (
    ("stdio", "pipe"),
    ("memory:", "pipe"),
    ("unix:", "unix"),
    ("http+unix:", "unix"),
)
_PROTOCOLS = (
    (("http:", "https:", "http+unix:"), ("http", "1.1")),
    (("ws:", "wss:"), ("websocket", None)),
)
Protocol = tuple[str, str | None]


class Names:
    """The names that may become labels."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def label_of(self, request: ObservedRequest, outbound: bool = False) -> str | None:
        """Returns the label for the target of a request, ``None`` if its method has none.

        Args:
            outbound: Whether this side sends it. Its name was made up by this program then, or by a model that it asks,
                so only the first ones become labels. One that a peer sends has to be registered here, and one for an
                upstream has to be listed there.
        """
        target = request.target
        if target is None or request.method not in TARGETED:
            return None
        if outbound and request.upstream is None:
            return self.bounded(target)
        return target if request.is_registered else OTHER

    def bounded(self, name: str) -> str:
        """Returns ``name`` while there are not too many, and `OTHER` for all that come later.

        One that is too long, or has a lone surrogate, which no format of metrics can carry, is `OTHER` as well.
        """
        if name not in self._known:
            if len(self._known) >= self._most or len(name) > _LONGEST or encodable(name) != name:
                return OTHER
            self._known.add(name)
        return name


@lru_cache(maxsize=2048)
def network_of(peer: str) -> str:
    """Returns the value of ``network.transport`` for a peer; called for each call."""
    for beginning, transport in _TRANSPORTS:
        if peer.startswith(beginning):
            return transport
    return "tcp"


@lru_cache(maxsize=2048)
def _protocol_by(peer: str) -> Protocol | None:
    return next((protocol for schemes, protocol in _PROTOCOLS if peer.startswith(schemes)), None)


def protocol_of(peer: str, http: HttpRequest | None = None) -> Protocol | None:
    """Returns the name of a request's protocol, of those that carry MCP, and its version as far as that has any.

    Args:
        peer: The other end.
        http: The HTTP request that brought it, or opened its connection.
    """
    if http is None:
        return _protocol_by(peer)
    if "websocket" in http.headers.get("upgrade", "").lower():
        return "websocket", None
    return "http", http.version


# -- the numbers of a server ---------------------------------------------------------------------------

Value = tuple[float, dict[str, str]]
"""A number and its labels."""


@attrs.frozen
class Gauge:
    """One number, or one for each value of its labels, read from the statistics of servers."""

    name: str
    """The name in Prometheus."""
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[ServerStatistics], Iterator[Value]]
    together: Literal["sum", "max", "min"] = "sum"
    """The number of several servers, made of the number of each."""
    is_of_process: bool = False
    """Whether it is read without a server, because the process counts it."""


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


def _held(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.held, {"kind": "in_flight"}
    yield server.memory.kept.held, {"kind": "kept"}


def _held_limits(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.limit, {"kind": "in_flight"}
    yield server.memory.kept.limit, {"kind": "kept"}


def _memory_refused(server: ServerStatistics) -> Iterator[Value]:
    yield server.memory.in_flight.refused, {"kind": "in_flight"}
    yield server.memory.kept.refused, {"kind": "kept"}


def _crashes(_: ServerStatistics | None) -> Iterator[Value]:
    # The kinds are the rows of a table, so there are not many. Others count while they are read.
    counts = crash_log.counts.copy()
    for kind in sorted({*counts, *(each.name for each in TASKS)}):
        yield counts[kind], {"kind": kind}


def _blockages(_: ServerStatistics | None) -> Iterator[Value]:
    for name, number in sorted(blockage_log.counts.copy().items()):
        yield number, {"target": name}


def _blocked_seconds(_: ServerStatistics | None) -> Iterator[Value]:
    for name, number in sorted(blockage_log.seconds.copy().items()):
        yield number, {"target": name}


def _processes(server: ServerStatistics) -> Iterator[Value]:
    states = Counter(each.state for each in server.processes)
    for state in ("starting", "idle", "busy") if server.processes else ():
        yield states[state], {"state": state}


def _processes_started(_: ServerStatistics | None) -> Iterator[Value]:
    if isolation_of_process.started:
        yield isolation_of_process.started, {}


def _processes_ended(_: ServerStatistics | None) -> Iterator[Value]:
    for reason in PROCESS_ENDS if isolation_of_process.started else ():
        yield isolation_of_process.ended[reason], {"reason": reason}


# The statuses of refusals that are worth an alert.
_REFUSALS = (400, 401, 403, 404, 408, 413, 429, 500, 503)


def _http_refused(_: ServerStatistics | None) -> Iterator[Value]:
    counts = http_refusals.copy()
    for status in sorted({*counts, *_REFUSALS}):
        yield counts[status], {"status": str(status)}


def _repaired(server: ServerStatistics) -> Iterator[Value]:
    counts = dict.fromkeys(server.names.get("tools/call", ()), 0) | dict(server.repaired)
    for tool, number in sorted(counts.items()):
        yield number, {"tool": tool}


def _shared(server: ServerStatistics) -> Iterator[Value]:
    yield int(server.shared_failure is None), {}


def _bytes(server: ServerStatistics) -> Iterator[Value]:
    yield server.totals.bytes_in, {"direction": "in"}
    yield server.totals.bytes_out, {"direction": "out"}


def _counts(name: str) -> Callable[[ServerStatistics], Iterator[Value]]:
    return _plain(lambda server: getattr(server.totals.counters, name))


def _of_upstreams(
    read: Callable[[UpstreamStatistics], float],
) -> Callable[[ServerStatistics], Iterator[Value]]:
    def values(server: ServerStatistics) -> Iterator[Value]:
        for upstream in server.upstreams:
            yield read(upstream), {"upstream": upstream.name}

    return values


def _circuits(server: ServerStatistics) -> Iterator[Value]:
    for upstream in server.upstreams:
        for state in ("closed", "open", "half-open"):
            yield int(upstream.circuit == state), {"upstream": upstream.name, "state": state}


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
    Gauge("mcp_actors_limiter_limit", "gauge", "Places of the server.", _plain(lambda s: s.limiter.limit)),
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
    Gauge(
        "mcp_actors_outbox_frames",
        "gauge",
        "Frames that wait to be written to clients.",
        _plain(lambda s: sum(each.link.outbox for each in s.sessions if each.link is not None)),
    ),
    Gauge(
        "mcp_actors_outbox_fullest_frames",
        "gauge",
        "Frames that wait to be written to the client for which most of them wait.",
        _plain(lambda s: max((each.link.outbox for each in s.sessions if each.link is not None), default=0)),
        together="max",
    ),
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
    Gauge(
        "mcp_actors_http_refused_total",
        "counter",
        "HTTP requests refused before there was a call, by status.",
        _http_refused,
        is_of_process=True,
    ),
    Gauge(
        "mcp_actors_crashes_total",
        "counter",
        "Contained crashes of tasks, by kind.",
        _crashes,
        is_of_process=True,
    ),
    Gauge(
        "mcp_actors_loop_blocked_total",
        "counter",
        "Blockages of event loops that the watchdog has seen, by the tool that caused them.",
        _blockages,
        is_of_process=True,
    ),
    Gauge(
        "mcp_actors_loop_blocked_seconds_total",
        "counter",
        "The seconds of those that are over.",
        _blocked_seconds,
        is_of_process=True,
    ),
    Gauge(
        "mcp_actors_isolated_processes",
        "gauge",
        "Processes for functions, by what they do.",
        _processes,
    ),
    Gauge(
        "mcp_actors_isolated_started_total",
        "counter",
        "Processes for functions that were started.",
        _processes_started,
        is_of_process=True,
    ),
    Gauge(
        "mcp_actors_isolated_ended_total",
        "counter",
        "Processes for functions that have ended, by the reason.",
        _processes_ended,
        is_of_process=True,
    ),
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
        "mcp_actors_arguments_repaired_total",
        "counter",
        "Calls with arguments of another type that were repaired, by tool.",
        _repaired,
    ),
    Gauge(
        "mcp_actors_shared_state_up",
        "gauge",
        "1 while the shared state can be used, 0 while it cannot be.",
        _shared,
        together="min",
    ),
    Gauge(
        "mcp_actors_upstream_up",
        "gauge",
        "1 while a server behind a gateway can be called as far as is known, 0 while it cannot be.",
        _of_upstreams(lambda each: int(each.is_up)),
        together="min",
    ),
    Gauge(
        "mcp_actors_upstream_circuit",
        "gauge",
        "1 for the state that the circuit breaker of a server behind a gateway has.",
        _circuits,
        together="max",
    ),
    Gauge(
        "mcp_actors_upstream_connections",
        "gauge",
        "Connections to a server behind a gateway.",
        _of_upstreams(lambda each: each.connections),
    ),
    Gauge(
        "mcp_actors_upstream_in_flight",
        "gauge",
        "Calls in flight at a server behind a gateway.",
        _of_upstreams(lambda each: each.in_flight),
    ),
    Gauge(
        "mcp_actors_upstream_limit",
        "gauge",
        "Calls that may be in flight at a server behind a gateway.",
        _of_upstreams(lambda each: each.limit),
    ),
    Gauge(
        "mcp_actors_upstream_refused_total",
        "counter",
        "Calls that were not sent to a server behind a gateway: it could not be called, or had too many.",
        _of_upstreams(lambda each: each.refused),
    ),
    Gauge(
        "mcp_actors_upstream_failed_connects_total",
        "counter",
        "Attempts to connect to a server behind a gateway that failed.",
        _of_upstreams(lambda each: each.failed_connects),
    ),
    Gauge(
        "mcp_actors_upstream_lost_total",
        "counter",
        "Connections to a server behind a gateway that were lost.",
        _of_upstreams(lambda each: each.lost),
    ),
    Gauge(
        "mcp_actors_connection_bytes_total",
        "counter",
        "Bytes of messages over connections; single exchanges over HTTP are not among them.",
        _bytes,
    ),
)
"""All of them. `docs/how-to/telemetry.md` has this table."""


def looked_at(sources: Sequence[Callable[[], ServerStatistics]]) -> list[ServerStatistics]:
    """Returns the statistics of servers, each once; one whose event loop has ended, or is blocked, is left out."""
    found: list[ServerStatistics] = []
    # A server that is served twice at a time is in the list twice.
    for source in dict.fromkeys(sources):
        try:
            found.append(source())
        except LocalProtocolError as error:
            log.warning("a server cannot be looked at", error=str(error))
    return found


def values_of(gauge: Gauge, servers: Sequence[ServerStatistics]) -> list[Value]:
    """Returns the numbers of a gauge, put together over the servers."""
    found: dict[tuple[tuple[str, str], ...], float] = {}
    read: Callable[..., Iterator[Value]] = gauge.read
    for server in (None,) if gauge.is_of_process else servers:
        for number, labels in read(server):
            key = tuple(labels.items())
            before = found.get(key)
            if before is None:
                found[key] = number
            elif gauge.together == "sum":
                found[key] = before + number
            else:
                found[key] = (max if gauge.together == "max" else min)(before, number)
    return [(number, dict(key)) for key, number in found.items()]


# -- counts and durations of calls ---------------------------------------------------------------------

MOST_SERIES = 1000
"""Different sets of labels that are counted apart; those that come later are counted together."""

Side = Literal["server", "client"]
# Side, method, name of the tool or prompt, how the call ended, the code of its error, and the upstream that it was for.
Key = tuple[Side, str, str | None, EndingKind, int | None, str | None]
# The endings that are counted from 0 on, with the code of an error, by method: of those with names, for each name.
_FROM_ZERO: Mapping[str, Sequence[tuple[EndingKind, int | None]]] = {
    "tools/call": (("answered", None), ("tool_error", None), ("error", INTERNAL_ERROR)),
    "prompts/get": (("answered", None), ("error", INTERNAL_ERROR)),
    "resources/read": (("answered", None), ("error", INTERNAL_ERROR)),
}


class Metrics(Telemetry):
    """Counts and times calls in both directions, and reads what servers hold when it is asked.

    ``Server(telemetry=Metrics())`` and ``Client(telemetry=…)`` take one; several servers and clients may share it.
    `text` is the page, and `mcp_transports.http.server.metrics_page` serves it at a route.

    Names become labels only where they are registered at the server, or listed by one behind a gateway, or are among
    the first of a client's own; the rest is counted as ``other``. There are at most `MOST_SERIES` sets of labels.

    Args:
        labels: Labels that every line has, such as the number of a worker; none by default.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        self._names = Names()
        self._series: dict[Key, _Series] = {}
        self._sources: list[Callable[[], ServerStatistics]] = []
        self.clients = 0
        """Connections of clients of this process."""
        self.in_flight = 0
        """Requests of this process that wait for their answers."""
        self._sessions: dict[Side, _Series] = {"server": _Series(), "client": _Series()}

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._series)} series>"

    def inbound(self, request: ObservedRequest) -> Observation | None:
        """Begins to time a call. The run of a task is not timed: it takes as long as it likes."""
        return None if request.is_task else _Timed(self, request)

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        """Begins to time a request of this side."""
        with _counting:
            self.in_flight += 1
        return _OutboundTimed(self, request)

    def session_began(self, side: Side) -> None:
        if side == "client":
            with _counting:
                self.clients += 1

    def session_ended(self, session: ObservedSession) -> None:
        with _counting:
            if session.side == "client":
                self.clients -= 1
            self._sessions[session.side].add(session.seconds)

    def served(self, statistics: Callable[[], ServerStatistics]) -> Callable[[], None]:
        self._sources.append(statistics)
        return partial(self._sources.remove, statistics)

    def count(self, side: Side, request: ObservedRequest, ending: CallEnding) -> None:
        """Counts a call that has ended."""
        method, kind, code = request.method, ending.kind, ending.code
        name = self._names.label_of(request, side == "client") if method in TARGETED else None
        key: Key = side, method, name, kind, code, request.upstream
        with _counting:
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MOST_SERIES:
                    key = side, OTHER, OTHER, kind, None, request.upstream
                series = self._series.setdefault(key, _Series())
            series.add(ending.seconds, ending.waited, ending.size)

    def durations(self) -> list[tuple[Key, tuple[int, ...], float]]:
        """Returns the numbers of the calls in each of the buckets, and their seconds, by their labels.

        It may be called in any thread. The last bucket is of what is above all of `BUCKETS`.
        """
        return [(key, coarse(each.buckets), each.seconds) for key, each in self._series.copy().items()]

    def calls(self) -> list[tuple[Key, tuple[int, ...]]]:
        """Returns the numbers of the calls in each of `FINE_BUCKETS`, and above all of them, by their labels.

        It may be called in any thread.
        """
        return [(key, tuple(each.buckets)) for key, each in self._series.copy().items()]

    def left(self) -> None:
        """Notes that a request of this side has ended."""
        with _counting:
            self.in_flight -= 1

    def text(self) -> str:
        """Returns everything in the text format of Prometheus, 0.0.4. It may be called in any thread."""
        return page_of(self.families(), self._labels)

    def families(self) -> list[Family]:
        """Returns everything as values, with the numbers of this process. It may be called in any thread."""
        servers = looked_at(tuple(self._sources))
        found = [*self._of_calls(servers), *self._of_sessions()]
        for gauge in GAUGES:
            samples = [Sample(labels, number) for number, labels in values_of(gauge, servers)]
            found.append(Family(gauge.name, gauge.kind, gauge.help, samples, gauge.together))
        return found + process_families()

    def _of_calls(self, servers: Sequence[ServerStatistics]) -> Iterator[Family]:
        series = self._series.copy()
        counts: dict[Key, int] = {key: each.count for key, each in series.items()}
        for key in _from_zero(servers):
            if len(counts) >= MOST_SERIES:
                break
            counts.setdefault(key, 0)
        ordered = sorted(counts.items(), key=_place)
        calls = [Sample({"side": key[0], **_labels_of(key)}, number) for key, number in ordered]
        yield Family("mcp_actors_calls_total", "counter", "Calls that have ended, by how they ended.", calls)
        for side in get_args(Side):
            samples = [
                Sample(_labels_of(key), series[key].seconds, coarse(series[key].buckets))
                for key, _ in ordered
                if key[0] == side and key in series
            ]
            text = f"The duration of MCP requests as observed on the {side}."
            yield Family(f"mcp_{side}_operation_duration_seconds", "histogram", text, samples)
        inbound = [each for key, each in series.items() if key[0] == "server"]
        waited, size = sum(each.waited for each in inbound), sum(each.size for each in inbound)
        yield _single("mcp_actors_waited_seconds_total", "Seconds in which calls waited for a place.", waited)
        yield _single("mcp_actors_answer_bytes_total", "Bytes of the answers to calls.", size)

    def _of_sessions(self) -> Iterator[Family]:
        for side, sessions in self._sessions.items():
            text = f"The duration of MCP sessions as observed on the {side}."
            sample = Sample({}, sessions.seconds, coarse(sessions.buckets))
            yield Family(f"mcp_{side}_session_duration_seconds", "histogram", text, [sample])
        clients, waiting = self.clients, self.in_flight
        yield _single("mcp_actors_clients", "Connections of clients of this process.", clients, "gauge")
        yield _single(
            "mcp_actors_outbound_in_flight", "Requests of this process in flight.", waiting, "gauge"
        )


def _single(name: str, help: str, number: float, kind: Literal["counter", "gauge"] = "counter") -> Family:
    return Family(name, kind, help, [Sample({}, number)])


def _from_zero(servers: Sequence[ServerStatistics]) -> Iterator[Key]:
    """Yields the labels of the calls that clients may make, before they have made any."""
    for server in servers:
        for method, names in server.names.items():
            for kind, code in _FROM_ZERO[method]:
                for name in names or (None,):
                    yield "server", method, name, kind, code, None


class _Series:
    """The calls that have the same labels."""

    __slots__ = ("buckets", "count", "seconds", "size", "waited")

    def __init__(self) -> None:
        self.buckets = [0] * (len(FINE_BUCKETS) + 1)
        self.count = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.size = 0

    def add(self, seconds: float, waited: float = 0.0, size: int = 0) -> None:
        self.buckets[bisect_left(FINE_BUCKETS, seconds)] += 1
        self.count += 1
        self.seconds += seconds
        self.waited += waited
        self.size += size


class _Timed(Observation):
    __slots__ = ("_metrics", "_request")

    def __init__(self, metrics: Metrics, request: ObservedRequest) -> None:
        self._metrics = metrics
        self._request = request

    def ended(self, ending: CallEnding) -> None:
        self._metrics.count("server", self._request, ending)


class _OutboundTimed(OutboundObservation):
    __slots__ = ("_metrics", "_request")

    def __init__(self, metrics: Metrics, request: ObservedRequest) -> None:
        super().__init__()
        self._metrics = metrics
        self._request = request

    def ended(self, ending: CallEnding) -> None:
        self._metrics.left()
        self._metrics.count("client", self._request, ending)


def _labels_of(key: Key) -> dict[str, str]:
    _, method, target, ending, code, upstream = key
    labels = {
        "mcp_method_name": method,
        "target": target or "",
        "ending": ending,
        "code": "" if code is None else str(code),
    }
    return labels if upstream is None else {**labels, "upstream": upstream}


def _place(series: tuple[Key, object]) -> tuple[str, ...]:
    side, method, target, ending, code, upstream = series[0]
    return side, method, target or "", ending, "" if code is None else str(code), upstream or ""


# Several loops, in threads of their own, may share one object. Without the interpreter's lock some of their calls would
# not be counted, and the number in flight would never return to 0.
_counting = threading.Lock()


def _forget_after_fork() -> None:
    # A thread of the parent may have held it.
    global _counting
    _counting = threading.Lock()


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
