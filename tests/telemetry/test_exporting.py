"""The durations that `Metrics` counts, among what the SDK exports: as histograms, cumulative or as deltas."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from mcp_actors.abc.telemetry import CallEnding, EndingKind, ObservedRequest
from mcp_actors.telemetry import BUCKETS, Metrics
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.telemetry.otel_exporting import MetricsExporter


class Kept(MetricExporter):
    """An exporter that keeps the metrics."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__({Histogram: temporality})
        self.sent: list[MetricsData] = []
        self.calls: list[str] = []

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        self.sent.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        self.calls.append("flushed")
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.calls.append("shut down")

    def points(self, name: str) -> list[Any]:
        """The points of what was sent last. There is one group of metrics, as exporters want it."""
        (resource,) = self.sent[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return [point for each in scope.metrics if each.name == name for point in each.data.data_points]


def counting(kept: Kept) -> tuple[Metrics, MeterProvider]:
    metrics = Metrics()
    reader = PeriodicExportingMetricReader(MetricsExporter(kept, metrics), 1e9)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    OpenTelemetry(meter_provider=meters, metrics=metrics)
    return metrics, meters


def count(
    metrics: Metrics,
    seconds: float,
    kind: EndingKind = "answered",
    code: int | None = None,
    name: str = "add",
) -> None:
    request = ObservedRequest("tools/call", name, True, 1, {}, "2025-11-25", "session", "memory:")
    metrics.count("server", request, CallEnding(kind, seconds, code))


NAME = "mcp.server.operation.duration"
ADD = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "add", "gen_ai.operation.name": "execute_tool"}


def test_a_histogram_by_the_conventions() -> None:
    kept = Kept(AggregationTemporality.CUMULATIVE)
    metrics, meters = counting(kept)
    count(metrics, 0.015)
    # An answer that asks the client something is no error, and has the same attributes.
    count(metrics, 1000.0, "input_required")
    count(metrics, 0.5, "tool_error")
    count(metrics, 0.25, "error", -32602)
    count(metrics, 0.25, "error")
    assert meters.force_flush()
    points = {point.attributes.get("error.type"): point for point in kept.points(NAME)}
    assert points[None].attributes == ADD
    assert (points[None].count, points[None].sum) == (2, 1000.015)
    assert points[None].explicit_bounds == BUCKETS
    assert points[None].bucket_counts == (0, 1, *[0] * 12, 1)
    assert points["tool_error"].attributes == {**ADD, "error.type": "tool_error"}
    code = {"error.type": "-32602", "rpc.response.status_code": "-32602"}
    assert points["-32602"].attributes == {**ADD, **code}
    assert set(points) == {None, "tool_error", "-32602", "_OTHER"}
    assert kept.points("mcp_actors.clients")[0].value == 0


@pytest.mark.parametrize(
    ("temporality", "counts"),
    [
        (AggregationTemporality.CUMULATIVE, [1, 3, 3]),
        (AggregationTemporality.DELTA, [1, 2, None]),
    ],
)
def test_the_temporality_is_that_of_the_other_exporter(
    temporality: AggregationTemporality, counts: list[int | None]
) -> None:
    kept = Kept(temporality)
    metrics, meters = counting(kept)
    found: list[int | None] = []
    starts: list[int] = []
    for number in (1, 2, 0):
        for _ in range(number):
            count(metrics, 0.5)
        meters.force_flush()
        points = kept.points(NAME)
        found.append(points[0].count if points else None)
        starts += [point.start_time_unix_nano for point in points]
        assert all(point.sum == point.count / 2 for point in points)
        assert all(point.start_time_unix_nano <= point.time_unix_nano for point in points)
    assert found == counts
    assert len(set(starts)) == (1 if temporality is AggregationTemporality.CUMULATIVE else 2)


def test_what_the_reader_asks_is_passed_on() -> None:
    kept = Kept(AggregationTemporality.CUMULATIVE)
    _, meters = counting(kept)
    meters.force_flush()
    meters.shutdown()
    assert kept.calls == ["flushed", "shut down"]


def test_an_empty_collection_is_given_a_resource() -> None:
    kept, metrics = Kept(AggregationTemporality.CUMULATIVE), Metrics()
    count(metrics, 0.5)
    MetricsExporter(kept, metrics).export(MetricsData([]))
    assert [point.count for point in kept.points(NAME)] == [1]


def test_metrics_of_others_are_left_as_they_are() -> None:
    reader, metrics = InMemoryMetricReader(), Metrics()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    meters.get_meter("other").create_counter("theirs").add(1)
    data = reader.get_metrics_data()
    assert data is not None
    kept = Kept(AggregationTemporality.CUMULATIVE)
    MetricsExporter(kept, metrics).export(data)
    (resource,) = kept.sent[0].resource_metrics
    assert resource.resource == data.resource_metrics[0].resource
    assert [each.name for scope in resource.scope_metrics for each in scope.metrics] == ["theirs"]
