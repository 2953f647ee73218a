"""The durations that `Metrics` has counted, among what the SDK of OpenTelemetry exports. It needs the SDK.

The API of OpenTelemetry takes durations one at a time, and its SDK some 10 microseconds for each. A histogram of our
own takes one, and is read when the SDK exports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import Histogram as _Recorded
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from mcp_actors.telemetry.exposition import BUCKETS, OTHER
from mcp_actors.telemetry.metrics import Key, Metrics
from mcp_actors.telemetry.otel import OPERATIONS, SCOPE, Described, error_type, scope_version

__all__ = ["MetricsExporter"]

# The bucket counts of a histogram and its sum, which only grow.
_Counted = tuple[tuple[int, ...], float]


class MetricsExporter(MetricExporter):
    """Adds the durations of operations to the metrics that another exporter sends.

    ``PeriodicExportingMetricReader(MetricsExporter(OTLPMetricExporter(), metrics))`` exports what
    ``OpenTelemetry(metrics=metrics)`` counts, as the histograms of the conventions, with the temporality that the
    other exporter prefers. They have neither exemplars nor least and largest values, nor the version of the protocol
    and the transport among their attributes.

    Args:
        exporter: Sends.
        metrics: What `OpenTelemetry` was given as ``metrics=``.
    """

    def __init__(self, exporter: MetricExporter, metrics: Metrics) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._metrics = metrics
        self._described: dict[Key, dict[str, Any]] = {}
        self._began = time.time_ns()
        # For deltas: what was counted when it was last sent.
        self._sent: dict[tuple[str, frozenset[tuple[str, Any]]], _Counted] = {}

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Sends what the SDK has collected, and the durations with it, as one message."""
        durations = self._durations()
        if durations:
            metrics_data = _with(metrics_data, durations)
        return self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Passes it on."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Passes it on."""
        self._exporter.shutdown(timeout_millis, **kwargs)

    def _durations(self) -> list[Metric]:
        now = time.time_ns()
        preferred = (self._preferred_temporality or {}).get(_Recorded)
        deltas = preferred is AggregationTemporality.DELTA
        temporality = AggregationTemporality.DELTA if deltas else AggregationTemporality.CUMULATIVE
        found: list[Metric] = []
        for side, (name, text) in OPERATIONS.items():
            points = self._points(side, name, now, deltas)
            if points:
                found.append(Metric(name, text, "s", Histogram(points, temporality)))
        if deltas:
            self._began = now
        return found

    def _points(self, side: str, name: str, now: int, deltas: bool) -> Sequence[HistogramDataPoint]:
        counted: dict[frozenset[tuple[str, Any]], _Counted] = {}
        for key, buckets, seconds in self._metrics.durations():
            if key[0] == side:
                # All endings without an error have the same attributes.
                attributes = frozenset(self._attributes(key).items())
                others, sum_of_others = counted.get(attributes, ((0,) * len(buckets), 0.0))
                counted[attributes] = tuple(map(int.__add__, others, buckets)), sum_of_others + seconds
        points: list[HistogramDataPoint] = []
        for attributes, (buckets, seconds) in counted.items():
            if deltas:
                now_counted = buckets, seconds
                before, seconds_before = self._sent.get((name, attributes), ((0,) * len(buckets), 0.0))
                self._sent[name, attributes] = now_counted
                buckets, seconds = tuple(map(int.__sub__, buckets, before)), seconds - seconds_before
            count = sum(buckets)
            if count:
                # The format has the least and the largest value as optional members; here they are not known.
                unknown: Any = None
                points.append(
                    HistogramDataPoint(
                        dict(attributes), self._began, now, count, seconds, buckets, BUCKETS, unknown, unknown
                    )
                )
        return points

    def _attributes(self, key: Key) -> dict[str, Any]:
        """Returns the attributes by the conventions."""
        found = self._described.get(key)
        if found is None:
            side, method, target, kind, code, upstream = key
            label = None if target == OTHER else target
            described = Described(side, method, label, None, None, None, upstream, "")
            error = error_type(side, method, kind, code)
            found = self._described[key] = described.duration(error, code)
        return found


def _with(metrics_data: MetricsData, durations: list[Metric]) -> MetricsData:
    """Returns the same metrics with these among those of this instrumentation."""
    # Exporters group by resource and scope, and may keep the last group alone: these go to where they belong.
    resources = [*metrics_data.resource_metrics] or [ResourceMetrics(Resource.create(), [], "")]
    first = resources[0]
    scopes = [each for each in first.scope_metrics if each.scope.name != SCOPE]
    ours = next((each for each in first.scope_metrics if each.scope.name == SCOPE), None)
    if ours is None:
        scopes.append(ScopeMetrics(InstrumentationScope(SCOPE, scope_version()), durations, ""))
    else:
        scopes.append(ScopeMetrics(ours.scope, [*ours.metrics, *durations], ours.schema_url))
    resources[0] = ResourceMetrics(first.resource, scopes, first.schema_url)
    return MetricsData(resources)
