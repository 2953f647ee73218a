"""Spans and durations of calls and sessions for OpenTelemetry, by its semantic conventions for MCP.

The context of a trace travels in the ``_meta`` of requests as ``traceparent``, ``tracestate`` and ``baggage``
(SEP-414). They have the forms of W3C Trace Context and W3C Baggage, whatever propagators the program has configured for
its other protocols. What a peer sends is bounded, and malformed parts are ignored: they never refuse a request.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import unquote, urlsplit

from opentelemetry import baggage, trace
from opentelemetry import context as context_api
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, get_meter
from opentelemetry.metrics import Observation as Measured
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from mcp_actors._server.runtime import ServerStatistics
from mcp_actors.abc.telemetry import (
    CallEnding,
    EndingKind,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)
from mcp_actors.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UnsupportedVersion,
)
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import encodable
from mcp_actors.telemetry.exposition import BUCKETS, OTHER
from mcp_actors.telemetry.metrics import (
    GAUGES,
    TARGETED,
    Gauge,
    Metrics,
    Names,
    Protocol,
    Side,
    looked_at,
    network_of,
    protocol_of,
    values_of,
)

__all__ = [
    "INSTRUMENTS",
    "OPERATIONS",
    "SCOPE",
    "Described",
    "Descriptions",
    "Instruments",
    "OpenTelemetry",
    "Operations",
    "Sampling",
    "ServerGauges",
    "Unsampled",
    "add_own_gauges",
    "context_of",
    "error_type",
    "go_on",
    "is_sampled",
    "meta_of",
    "network_attributes",
    "scope_version",
    "span_attributes",
]


# -- names and attributes of spans and durations -------------------------------------------------------

# Characters of a URI in an attribute.
_LONGEST = 1024


class Described:
    """The name of a span, and the attributes that all spans of such requests have: one for each kind of request.

    Args:
        side: The side that this process is.
        method: The method.
        label: The name of a tool or prompt; ``None`` for other methods, and for a name that is unknown.
        version: The protocol version.
        transport: The value of ``network.transport``.
        protocol: The protocol over it, with its version.
        upstream: The upstream that a gateway sends it to.
    """

    __slots__ = ("durations", "fixed", "name")

    def __init__(
        self,
        side: Side,
        method: str,
        label: str | None,
        version: str | None,
        transport: str | None,
        protocol: Protocol | None,
        upstream: str | None,
        peer: str,
    ) -> None:
        self.name = method if label is None else f"{method} {label}"
        self.fixed: dict[str, Any] = {"mcp.method.name": method}
        if label is not None and method in TARGETED:
            self.fixed[TARGETED[method]] = label
        if method == "tools/call":
            self.fixed["gen_ai.operation.name"] = "execute_tool"
        if version is not None:
            self.fixed["mcp.protocol.version"] = version
        self.fixed |= network_attributes(transport, protocol)
        if upstream is not None:
            self.fixed["mcp_actors.upstream"] = upstream
        if side == "client":
            # A client has few servers, and a server many clients.
            add_address(self.fixed, "server", peer)
        # By the error and its code: the attributes of a duration are the same objects for each call.
        self.durations: dict[tuple[str | None, int | None], dict[str, Any]] = {(None, None): self.fixed}

    def duration(self, error: str | None, code: int | None) -> dict[str, Any]:
        """Returns the attributes of the duration of a call that ended so."""
        found = self.durations.get((error, code))
        if found is None:
            found = dict(self.fixed)
            if error is not None:
                found["error.type"] = error
            if code is not None:
                found["rpc.response.status_code"] = str(code)
            # Codes of errors are the program's own, or a peer's: their number is bounded.
            if len(self.durations) < 32:
                self.durations[error, code] = found
            else:
                return self.fixed if error is None else {**self.fixed, "error.type": "_OTHER"}
        return found


def network_attributes(transport: str | None, protocol: Protocol | None) -> dict[str, Any]:
    """Returns the attributes of the conventions that say how messages travel."""
    found: dict[str, Any] = {} if transport is None else {"network.transport": transport}
    if protocol is not None:
        found["network.protocol.name"], version = protocol
        if version is not None:
            found["network.protocol.version"] = version
    return found


def span_attributes(request: ObservedRequest, described: Described, label: str | None) -> dict[str, Any]:
    """Returns the attributes of the span of one request."""
    attributes = dict(described.fixed)
    if request.id is not None:
        attributes["jsonrpc.request.id"] = encodable(str(request.id)[:_LONGEST])
    target = request.target
    if target is not None and target != label:
        name = TARGETED.get(request.method, "mcp.resource.uri")
        attributes[name] = encodable(target[:_LONGEST])
    return attributes


def add_address(attributes: dict[str, Any], side: str, peer: str) -> None:
    """Adds the address and the port of the other end, if it has any: ``client.address`` or ``server.address``."""
    address, port = _address_of(peer)
    if address:
        attributes[f"{side}.address"] = address
    if port is not None:
        attributes[f"{side}.port"] = port


@lru_cache(maxsize=2048)
def _address_of(peer: str) -> tuple[str, int | None]:
    """Returns the host, or the path of a Unix socket, and the port; of a URL the rest is left out."""
    if network_of(peer) == "pipe":
        return "", None
    if "://" not in peer:
        if peer.startswith("unix:"):
            return peer.removeprefix("unix:")[:_LONGEST], None
        peer = f"//{peer}"
    try:
        place = urlsplit(peer)
        if place.scheme.endswith("unix"):
            return unquote(place.netloc or place.path)[:_LONGEST], None
        return (place.hostname or "")[:_LONGEST], place.port
    except ValueError:
        return "", None


# Codes with which a server says that what it was asked is wrong: by the conventions no errors of the server. The last
# one is that of a revision that it does not serve, by which clients find out which ones it does.
_WRONG_QUESTIONS = frozenset(
    (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, -32002, UnsupportedVersion.CODE)
)
# By these a client finds out which revisions a server speaks. The one that is not needed any more is cancelled.
_HANDSHAKES = frozenset(("server/discover", "initialize"))
_LISTEN = "subscriptions/listen"


def error_type(side: Side, method: str, kind: EndingKind, code: int | None) -> str | None:
    """Returns ``error.type`` for the ending of a request, ``None`` unless it is an error.

    ===================================================== ============================================================
    no error, however it may look                         because
    ===================================================== ============================================================
    the end of ``subscriptions/listen`` by its client     it has no other end
    on the server also with its connection                it is the same
    ``server/discover`` refused, on the client            a server without it speaks a revision with sessions
    a handshake that is cancelled                         the other kind of handshake was answered
    a code of `_WRONG_QUESTIONS`, on the server           the conventions have it so
    ===================================================== ============================================================

    Args:
        side: The side that observes it.
        method: The method.
        kind: How it ended.
        code: The code of its error.
    """
    if kind in ("answered", "input_required"):
        return None
    if kind == "error":
        if code is None:
            return "_OTHER"
        wrong = method == "server/discover" if side == "client" else code in _WRONG_QUESTIONS
        return None if wrong else str(code)
    if kind == "cancelled" and (method in _HANDSHAKES or method == _LISTEN):
        return None
    if kind == "lost" and method == _LISTEN and side == "server":
        return None
    return kind


class Descriptions:
    """The descriptions of all kinds of requests, made when the first one comes. Their number is bounded."""

    def __init__(self, most: int = 2048) -> None:
        self._names = Names()
        self._most = most
        self._known: dict[tuple[Any, ...], Described] = {}

    def of(self, request: ObservedRequest, side: Side) -> tuple[Described, str | None]:
        """Returns the description of a request, and the label of its target, ``None`` for one that is unknown."""
        label = self._names.label_of(request, side == "client")
        if label == OTHER and request.target != OTHER:
            # The conventions have no word for a name that is one of too many.
            label = None
        peer = request.peer
        where = _address_of(peer) if side == "client" else ""
        protocol = protocol_of(peer, request.http)
        network = network_of(peer)
        key = side, request.method, label, request.version, network, protocol, request.upstream, where
        described = self._known.get(key)
        if described is None:
            if len(self._known) >= self._most:
                self._known.clear()
            described = self._known[key] = Described(*key[:-1], peer)
        return described, label


# -- instruments ---------------------------------------------------------------------------------------

# Seconds for which one look at the servers is good: a collection asks for each instrument, one after the other.
_FRESH = 0.5

OPERATIONS: Mapping[Side, tuple[str, str]] = {
    "server": (
        "mcp.server.operation.duration",
        "The duration of an MCP request, from its arrival until its answer is sent.",
    ),
    "client": (
        "mcp.client.operation.duration",
        "The duration of an MCP request, from when it is sent until its answer has arrived.",
    ),
}
"""The names and the texts of the durations of requests, by the side that observes them."""


class Operations:
    """The durations of requests, by the semantic conventions for MCP; the SDK is given each of them."""

    def __init__(self, meter: Meter) -> None:
        self.server = _histogram(meter, *OPERATIONS["server"])
        self.client = _histogram(meter, *OPERATIONS["client"])


class Instruments:
    """The durations of sessions, by the semantic conventions for MCP, and the sessions that are open."""

    def __init__(self, meter: Meter) -> None:
        self._sessions = {
            side: _histogram(
                meter,
                f"mcp.{side}.session.duration",
                f"The duration of the MCP session as observed on the MCP {side}.",
            )
            for side in ("server", "client")
        }
        self._open = meter.create_up_down_counter(
            "mcp_actors.session.active", "{session}", "Sessions that are open, of both sides."
        )

    def session_began(self, side: Side) -> None:
        """Counts a session that is open."""
        self._open.add(1, {"mcp_actors.side": side})

    def session_ended(self, side: Side, seconds: float, attributes: dict[str, Any]) -> None:
        """Counts a session as closed, and records its length."""
        self._open.add(-1, {"mcp_actors.side": side})
        self._sessions[side].record(seconds, attributes)


def _histogram(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)


def add_own_gauges(meter: Meter, metrics: Metrics) -> None:
    """Adds observable instruments for the clients of this process, and their requests.

    They always have a value: an SDK that has collected nothing does not export, and `MetricsExporter` neither then.
    """
    numbers: Mapping[str, tuple[str, str, Callable[[], int]]] = {
        "mcp_actors.client.active": (
            "{connection}",
            "Connections of clients of this process.",
            lambda: metrics.clients,
        ),
        "mcp_actors.client.request.active": (
            "{request}",
            "Requests of this process in flight.",
            lambda: metrics.in_flight,
        ),
    }
    for name, (unit, text, read) in numbers.items():
        meter.create_observable_up_down_counter(name, [partial(_observed, read)], unit, text)


def _observed(read: Callable[[], int], options: CallbackOptions) -> Iterable[Measured]:
    return [Measured(read())]


_COUNTER, _ACTIVE, _GAUGE = "counter", "up-down counter", "gauge"
INSTRUMENTS: Mapping[str, tuple[str, str, str]] = {
    "mcp_actors_sessions_total": ("session.started", _COUNTER, "{session}"),
    "mcp_actors_calls_in_flight": ("call.active", _ACTIVE, "{call}"),
    "mcp_actors_questions_in_flight": ("question.active", _ACTIVE, "{request}"),
    "mcp_actors_limiter_inside": ("limiter.usage", _ACTIVE, "{call}"),
    "mcp_actors_limiter_limit": ("limiter.limit", _ACTIVE, "{call}"),
    "mcp_actors_limiter_waiting": ("limiter.waiting", _ACTIVE, "{call}"),
    "mcp_actors_limiter_refused_total": ("limiter.refused", _COUNTER, "{call}"),
    "mcp_actors_outbox_frames": ("outbox.size", _ACTIVE, "{frame}"),
    "mcp_actors_outbox_fullest_frames": ("outbox.fullest", _GAUGE, "{frame}"),
    "mcp_actors_senders_stalled": ("sender.stalled", _ACTIVE, "{sender}"),
    "mcp_actors_subscriptions": ("subscription.active", _ACTIVE, "{subscription}"),
    "mcp_actors_subscription_events_waiting": ("subscription.event.waiting", _ACTIVE, "{event}"),
    "mcp_actors_loop_blocked_total": ("loop.blocked", _COUNTER, "{blockage}"),
    "mcp_actors_loop_blocked_seconds_total": ("loop.blocked.time", _COUNTER, "s"),
    "mcp_actors_isolated_processes": ("isolated.active", _ACTIVE, "{process}"),
    "mcp_actors_isolated_started_total": ("isolated.started", _COUNTER, "{process}"),
    "mcp_actors_isolated_ended_total": ("isolated.ended", _COUNTER, "{process}"),
    "mcp_actors_events_published_total": ("event.published", _COUNTER, "{event}"),
    "mcp_actors_held_bytes": ("memory.usage", _ACTIVE, "By"),
    "mcp_actors_held_bytes_limit": ("memory.limit", _ACTIVE, "By"),
    "mcp_actors_held_bytes_refused_total": ("memory.refused", _COUNTER, "{request}"),
    "mcp_actors_http_refused_total": ("http.refused", _COUNTER, "{request}"),
    "mcp_actors_crashes_total": ("task.crashed", _COUNTER, "{task}"),
    "mcp_actors_requests_total": ("request.received", _COUNTER, "{request}"),
    "mcp_actors_cancelled_total": ("request.cancelled", _COUNTER, "{request}"),
    "mcp_actors_refused_total": ("request.refused", _COUNTER, "{request}"),
    "mcp_actors_late_total": ("message.late", _COUNTER, "{message}"),
    "mcp_actors_malformed_total": ("message.malformed", _COUNTER, "{message}"),
    "mcp_actors_arguments_repaired_total": ("call.repaired", _COUNTER, "{call}"),
    "mcp_actors_shared_state_up": ("shared_state.up", _GAUGE, "1"),
    "mcp_actors_upstream_up": ("upstream.up", _GAUGE, "1"),
    "mcp_actors_upstream_circuit": ("upstream.circuit", _GAUGE, "1"),
    "mcp_actors_upstream_connections": ("upstream.connection.active", _ACTIVE, "{connection}"),
    "mcp_actors_upstream_in_flight": ("upstream.call.active", _ACTIVE, "{call}"),
    "mcp_actors_upstream_limit": ("upstream.call.limit", _ACTIVE, "{call}"),
    "mcp_actors_upstream_refused_total": ("upstream.call.refused", _COUNTER, "{call}"),
    "mcp_actors_upstream_failed_connects_total": ("upstream.connection.failed", _COUNTER, "{connection}"),
    "mcp_actors_upstream_lost_total": ("upstream.connection.lost", _COUNTER, "{connection}"),
    "mcp_actors_connection_bytes_total": ("connection.io", _COUNTER, "By"),
}
"""The instruments of the `GAUGES`, by their names: the name behind ``mcp_actors.``, the kind and the unit.

