"""Metrics of calls and servers without any dependency, as text for Prometheus."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal

from mcp_actors.abc.telemetry import (
    CallEnding,
    EndingKind,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)
from mcp_actors.server import ServerStatistics
from mcp_actors.telemetry.gauges import GAUGES, looked_at, values_of
from mcp_actors.telemetry.labels import OTHER, TARGETED, Names, shown

__all__ = ["BUCKETS", "MOST_SERIES", "Key", "Metrics"]

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds in seconds, as OpenTelemetry's conventions for MCP have them."""
MOST_SERIES = 1000
"""Different sets of labels that are told apart; those that come later are counted together."""

Side = Literal["server", "client"]
# Side, method, name of the tool or prompt, how the call ended, and the code of its error.
Key = tuple[Side, str, str | None, EndingKind, int | None]


class Metrics(Telemetry):
    """Counts and times calls in both directions, and looks at what servers hold when somebody asks.

    ``Server(telemetry=Metrics())`` and ``Client(telemetry=…)`` take one; several servers and clients may share it.
    `text` is the page, and `mcp_transports.http.server.metrics_page` serves it at a route.

    Names become labels only where they are registered at the server, or listed by one behind a gateway, or are among
    the first of a client's own; the rest is counted as ``other``. There are at most `MOST_SERIES` sets of labels.

    Args:
        labels: Labels that every line has, such as the number of a worker; none by default.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        self._names = Names()
        self._series: dict[Key, _Series] = {}
        self._sources: list[Callable[[], ServerStatistics]] = []
        self.clients = 0
        """Connections of clients of this process."""
        self.in_flight = 0
        """Requests of this process that wait for their answers."""
        self._sessions: dict[Side, _Series] = {"server": _Series(), "client": _Series()}

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._series)} series>"

    def inbound(self, request: ObservedRequest) -> Observation | None:
        """Begins to time a call. The run of a task is none: it takes as long as it likes."""
        return None if request.is_task else _Timed(self, request)

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        """Begins to time a request of this side."""
        with _counting:
            self.in_flight += 1
        return _OutboundTimed(self, request)

    def session_began(self, side: Side) -> None:
        if side == "client":
            with _counting:
                self.clients += 1

    def session_ended(self, session: ObservedSession) -> None:
        with _counting:
            if session.side == "client":
                self.clients -= 1
            self._sessions[session.side].add(session.seconds)

    def served(self, statistics: Callable[[], ServerStatistics]) -> Callable[[], None]:
        self._sources.append(statistics)
        return partial(self._sources.remove, statistics)

    def count(self, side: Side, request: ObservedRequest, ending: CallEnding) -> None:
        """Counts a call that has ended."""
        method, kind, code = request.method, ending.kind, ending.code
        name = self._names.label_of(request, side == "client") if method in TARGETED else None
        key: Key = side, method, name, kind, code
        with _counting:
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MOST_SERIES:
                    key = side, OTHER, OTHER, kind, None
                series = self._series.setdefault(key, _Series())
            series.add(ending.seconds, ending.waited, ending.size)

    def durations(self) -> list[tuple[Key, tuple[int, ...], float]]:
        """Returns the numbers of the calls in each of the buckets, and their seconds, by their labels.

        Legal in any thread. The last bucket is of what is above all of `BUCKETS`.
        """
        return [(key, tuple(each.buckets), each.seconds) for key, each in self._series.copy().items()]

    def left(self) -> None:
        """Takes note that a request of this side is no longer waited for."""
        with _counting:
            self.in_flight -= 1

    def text(self) -> str:
        """Returns everything in the text format of Prometheus, 0.0.4. Legal in any thread."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        series = sorted(self._series.copy().items(), key=_place)
        yield from _head("mcp_actors_calls_total", "counter", "Calls that have ended, by how they ended.")
        for key, each in series:
            yield self._line("mcp_actors_calls_total", each.count, {"side": key[0], **_labels_of(key)})
        for side in ("server", "client"):
            name = f"mcp_{side}_operation_duration_seconds"
            yield from _head(name, "histogram", f"The duration of MCP requests as observed on the {side}.")
            for key, each in series:
                if key[0] == side:
                    yield from self._histogram(name, each, _labels_of(key))
        for side, sessions in self._sessions.items():
            name = f"mcp_{side}_session_duration_seconds"
            yield from _head(name, "histogram", f"The duration of MCP sessions as observed on the {side}.")
            yield from self._histogram(name, sessions, {})
        yield from self._totals(series)
        servers = looked_at(tuple(self._sources))
        for gauge in GAUGES:
            values = values_of(gauge, servers)
            if values:
                yield from _head(gauge.name, gauge.kind, gauge.help)
            for number, labels in values:
                yield self._line(gauge.name, number, labels)

    def _totals(self, series: list[tuple[Key, _Series]]) -> Iterator[str]:
        waited, size = "mcp_actors_waited_seconds_total", "mcp_actors_answer_bytes_total"
        inbound = [each for key, each in series if key[0] == "server"]
        yield from _head(waited, "counter", "Seconds in which calls waited for a place.")
        yield self._line(waited, sum(each.waited for each in inbound), {})
        yield from _head(size, "counter", "Bytes of the answers to calls.")
        yield self._line(size, sum(each.size for each in inbound), {})
        yield from _head("mcp_actors_clients", "gauge", "Connections of clients of this process.")
        yield self._line("mcp_actors_clients", self.clients, {})
        yield from _head("mcp_actors_outbound_in_flight", "gauge", "Requests of this process in flight.")
        yield self._line("mcp_actors_outbound_in_flight", self.in_flight, {})

    def _histogram(self, name: str, series: _Series, labels: Mapping[str, str]) -> Iterator[str]:
        below = 0
        for bound, number in zip(BUCKETS, series.buckets, strict=False):
            below += number
            yield self._line(f"{name}_bucket", below, {**labels, "le": f"{bound:g}"})
        yield self._line(f"{name}_bucket", series.count, {**labels, "le": "+Inf"})
        yield self._line(f"{name}_sum", series.seconds, labels)
        yield self._line(f"{name}_count", series.count, labels)

    def _line(self, name: str, number: float, labels: Mapping[str, str]) -> str:
        labels = {**self._labels, **labels}
        text = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
        return f"{name}{{{text}}} {number!r}" if text else f"{name} {number!r}"


