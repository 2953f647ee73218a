"""The SDK of OpenTelemetry in a process that has not configured it, by the usual variables of the environment."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.telemetry.otel.exporting import MetricsExporter

__all__ = ["configure", "sampling"]


# Traces that begin here in a second, if the environment says nothing of them. A span takes some 100 microseconds
# of processor time, the other threads of the SDK included.
_MOST_TRACES = 20


def configure(name: str, last_flush: int, counted: Metrics) -> OpenTelemetry:
    """Sends spans and metrics by OTLP over HTTP, in threads of the SDK, for as long as the process lives.

    Args:
        name: The name of the service, where ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` give none.
        last_flush: Milliseconds in which what is left may be sent at the end of the process.
        counted: Counts and times the calls.

    Returns:
        Telemetry for this SDK.
    """
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": name}))
    share, most_traces, sampler = sampling()
    tracers = TracerProvider(sampler, resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    reader = PeriodicExportingMetricReader(MetricsExporter(OTLPMetricExporter(), counted))
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    process = os.getpid()

    def flush() -> None:
        if os.getpid() == process:
            # In threads that the process does not wait for: a collector that hangs must not keep it.
            threads = [
                threading.Thread(target=each.force_flush, args=(last_flush,), daemon=True)
                for each in (tracers, meters)
            ]
            for thread in threads:
                thread.start()
            until = time.monotonic() + last_flush / 1000
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))

    atexit.register(flush)
    return OpenTelemetry(share=share, most_traces=most_traces, metrics=counted)


def sampling() -> tuple[float | None, float | None, Sampler | None]:
    """Returns ``share`` and ``most_traces`` for `OpenTelemetry`, and the sampler of the SDK, by the environment.

    A ratio is decided before the SDK is asked, since its answer takes longer than the rest of the telemetry of a call.
    Other samplers are made, and malformed values told, by the SDK.
    """
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "")
    if not sampler:
        return None, _MOST_TRACES, None
    if sampler.lower() == "parentbased_traceidratio":
        with suppress(ValueError):
            share = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", ""))
            if 0 <= share <= 1:
                return share, None, DEFAULT_ON
    return None, None, None