Sessions are not among them: `Instruments` counts those of both sides.
"""
# Attributes that the conventions have, in place of the labels for Prometheus.
_ATTRIBUTES = {"tool": TARGETED["tools/call"], "status": "http.response.status_code"}
_DIRECTIONS = {"in": "receive", "out": "transmit"}


def _attributes_of(labels: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in labels.items():
        if name == "direction":
            found["network.io.direction"] = _DIRECTIONS[value]
        elif name == "status":
            found[_ATTRIBUTES[name]] = int(value)
        else:
            found[_ATTRIBUTES.get(name, f"mcp_actors.{name}")] = value
    return found


class ServerGauges:
    """The observable instruments for what servers hold; the SDK asks them in a thread of its own."""

    def __init__(self, meter: Meter) -> None:
        self._sources: list[Callable[[], ServerStatistics]] = []
        self._looked = -math.inf
        self._servers: list[ServerStatistics] = []
        create: Mapping[str, Callable[..., object]] = {
            _COUNTER: meter.create_observable_counter,
            _ACTIVE: meter.create_observable_up_down_counter,
            _GAUGE: meter.create_observable_gauge,
        }
        for gauge in GAUGES:
            if gauge.name in INSTRUMENTS:
                name, kind, unit = INSTRUMENTS[gauge.name]
                create[kind](f"mcp_actors.{name}", [partial(self._observe, gauge)], unit, gauge.help)

    def add(self, statistics: Callable[[], ServerStatistics]) -> Callable[[], None]:
        """Looks at one more server, until what is returned is called."""
        self._sources.append(statistics)
        return partial(self._sources.remove, statistics)

    def _observe(self, gauge: Gauge, options: CallbackOptions) -> Iterable[Measured]:
        if time.monotonic() - self._looked > _FRESH:
            self._servers = looked_at(tuple(self._sources))
            self._looked = time.monotonic()
        found = values_of(gauge, self._servers)
        return [Measured(number, _attributes_of(labels)) for number, labels in found]


# -- the calls for which the SDK is asked for a span ----------------------------------------------------


class Sampling:
    """Decides for which calls the SDK is asked for a span.

    Args:
        share: The share of them, from 0 to 1.
        most: Of these at most so many a second, ``None`` for any number. As many may come at once after a second
            without any; while there are more, they are spread evenly.

    Raises:
        ValueError: ``share`` is not from 0 to 1, or ``most`` is not above 0.
    """

    def __init__(self, share: float, most: float | None) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share is a number from 0 to 1, not {share!r}")
        if most is not None and not most > 0:
            raise ValueError(f"most_traces is a number above 0, not {most!r}")
        self._share = share
        self._most = most
        # The moment until which no further call is sampled.
        self._free = 0.0
        self._is_logged = False

    def takes(self, now: float | None = None) -> bool:
        """Returns whether the call that comes now is sampled.

        Args:
            now: The monotonic clock, in seconds; by default it is read.
        """
        # `random` is in [0, 1), so that a share of 1 is all of them.
        if self._share < 1 and random.random() >= self._share:
            return False
        if self._most is None:
            return True
        now = time.monotonic() if now is None else now
        if now <= self._free:
            if not self._is_logged:
                self._is_logged = True
                log.info("not every trace is recorded: more begin than a second may have", most=self._most)
            return False
        self._free = max(self._free, now - 1.0) + 1.0 / self._most
        return True


# -- the context of a trace in ``_meta`` ---------------------------------------------------------------

# Trace Context, 3.3.1.1: a receiver takes at least 512 characters of tracestate.
LONGEST_TRACESTATE = 512
# Baggage, 3.3.2: 8192 bytes at least are to be passed on.
LONGEST_BAGGAGE = 8192
# The second part of a later version may be followed by more, which is ignored (Trace Context, 4.3).
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,512})?", re.ASCII)
# Malformed values are ignored here: the library would log the text of the peer for each request.
_KEY = r"[a-z][a-z0-9_*/-]{0,240}(?:@[a-z][a-z0-9_*/-]{0,13})?"
_STATE = re.compile(rf"{_KEY}=[!-+\--<>-~]{{1,256}}(?:, ?{_KEY}=[!-+\--<>-~]{{1,256}}){{0,31}}", re.ASCII)
_ITEM = (
    r"[!#$&'*+.^_`|~0-9A-Za-z-]+=[!#-+\--:<-\[\]-~]*"
    r"(?:;[!#$&'*+.^_`|~0-9A-Za-z-]+(?:=[!#-+\--:<-\[\]-~]*)?)*"
)
_ITEMS = re.compile(rf"{_ITEM}(?:, ?{_ITEM})*", re.ASCII)
_BAGGAGE = W3CBaggagePropagator()
EMPTY = Context()
_UNSAMPLED = TraceFlags(TraceFlags.DEFAULT)
_NO_STATE = TraceState()
# The flag of ids that are random; older versions of the API have no name for it.
_RANDOM = 2
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
# The key of the span in a context: a context of one value is made in half the time that the API takes to set it.
(_SPAN,) = set_span_in_context(INVALID_SPAN, EMPTY)


def context_of(meta: Mapping[str, Any]) -> Context:
    """Returns the context that a request was sent in: empty if it has none that is well formed.

    Args:
        meta: The request's ``_meta``, which is the word of a peer.
    """
    traceparent = meta.get("traceparent")
    context = EMPTY
    if type(traceparent) is str:
        remote = _remote(traceparent, meta.get("tracestate"))
        if remote is not None:
            context = set_span_in_context(NonRecordingSpan(remote), EMPTY)
    carried = meta.get("baggage")
    if type(carried) is str and len(carried) <= LONGEST_BAGGAGE and _ITEMS.fullmatch(carried):
        context = _BAGGAGE.extract({"baggage": carried}, context)
    return context


def _remote(traceparent: str, tracestate: object) -> SpanContext | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or not _is_valid(found):
        return None
    _, trace_id, span_id, flags, _ = found.groups()
    state = None
    if type(tracestate) is str and len(tracestate) <= LONGEST_TRACESTATE and _STATE.fullmatch(tracestate):
        state = TraceState.from_header([tracestate])
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)


def _is_valid(traceparent: re.Match[str]) -> bool:
    version, trace_id, span_id, _, more = traceparent.groups()
    if version == "ff" or (version == "00" and more is not None):
        return False
    return trace_id != _NO_TRACE and span_id != _NO_SPAN


def is_sampled(meta: Mapping[str, Any]) -> bool | None:
    """Returns whether the trace that a request came with is sampled, ``None`` if it has none that is well formed."""
    traceparent = meta.get("traceparent")
    found = _TRACEPARENT.fullmatch(traceparent) if type(traceparent) is str else None
    if found is None or not _is_valid(found):
        return None
    return int(found[4], 16) & TraceFlags.SAMPLED != 0


class Unsampled(NonRecordingSpan):
    """The span of a call that is not sampled: it is recorded nowhere, and its ids are made when they are first read.

    Args:
        meta: The ``_meta`` of the request. The span belongs to the trace that this names, if it names one.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = meta

    def __repr__(self) -> str:
        return f"<Unsampled {self.get_span_context()!r}>"

    def get_span_context(self) -> SpanContext:
        made: SpanContext | None = self.__dict__.get("made")
        if made is None:
            traceparent, caller = self._meta.get("traceparent"), None
            if type(traceparent) is str:
                caller = _remote(traceparent, self._meta.get("tracestate"))
            if caller is None:
                trace_id, flags, state = random.getrandbits(128), _UNSAMPLED, _NO_STATE
            else:
                # Trace Context, Level 2, 3.2.2.5: undefined flags are not passed on.
                flags = TraceFlags(caller.trace_flags & _RANDOM)
                trace_id, state = caller.trace_id, caller.trace_state
            made = SpanContext(trace_id, random.getrandbits(64), False, flags, state)
            # Two threads may ask at the same time: the first one's ids are those of both.
            made = self.__dict__.setdefault("made", made)
        return made

    def context(self) -> Context:
        """Returns the context in which the function runs: this span, and the baggage that came with the request."""
        carried = self._meta.get("baggage")
        if carried is None:
            return Context({_SPAN: self})
        return set_span_in_context(self, context_of({"baggage": carried}))


