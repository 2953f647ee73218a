"""Spans and durations of calls and sessions for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from opentelemetry import context as context_api
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, set_span_in_context

from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)
from mcp_actors.telemetry.labels import network_of
from mcp_actors.telemetry.otel.attributes import (
    Described,
    Descriptions,
    error_type,
    span_attributes,
)
from mcp_actors.telemetry.otel.instruments import Instruments, ServerGauges
from mcp_actors.telemetry.otel.propagation import context_of, meta_of, unrecorded

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
        share: The share, from 0 to 1, of the inbound calls without a trace for which the SDK is asked for a span. The
            SDK is not asked for the others, nor for a call whose trace is not sampled: they get an id of a trace that
            is not sampled, and are recorded nowhere. The SDK's sampler should be one that obeys the parent of a span,
            as the default one does. By default the SDK decides about each call, which is dearer.
        durations: Whether the two histograms of the durations of operations are recorded, as they are by default. A
            record takes the SDK 10 microseconds; `~mcp_actors.telemetry.Metrics` keeps the same durations for one.

    Raises:
        ValueError: ``share`` is not from 0 to 1.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        share: float | None = None,
        durations: bool = True,
    ) -> None:
        if share is not None and not 0 <= share <= 1:
            raise ValueError(f"share is a number from 0 to 1, not {share!r}")
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._instruments = Instruments(meter)
        self._gauges = ServerGauges(meter)
        self._descriptions = Descriptions()
        self._share = share
        self._durations = durations

    def __repr__(self) -> str:
        return "<OpenTelemetry>"

    def inbound(self, request: ObservedRequest) -> Observation:
        """Begins the span of a call. Its parent is the one that the request names, and not one of this process."""
        described, label = self._descriptions.of(request, False)
        if request.is_task:
            return self._task(request, described, label)
        parent = context_of(request.meta)
        span: Span | None = None if self._share is None else unrecorded(parent, self._share)
        if span is None:
            span = self._tracer.start_span(
                described.name,
                parent,
                SpanKind.SERVER,
                span_attributes(request, described, label),
            )
        durations = self._instruments.server_operation if self._durations else None
        return _InboundSpan(span, set_span_in_context(span, parent), described, durations)

    def _task(self, request: ObservedRequest, described: Described, label: str | None) -> Observation:
        """Begins the span of a task that runs: below the call that created it, if that was here; else below its caller.

        It is linked to the request's own parent, since the call has been answered long before the task ends.
        """
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
        return _InboundSpan(span, set_span_in_context(span, parent), described, None)

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        """Begins the span of a request of ours, below the span that is current, and sends it along."""
        described, label = self._descriptions.of(request, True)
        here = context_api.get_current()
        attributes = span_attributes(request, described, label)
        if request.peer:
            attributes["server.address"] = request.peer[:256]
        span = self._tracer.start_span(described.name, here, SpanKind.CLIENT, attributes)
        durations = self._instruments.client_operation if self._durations else None
        return _OutboundSpan(span, meta_of(span.get_span_context(), here), described, durations)

    def session_began(self, side: Literal["server", "client"]) -> None:
        self._instruments.session_began(side)

    def session_ended(self, session: ObservedSession) -> None:
        attributes: dict[str, Any] = {"network.transport": network_of(session.peer)}
        if session.version is not None:
            attributes["mcp.protocol.version"] = session.version
        if session.is_broken:
            attributes["error.type"] = "lost"
        self._instruments.session_ended(session.side, session.seconds, attributes)

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        return self._gauges.add(statistics)


class _InboundSpan(Observation):
    __slots__ = ("_context", "_described", "_durations", "_span", "_token")

    def __init__(
        self, span: Span, context: Context, described: Described, durations: metrics.Histogram | None
    ) -> None:
        self._span = span
        self._context = context
        self._described = described
        self._durations = durations
        self._token: Any = None

    def enter(self) -> None:
        self._token = context_api.attach(self._context)

    def leave(self) -> None:
        context_api.detach(self._token)

    def ended(self, ending: CallEnding) -> None:
        if self._durations is not None:
            attributes = self._described.duration(error_type(ending), ending.code)
            self._durations.record(ending.seconds, attributes, self._context)
        if self._span.is_recording():
            if ending.waited:
                self._span.set_attribute("mcp_actors.waited", ending.waited)
            _end(self._span, ending)

    def log_members(self) -> Mapping[str, Any]:
        span = self._span.get_span_context()
        return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


class _OutboundSpan(OutboundObservation):
    __slots__ = ("_described", "_durations", "_span")

    def __init__(
        self, span: Span, meta: Mapping[str, Any], described: Described, durations: metrics.Histogram | None
    ) -> None:
        super().__init__(meta)
        self._span = span
        self._described = described
        self._durations = durations

    def ended(self, ending: CallEnding) -> None:
        if self._durations is not None:
            attributes = self._described.duration(error_type(ending), ending.code)
            context = set_span_in_context(self._span, Context())
            self._durations.record(ending.seconds, attributes, context)
        if self._span.is_recording():
            _end(self._span, ending)


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
