"""A telemetry that writes down what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
)

Entry = tuple[str, ObservedRequest, CallEnding]


class Recorder(Telemetry):
    """``calls`` has a line for each call that has ended, of both directions."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        self.begun = 0
        self.calls: list[Entry] = []
        self.entered = 0
        self.sessions: list[str | ObservedSession] = []
        self.servers: list[Callable[[], Any]] = []
        self._meta = meta

    def inbound(self, request: ObservedRequest) -> Observation:
        self.begun += 1
        return Seen(self, request)

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        return SeenOutbound(self, request, self._meta)

    def session_began(self, side: str) -> None:
        self.sessions.append(side)

    def session_ended(self, session: ObservedSession) -> None:
        self.sessions.append(session)

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        self.servers.append(statistics)
        return lambda: self.servers.remove(statistics)

    def of(self, direction: str, method: str) -> list[tuple[ObservedRequest, CallEnding]]:
        return [
            (request, ending)
            for way, request, ending in self.calls
            if (way, request.method) == (direction, method)
        ]


class Seen(Observation):
    def __init__(self, recorder: Recorder, request: ObservedRequest) -> None:
        self.recorder = recorder
        self.request = request
        self.inside = 0

    def enter(self) -> None:
        self.inside += 1
        self.recorder.entered += 1

    def leave(self) -> None:
        self.inside -= 1
        self.recorder.entered -= 1

    def ended(self, ending: CallEnding) -> None:
        assert self.inside == 0
        self.recorder.calls.append(("in", self.request, ending))

    def log_members(self) -> Mapping[str, Any]:
        return {"trace_id": "a-trace"}


class SeenOutbound(OutboundObservation):
    def __init__(self, recorder: Recorder, request: ObservedRequest, meta: Mapping[str, Any] | None) -> None:
        super().__init__(meta)
        self.recorder = recorder
        self.request = request

    def ended(self, ending: CallEnding) -> None:
        self.recorder.calls.append(("out", self.request, ending))
