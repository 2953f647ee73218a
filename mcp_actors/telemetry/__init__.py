"""Telemetry: metrics for Prometheus, OpenTelemetry, and what log lines say of the call that they belong to.

`Metrics` needs nothing. ``mcp_actors.telemetry.otel.OpenTelemetry`` needs the extra ``otel``, and is imported from
there, so that no other program loads it. The contract, for telemetry of a program's own, is `mcp_actors.abc.telemetry`.
"""

from __future__ import annotations

from mcp_actors.telemetry.combined import Together, add_call
from mcp_actors.telemetry.exposition import BUCKETS
from mcp_actors.telemetry.metrics import MOST_SERIES, Metrics

__all__ = ["BUCKETS", "MOST_SERIES", "Metrics", "Together", "add_call"]
