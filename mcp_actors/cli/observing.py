"""``mcp-actors serve --metrics PATH --telemetry otel``: what these options add to a server."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from mcp_actors import Server
from mcp_actors.abc import Telemetry
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.telemetry import Metrics, Together
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.telemetry.otel_exporting import MetricsExporter

__all__ = ["configure", "observe", "sampling"]


_INSTALL = (
    "--telemetry otel needs OpenTelemetry with its SDK: "
    "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
)
# Milliseconds for the last spans and metrics at the end of the process, which does not wait for a slow collector.
_LAST_FLUSH = 2000


def observe(
    server: Server,
    metrics: str | None,
    telemetry: str | None,
    shown: Callable[[Metrics], object] | None = None,
) -> dict[str, object]:
    """Gives the server the telemetry that was asked for, beside its own, and returns the routes that this needs.

    Args:
        metrics: The path of the page of metrics, ``None`` for none.
        telemetry: ``"otel"``, or ``None`` for none.
        shown: Returns what the page shows, given the metrics of this server, where it is one of several processes. By
            default these are shown.

    Raises:
        WrongUsage: A library is missing; the message says how to install it.
    """
    found: list[Telemetry] = [] if server.telemetry is None else [server.telemetry]
    counted = Metrics()
    made, counts = (None, False) if telemetry is None else _open_telemetry(server.name, counted)
    if made is not None:
        found.append(made)
    if metrics is not None and not counts:
        found.append(counted)
    server.telemetry = found[0] if len(found) == 1 else Together(*found)
    if metrics is None:
        return {}
    page = counted if shown is None else shown(counted)
    return {metrics: importlib.import_module("mcp_transports.http.server").metrics_page(page)}


def _open_telemetry(name: str, counted: Metrics) -> tuple[Telemetry, bool]:
    """Returns telemetry for the SDK that the process has configured, or configures one by the environment.

    The second value says whether the telemetry counts into ``counted``. An SDK that somebody else has configured
    decides what is sampled, and is given the durations: nothing can be added to what it exports.
    """
    try:
        api: Any = importlib.import_module("opentelemetry.trace")
        if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            configure = importlib.import_module("mcp_actors.cli.observing").configure
            made: Telemetry = configure(name, _LAST_FLUSH, counted)
            return made, True
        made = importlib.import_module("mcp_actors.telemetry.otel").OpenTelemetry()
    except ImportError as error:
        raise WrongUsage(_INSTALL) from error
    return made, False


# -- The SDK of OpenTelemetry, configured by the environment if the process has not done so ------------

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
    The SDK makes other samplers, and reports malformed values.
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
