"""``mcp-actors serve --metrics PATH --telemetry otel``: what they add to a server."""

from __future__ import annotations

import importlib
from typing import Any

from mcp_actors import Server
from mcp_actors.abc import Telemetry
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.telemetry import Metrics, Together

__all__ = ["observe"]

_INSTALL = (
    "--telemetry otel needs OpenTelemetry with its SDK: "
    "pip install 'mcp-actors[otel]' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
)
# Milliseconds that spans and metrics which are left get at the end of the process: nothing waits for a collector.
_LAST_FLUSH = 2000


def observe(
    server: Server, metrics: str | None, telemetry: str | None, worker: int | None
) -> dict[str, object]:
    """Gives the server the telemetry that was asked for, beside its own, and returns the routes that this needs.

    Args:
        metrics: The path of the page of metrics, ``None`` for none.
        telemetry: ``"otel"``, or ``None`` for none.
        worker: The number of this process among its siblings, which its metrics have as a label.

    Raises:
        WrongUsage: A library is missing; the message says how to install it.
    """
    found: list[Telemetry] = [] if server.telemetry is None else [server.telemetry]
    counted = Metrics(None if worker is None else {"worker": str(worker)})
    made, counts = (None, False) if telemetry is None else _open_telemetry(server.name, counted)
    if made is not None:
        found.append(made)
    if metrics is not None and not counts:
        found.append(counted)
    server.telemetry = found[0] if len(found) == 1 else Together(*found)
    if metrics is None:
        return {}
    return {metrics: importlib.import_module("mcp_transports.http.server").metrics_page(counted)}


def _open_telemetry(name: str, counted: Metrics) -> tuple[Telemetry, bool]:
    """Returns telemetry for the SDK that the process has configured; if none is, one is, by its environment.

    The second value says whether the telemetry counts into ``counted``. An SDK that somebody else has configured
    decides what is sampled, and is given the durations: nothing can be added to what it exports.
    """
    try:
        api: Any = importlib.import_module("opentelemetry.trace")
        if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            configure = importlib.import_module("mcp_actors.cli.otel_sdk").configure
            made: Telemetry = configure(name, _LAST_FLUSH, counted)
            return made, True
        made = importlib.import_module("mcp_actors.telemetry.otel").OpenTelemetry()
    except ImportError as error:
        raise WrongUsage(_INSTALL) from error
    return made, False
