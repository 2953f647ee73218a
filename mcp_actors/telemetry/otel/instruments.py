"""The instruments of OpenTelemetry: four histograms of durations, and what servers hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from mcp_actors.server import ServerStatistics
from mcp_actors.telemetry.gauges import GAUGES, Gauge, looked_at, values_of
from mcp_actors.telemetry.metrics import BUCKETS, Metrics

__all__ = ["OPERATIONS", "Instruments", "Operations", "ServerGauges", "add_own_gauges"]

# Seconds for which one look at the servers is good: a collection asks for each instrument, one after the other.
_FRESH = 0.5

OPERATIONS: Mapping[str, tuple[str, str]] = {
    side: (
        f"mcp.{side}.operation.duration",
        f"The duration of the MCP request as observed on the {side}.",
    )
    for side in ("server", "client")
}
"""The names and the texts of the durations of requests, by the side that observes them."""


class Operations:
    """The durations of requests, by the semantic conventions for MCP; the SDK is given each of them."""

    def __init__(self, meter: Meter) -> None:
        self.server = _histogram(meter, *OPERATIONS["server"])
        self.client = _histogram(meter, *OPERATIONS["client"])


class Instruments:
    """The durations of sessions, by the semantic conventions for MCP, and the sessions that are open."""

    def __init__(self, meter: Meter) -> None:
        self._sessions = {
            side: _histogram(
                meter,
                f"mcp.{side}.session.duration",
                f"The duration of the MCP session as observed on the {side}.",
            )
            for side in ("server", "client")
        }
        self._open = meter.create_up_down_counter(
            "mcp_actors.sessions.open", "{session}", "Sessions that are open, of both sides."
        )

    def session_began(self, side: Literal["server", "client"]) -> None:
        """Counts a session that is open."""
        self._open.add(1, {"side": side})

    def session_ended(
        self, side: Literal["server", "client"], seconds: float, attributes: dict[str, Any]
    ) -> None:
        """Counts a session that is no longer open, and records its length."""
        self._open.add(-1, {"side": side})
        self._sessions[side].record(seconds, attributes)


def _histogram(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)


def add_own_gauges(meter: Meter, metrics: Metrics) -> None:
    """Adds observable instruments for the clients of this process, and their requests.

    They always have a value: an SDK that has collected nothing does not export, and `MetricsExporter` neither then.
    """
    numbers: Mapping[str, tuple[str, Callable[[], int]]] = {
        "mcp_actors.clients": ("Connections of clients of this process.", lambda: metrics.clients),
        "mcp_actors.outbound_in_flight": ("Requests of this process in flight.", lambda: metrics.in_flight),
    }
    for name, (text, read) in numbers.items():
        meter.create_observable_gauge(name, [partial(_observed, read)], "1", text)


def _observed(read: Callable[[], int], options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(read())]


class ServerGauges:
    """The observable instruments for what servers hold; the SDK asks them in a thread of its own."""

    def __init__(self, meter: Meter) -> None:
        self._sources: list[Callable[[], ServerStatistics]] = []
        self._looked = -math.inf
        self._servers: list[ServerStatistics] = []
        for gauge in GAUGES:
            name = gauge.name.removesuffix("_total").replace("mcp_actors_", "mcp_actors.")
            create = (
                meter.create_observable_gauge if gauge.kind == "gauge" else meter.create_observable_counter
            )
            create(name, [partial(self._observe, gauge)], "1", gauge.help)

    def add(self, statistics: Callable[[], ServerStatistics]) -> Callable[[], None]:
        """Looks at one more server, until what is returned is called."""
        self._sources.append(statistics)
        return partial(self._sources.remove, statistics)

    def _observe(self, gauge: Gauge, options: CallbackOptions) -> Iterable[Observation]:
        if time.monotonic() - self._looked > _FRESH:
            self._servers = looked_at(tuple(self._sources))
            self._looked = time.monotonic()
        return [Observation(number, labels) for number, labels in values_of(gauge, self._servers)]
