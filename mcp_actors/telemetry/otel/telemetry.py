"""Spans and durations of calls and sessions for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)

from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)
from mcp_actors.telemetry.labels import network_of
from mcp_actors.telemetry.metrics import Metrics
from mcp_actors.telemetry.otel.attributes import Descriptions, add_address, error_type, span_attributes
from mcp_actors.telemetry.otel.instruments import Instruments, Operations, ServerGauges, add_own_gauges
from mcp_actors.telemetry.otel.propagation import Unsampled, context_of, is_sampled, meta_of
from mcp_actors.telemetry.otel.sampling import Sampling

__all__ = ["SCOPE", "OpenTelemetry"]

SCOPE = "mcp_actors"
"""The name of the instrumentation, by which its spans and metrics are found."""


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
            `~mcp_actors.telemetry.otel.exporting.MetricsExporter` adds what it has counted to what the SDK exports.

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
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._instruments = Instruments(meter)
        self._gauges = ServerGauges(meter)
        self._descriptions = Descriptions()
        self.metrics = metrics
        """Counts and times the calls, ``None`` if the SDK does."""
        self._operations = Operations(meter) if metrics is None else None
        if metrics is not None:
            add_own_gauges(meter, metrics)
        # Spans that are no part of any call, though it may find one of them current: those in which servers began.
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
        described, label = self._descriptions.of(request, False)
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
        described, label = self._descriptions.of(request, False)
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
        described, label = self._descriptions.of(request, True)
        here = context_api.get_current()
        attributes = span_attributes(request, described, label)
        add_address(attributes, "server", request.peer)
        span = self._tracer.start_span(described.name, here, SpanKind.CLIENT, attributes)
        counted = None if self.metrics is None else self.metrics.outbound(request)
        return _OutboundSpan(self, request, span, meta_of(span.get_span_context(), here), counted)

    def measure(
        self,
        side: Literal["server", "client"],
        request: ObservedRequest,
        ending: CallEnding,
        context: Context,
    ) -> None:
        """Records the duration of a request that has ended, in the context of its span."""
        if self._operations is not None:
            described, _ = self._descriptions.of(request, side == "client")
            operations = self._operations.server if side == "server" else self._operations.client
            attributes = described.duration(error_type(ending), ending.code)
            operations.record(ending.seconds, attributes, context)

    def session_began(self, side: Literal["server", "client"]) -> None:
        self._instruments.session_began(side)
        if self.metrics is not None:
            self.metrics.session_began(side)

    def session_ended(self, session: ObservedSession) -> None:
        attributes: dict[str, Any] = {"network.transport": network_of(session.peer)}
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
        if self._span.is_recording():
            if ending.waited:
                self._span.set_attribute("mcp_actors.waited", ending.waited)
            _end(self._span, ending)

    def log_members(self) -> Mapping[str, Any]:
        return _ids(self._span)


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
        if self._span.is_recording():
            _end(self._span, ending)


def _ids(span: Span) -> dict[str, str]:
    context = span.get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _end(span: Span, ending: CallEnding) -> None:
    error = error_type(ending)
    if error is not None:
        span.set_attribute("error.type", error)
        if ending.code is not None:
            span.set_attribute("rpc.response.status_code", str(ending.code))
        span.set_status(Status(StatusCode.ERROR, ending.message))
    elif ending.kind == "input_required":
        span.set_attribute("mcp_actors.ending", ending.kind)
    span.end()