def meta_of(span: SpanContext, context: Context) -> dict[str, Any]:
    """Returns the members of ``_meta`` that carry a span, and the baggage of its context, to a peer."""
    meta: dict[str, Any] = {}
    if span.is_valid:
        meta["traceparent"] = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        if span.trace_state:
            meta["tracestate"] = span.trace_state.to_header()
    if baggage.get_all(context):
        _BAGGAGE.inject(meta, context)
    return meta


def go_on(meta: Mapping[str, Any]) -> None:
    """Makes a span of another process the current one, until the end of the context in which it is called.

    Args:
        meta: The span, as `meta_of` has it.
    """
    attach(context_of(meta))


_GO_ON = f"{go_on.__module__}:{go_on.__name__}"


# -- the telemetry -------------------------------------------------------------------------------------

SCOPE = "mcp_actors"
"""The name of the instrumentation, by which its spans and metrics are found."""


def scope_version() -> str | None:
    """Returns the version of the instrumentation, ``None`` where the package is not installed."""
    try:
        return version("mcp-actors")
    except PackageNotFoundError:
        return None


class OpenTelemetry(Telemetry):
    """Traces and measures by OpenTelemetry's semantic conventions for MCP, with the program's own SDK.

    It needs the extra ``otel``, which has the API alone. What becomes of spans and metrics, how many are kept, and to
    where they are sent, the program decides by the SDK that it configures.

    Args:
        tracer_provider: Makes the spans; by default the program's global one.
        meter_provider: Makes the instruments; by default the program's global one.
        share: The share, from 0 to 1, of the inbound calls without a trace for which the SDK is asked for a span.
        most_traces: Of these calls, the SDK is asked about at most so many a second.
        metrics: Counts and times the calls, in place of the SDK's histograms of the durations of operations, which
            take the SDK some 10 microseconds for each call.
            `~mcp_actors.telemetry.otel_exporting.MetricsExporter` adds what it has counted to what the SDK exports.

    By default the SDK is asked about each call, which is dear. With ``share`` or ``most_traces`` it is not asked about
    the other calls, nor about one whose trace is not sampled: they get an id of a trace that is not sampled, and are
    recorded nowhere. The SDK's sampler should then be one that obeys the parent of a span, as the default one does.

    Raises:
        ValueError: ``share`` is not from 0 to 1, or ``most_traces`` is not above 0.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        share: float | None = None,
        most_traces: float | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        asked = share is None and most_traces is None
        self._sampling = None if asked else Sampling(1.0 if share is None else share, most_traces)
        own = scope_version()
        self._tracer = trace.get_tracer(SCOPE, own, tracer_provider)
        meter = get_meter(SCOPE, own or "", meter_provider)
        self._instruments = Instruments(meter)
        self._gauges = ServerGauges(meter)
        self._descriptions = Descriptions()
        self.metrics = metrics
        """Counts and times the calls, ``None`` if the SDK does."""
        self._operations = Operations(meter) if metrics is None else None
        if metrics is not None:
            add_own_gauges(meter, metrics)
        # The spans in which servers began. A call may find one of them current, but is not part of it.
        self._starts: list[int] = []

    def __repr__(self) -> str:
        return "<OpenTelemetry>"

    def inbound(self, request: ObservedRequest) -> Observation:
        """Begins the span of a call. Its parent is the one that the request names, and not one of this process."""
        if request.is_task:
            return self._task(request)
        sampling = self._sampling
        if sampling is not None:
            # Nothing is made for a call that is not sampled before somebody asks for it.
            sampled = is_sampled(request.meta) if "traceparent" in request.meta else None
            if not (sampling.takes() if sampled is None else sampled):
                return _UnsampledCall(self, request)
        described, label = self._descriptions.of(request, "server")
        parent = context_of(request.meta)
        attributes = span_attributes(request, described, label)
        add_address(attributes, "client", request.peer)
        links = self._links(trace.get_current_span(parent).get_span_context())
        span = self._tracer.start_span(described.name, parent, SpanKind.SERVER, attributes, links)
        return _InboundSpan(self, request, span, set_span_in_context(span, parent))

    def _links(self, parent: SpanContext) -> list[Link] | None:
        """Returns a link to the span in which the request arrived, if there is one: that of an HTTP server."""
        here = trace.get_current_span().get_span_context()
        if not here.is_valid or here == parent or here.span_id in self._starts:
            return None
        return [Link(here)]

    def _task(self, request: ObservedRequest) -> Observation:
        """Begins the span of a task that runs: below the call that created it, if that was here; else below its caller.

        It is linked to the request's own parent, since the call has been answered long before the task ends.
        """
        described, label = self._descriptions.of(request, "server")
        asked = context_of(request.meta)
        here = context_api.get_current()
        parent = here if trace.get_current_span(here).get_span_context().is_valid else asked
        remote = trace.get_current_span(asked).get_span_context()
        span = self._tracer.start_span(
            f"task {label}" if label is not None else "task",
            parent,
            SpanKind.INTERNAL,
            {**span_attributes(request, described, label), "mcp_actors.task": True},
            [Link(remote)] if remote.is_valid else None,
        )
        return _InboundSpan(self, request, span, set_span_in_context(span, parent))

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        """Begins the span of a request of ours, below the span that is current, and sends it along."""
        described, label = self._descriptions.of(request, "client")
        here = context_api.get_current()
        attributes = span_attributes(request, described, label)
        span = self._tracer.start_span(described.name, here, SpanKind.CLIENT, attributes)
        counted = None if self.metrics is None else self.metrics.outbound(request)
        return _OutboundSpan(self, request, span, meta_of(span.get_span_context(), here), counted)

    def measure(
        self,
        side: Side,
        request: ObservedRequest,
        ending: CallEnding,
        context: Context,
    ) -> None:
        """Records the duration of a request that has ended, in the context of its span."""
        if self._operations is not None:
            described, _ = self._descriptions.of(request, side)
            operations = self._operations.server if side == "server" else self._operations.client
            error = error_type(side, request.method, ending.kind, ending.code)
            attributes = described.duration(error, ending.code)
            operations.record(ending.seconds, attributes, context)

    def end(self, side: Side, request: ObservedRequest, span: Span, ending: CallEnding) -> None:
        """Ends the span of a request, with what is known of it now."""
        if not span.is_recording():
            return
        if request.target is not None and request.method in TARGETED and not request.is_task:
            # A gateway may have learned only from the call which tools there are.
            span.update_name(self._descriptions.of(request, side)[0].name)
        error = error_type(side, request.method, ending.kind, ending.code)
        if ending.code is not None:
            span.set_attribute("rpc.response.status_code", str(ending.code))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, ending.message))
        elif ending.kind != "answered":
            span.set_attribute("mcp_actors.ending", ending.kind)
        span.end()

    def session_began(self, side: Side) -> None:
        self._instruments.session_began(side)
        if self.metrics is not None:
            self.metrics.session_began(side)

    def session_ended(self, session: ObservedSession) -> None:
        protocol = protocol_of(session.peer) if session.protocol is None else (session.protocol, None)
        attributes = network_attributes(network_of(session.peer), protocol)
        if session.side == "client":
            add_address(attributes, "server", session.peer)
        if session.version is not None:
            attributes["mcp.protocol.version"] = session.version
        if session.is_broken:
            attributes["error.type"] = "lost"
        self._instruments.session_ended(session.side, session.seconds, attributes)
        if self.metrics is not None:
            self.metrics.session_ended(session)

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        start = trace.get_current_span().get_span_context().span_id
        self._starts.append(start)
        ends: list[Callable[[], None]] = [self._gauges.add(statistics), partial(self._starts.remove, start)]
        if self.metrics is not None:
            ends.append(self.metrics.served(statistics))

        def end() -> None:
            for each in ends:
                each()

        return end


class _UnsampledCall(Unsampled, Observation):
    """A call that is not sampled. It is its span as well, since it must cost little."""

    def __init__(self, telemetry: OpenTelemetry, request: ObservedRequest) -> None:
        self._meta = request.meta
        self._telemetry = telemetry
        self._request = request
        self._token: Any = None

    def enter(self) -> None:
        self._token = attach(self.context())

    def leave(self) -> None:
        detach(self._token)

    def ended(self, ending: CallEnding) -> None:
        metrics = self._telemetry.metrics
        if metrics is None:
            self._telemetry.measure("server", self._request, ending, self.context())
        else:
            metrics.count("server", self._request, ending)

    def log_members(self) -> Mapping[str, Any]:
        return _ids(self)

    def carried(self) -> Sequence[tuple[str, Any]]:
        return [(_GO_ON, meta_of(self.get_span_context(), self.context()))]


class _InboundSpan(Observation):
    __slots__ = ("_context", "_request", "_span", "_telemetry", "_token")

    def __init__(
        self, telemetry: OpenTelemetry, request: ObservedRequest, span: Span, context: Context
    ) -> None:
        self._telemetry = telemetry
        self._request = request
        self._span = span
        self._context = context
        self._token: Any = None

    def enter(self) -> None:
        self._token = attach(self._context)

    def leave(self) -> None:
        detach(self._token)

    def ended(self, ending: CallEnding) -> None:
        # The run of a task takes as long as it likes, and has no duration for that.
        if not self._request.is_task:
            if self._telemetry.metrics is not None:
                self._telemetry.metrics.count("server", self._request, ending)
            self._telemetry.measure("server", self._request, ending, self._context)
        if ending.waited:
            self._span.set_attribute("mcp_actors.waited", ending.waited)
        self._telemetry.end("server", self._request, self._span, ending)

    def log_members(self) -> Mapping[str, Any]:
        return _ids(self._span)

    def carried(self) -> Sequence[tuple[str, Any]]:
        return [(_GO_ON, meta_of(self._span.get_span_context(), self._context))]


class _OutboundSpan(OutboundObservation):
    __slots__ = ("_counted", "_request", "_span", "_telemetry")

    def __init__(
        self,
        telemetry: OpenTelemetry,
        request: ObservedRequest,
        span: Span,
        meta: Mapping[str, Any],
        counted: OutboundObservation | None,
    ) -> None:
        super().__init__(meta)
        self._telemetry = telemetry
        self._request = request
        self._span = span
        self._counted = counted

    def ended(self, ending: CallEnding) -> None:
        if self._counted is not None:
            self._counted.ended(ending)
        self._telemetry.measure("client", self._request, ending, set_span_in_context(self._span, Context()))
        self._telemetry.end("client", self._request, self._span, ending)


def _ids(span: Span) -> dict[str, str]:
    context = span.get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