class _Series:
    """The calls that have the same labels."""

    __slots__ = ("buckets", "count", "seconds", "size", "waited")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.count = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.size = 0

    def add(self, seconds: float, waited: float = 0.0, size: int = 0) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.count += 1
        self.seconds += seconds
        self.waited += waited
        self.size += size


class _Timed(Observation):
    __slots__ = ("_metrics", "_request")

    def __init__(self, metrics: Metrics, request: ObservedRequest) -> None:
        self._metrics = metrics
        self._request = request

    def ended(self, ending: CallEnding) -> None:
        self._metrics.count("server", self._request, ending)


class _OutboundTimed(OutboundObservation):
    __slots__ = ("_metrics", "_request")

    def __init__(self, metrics: Metrics, request: ObservedRequest) -> None:
        super().__init__()
        self._metrics = metrics
        self._request = request

    def ended(self, ending: CallEnding) -> None:
        self._metrics.left()
        self._metrics.count("client", self._request, ending)


def _labels_of(key: Key) -> dict[str, str]:
    _, method, target, ending, code = key
    return {
        "mcp_method_name": method,
        "target": target or "",
        "ending": ending,
        "code": "" if code is None else str(code),
    }


def _place(series: tuple[Key, _Series]) -> tuple[str, ...]:
    side, method, target, ending, code = series[0]
    return side, method, target or "", ending, "" if code is None else str(code)


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _escaped(value: str) -> str:
    return shown(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Several loops, in threads of their own, may share one object. Without the interpreter's lock some of their calls would
# not be counted, and those in flight would never be none again.
_counting = threading.Lock()


def _forget_after_fork() -> None:
    # A thread of the parent may have held it.
    global _counting
    _counting = threading.Lock()


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
