"""The SDK of OpenTelemetry in a process that has not configured it, by the usual variables of the environment."""

from __future__ import annotations

import atexit
import os
import threading
import time

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

__all__ = ["configure"]


def configure(name: str, last_flush: int) -> None:
    """Sends spans and metrics by OTLP over HTTP, in threads of the SDK, for as long as the process lives.

    Args:
        name: The name of the service, where ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` give none.
        last_flush: Milliseconds in which what is left may be sent at the end of the process.
    """
    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": name}))
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    process = os.getpid()

    def flush() -> None:
        if os.getpid() == process:
            # In threads that the process does not wait for: a collector that hangs must not keep it.
            ends = time.monotonic() + last_flush / 1000
            threads = [
                threading.Thread(target=each.force_flush, args=(last_flush,), daemon=True)
                for each in (tracers, meters)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(ends - time.monotonic(), 0))

    atexit.register(flush)
