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
    routes: dict[str, object] = {}
    if telemetry is not None:
        found.append(_open_telemetry(server.name))
    if metrics is not None:
        counted = Metrics(None if worker is None else {"worker": str(worker)})
        found.append(counted)
        routes[metrics] = importlib.import_module("mcp_transports.http.server").metrics_page(counted)
    server.telemetry = found[0] if len(found) == 1 else Together(*found)
    return routes


def _open_telemetry(name: str) -> Telemetry:
    """Returns telemetry for the SDK that the process has configured; if none is, one is, by its environment."""
    try:
        api: Any = importlib.import_module("opentelemetry.trace")
        if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
            importlib.import_module("mcp_actors.cli.otel_sdk").configure(name, _LAST_FLUSH)
        made: Telemetry = importlib.import_module("mcp_actors.telemetry.otel").OpenTelemetry()
    except ImportError as error:
        raise WrongUsage(_INSTALL) from error
    return made
