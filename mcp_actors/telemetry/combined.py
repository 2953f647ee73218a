"""Several telemetries as one, the access log, and log lines of a program with the call that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from mcp_actors.abc.telemetry import (
    CallEnding,
    Observation,
    ObservedRequest,
    ObservedSession,
    OutboundObservation,
    Telemetry,
    guarded,
    log_members,
)
from mcp_actors.supervision.access_log import AccessEntry, access_log

__all__ = ["AccessLog", "Together", "add_call"]


class Together(Telemetry):
    """Passes everything on to several telemetries, such as traces for one system and metrics for another.

    Args:
        telemetries: The telemetries. Where two add the same member to ``_meta``, the first one's counts.

    Raises:
        TypeError: One of them is not a `Telemetry`.
    """

    def __init__(self, *telemetries: Telemetry) -> None:
        for each in telemetries:
            if not isinstance(each, Telemetry):
                raise TypeError(f"Together takes objects of mcp_actors.telemetry, not {each!r:.80}")
        self.telemetries = telemetries
        """As they were given."""

    def __repr__(self) -> str:
        return f"<Together {', '.join(map(repr, self.telemetries))}>"

    def inbound(self, request: ObservedRequest) -> Observation | None:
        found = [guarded(each.inbound, request) for each in self.telemetries]
        observations = [each for each in found if each is not None]
        return _Observations(observations) if len(observations) > 1 else next(iter(observations), None)

    def outbound(self, request: ObservedRequest) -> OutboundObservation | None:
        found = [guarded(each.outbound, request) for each in self.telemetries]
        observations = [each for each in found if each is not None]
        return (
            _OutboundObservations(observations) if len(observations) > 1 else next(iter(observations), None)
        )

    def session_began(self, side: Literal["server", "client"]) -> None:
        for each in self.telemetries:
            guarded(each.session_began, side)

    def session_ended(self, session: ObservedSession) -> None:
        for each in self.telemetries:
            guarded(each.session_ended, session)

    def served(self, statistics: Callable[[], Any]) -> Callable[[], None]:
        ends = [guarded(each.served, statistics) for each in self.telemetries]

        def end() -> None:
            for each in ends:
                if each is not None:
                    guarded(each)

        return end


class _Observations(Observation):
    __slots__ = ("_observations",)

    def __init__(self, observations: list[Observation]) -> None:
        self._observations = observations

    def enter(self) -> None:
        for each in self._observations:
            guarded(each.enter)

    def leave(self) -> None:
        for each in reversed(self._observations):
            guarded(each.leave)

    def ended(self, ending: CallEnding) -> None:
        for each in self._observations:
            guarded(each.ended, ending)

    def log_members(self) -> Mapping[str, Any]:
        members: dict[str, Any] = {}
        for each in reversed(self._observations):
            # This runs while a line is written, so its failure cannot be logged.
            with suppress(Exception):
                members.update(each.log_members())
        return members

    def carried(self) -> Sequence[tuple[str, Any]]:
        return [place for each in self._observations for place in guarded(each.carried) or ()]


class _OutboundObservations(OutboundObservation):
    __slots__ = ("_observations",)

    def __init__(self, observations: list[OutboundObservation]) -> None:
        meta: dict[str, Any] = {}
        for each in reversed(observations):
            meta.update(each.meta or {})
        super().__init__(meta)
        self._observations = observations

    def ended(self, ending: CallEnding) -> None:
        for each in self._observations:
            guarded(each.ended, ending)


class AccessLog(Telemetry):
    """Writes a line for each call that has ended, with the HTTP request that brought it; see `mcp_actors.supervision`.

    It is what ``mcp-actors serve --access-log`` gives to a server, and means something in a process whose access log is
    on. Tasks have the line of the call that has created them.
    """

    def __repr__(self) -> str:
        return "<AccessLog>"

    def inbound(self, request: ObservedRequest) -> Observation | None:
        """Begins the line of a call."""
        return None if request.is_task else _LoggedCall(request)


class _LoggedCall(Observation):
    __slots__ = ("_entry", "_request")

    def __init__(self, request: ObservedRequest) -> None:
        entry: AccessEntry | None = getattr(request.http, "entry", None)
        self._request = request
        self._entry = entry if entry is not None and entry.begin_call() else None

    def ended(self, ending: CallEnding) -> None:
        request, principal = self._request, self._request.principal
        call: dict[str, Any] = {
            "method": request.method,
            "target": request.target,
            "ending": ending.kind,
            "code": ending.code,
            "session": request.session,
            "principal": None if principal is None else principal.subject,
        }
        if self._entry is not None:
            self._entry.end_call(call)
        else:
            alone = {"peer": request.peer, "seconds": round(ending.seconds, 6), "bytes": ending.size}
            access_log.write({**alone, **call})


def add_call(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the session, the principal and the trace of the call in whose function a line is written.

    A processor of structlog, for the lines of a program's own: ``structlog.configure(processors=[add_call, …])``. The
    engine's own lines have them without it. What a line has already is left as it is.
    """
    for name, value in log_members().items():
        line.setdefault(name, value)
    return line
