"""Spans in memory, and as a tree of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.otel import OpenTelemetry


class Traced:
    """OpenTelemetry whose spans and metrics stay here."""

    def __init__(
        self,
        *,
        share: float | None = None,
        most_traces: float | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(
            tracer_provider=self.tracers,
            meter_provider=meters,
            share=share,
            most_traces=most_traces,
            metrics=metrics,
        )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def one(self, name: str, kind: str) -> ReadableSpan:
        (span,) = [each for each in self.spans if (each.name, each.kind.name) == (name, kind)]
        return span

    def metrics(self) -> dict[str, Any]:
        data: Any = self._reader.get_metrics_data()
        return {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def tree(spans: Sequence[tuple[str, str, str]]) -> str:
    """Returns spans, given as (id, id of the parent, text), as an indented tree; siblings in the order given."""
    known = {id for id, _, _ in spans}
    lines: list[str] = []

    def write(parent: str, depth: int) -> None:
        for id, above, text in spans:
            if above == parent or (depth == 0 and above not in known):
                lines.append("  " * depth + text)
                write(id, depth + 1)

    write("", 0)
    return "\n".join(lines)
