"""The instruments of OpenTelemetry: four histograms of durations, and what servers hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from mcp_actors.server import ServerStatistics
from mcp_actors.telemetry.gauges import GAUGES, Gauge, looked_at, values_of
from mcp_actors.telemetry.metrics import BUCKETS

__all__ = ["Instruments", "ServerGauges"]

# Seconds for which one look at the servers is good: a collection asks for each instrument, one after the other.
_FRESH = 0.5


class Instruments:
    """The durations, by the semantic conventions for MCP, and the sessions that are open."""

    def __init__(self, meter: Meter) -> None:
        self.server_operation = _histogram(meter, "mcp.server.operation.duration")
        self.client_operation = _histogram(meter, "mcp.client.operation.duration")
        self._sessions = {
            "server": _histogram(meter, "mcp.server.session.duration"),
            "client": _histogram(meter, "mcp.client.session.duration"),
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


def _histogram(meter: Meter, name: str) -> Histogram:
    _, side, of, _ = name.split(".")
    text = f"The duration of the MCP {'session' if of == 'session' else 'request'} as observed on the {side}."
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)


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
