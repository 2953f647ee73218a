"""OpenTelemetry: spans for every call in both directions, and metrics. It needs the extra ``otel``."""

from __future__ import annotations

from mcp_actors.telemetry.otel.telemetry import SCOPE, OpenTelemetry

__all__ = ["SCOPE", "OpenTelemetry"]
