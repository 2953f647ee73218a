"""Progress of calls: what their functions report, and beats, which the engine reports while they say nothing.

Many clients give up a request after a minute of silence, and start that clock anew with every report of progress. A
beat is such a report: it tells the client that the server is alive and has the call, not that the call gets on.

MCP 2026-07-28, Progress: ``progress`` increases with each report. So a beat is larger than the last report by as
little as a number can be, and a report of the function that is not larger than the beat before it is raised in the
same way.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import trio

from mcp_actors._wire.codec import RequestId, encode_notification
from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.task_kinds import BEATS

__all__ = ["Beats", "ProgressReports"]

METHOD = "notifications/progress"
# The value of a beat before any report: above 0, and below every first report that means anything.
FIRST = 1e-9
# Beats that are sent before other tasks run: about a millisecond's worth.
BEATS_AT_ONCE = 64


class ReportedCall(Protocol):
    """A call that was made with a progress token, seen from its reports."""

    outlet: Outlet
    started: float
    state: str

    @property
    def id(self) -> RequestId: ...

    async def notify(self, method: str, params: dict[str, Any]) -> None: ...


class ProgressReports:
    """The reports of one call; made by `Beats.watch`."""

    __slots__ = ("_beats", "_call", "_last_value", "_reported", "_sending", "_token", "_total", "due")

    def __init__(self, beats: Beats, call: ReportedCall, token: RequestId) -> None:
        self._beats = beats
        self._call = call
        self._token = token
        self._reported = -math.inf
        # The last value that the client was sent, and the total that was sent with it.
        self._last_value: float | None = None
        self._total: float | None = None
        self._sending = 0
        self.due = math.inf
        """The time of the next beat."""

    def __repr__(self) -> str:
        return f"<ProgressReports of {self._call!r}, last value {self._last_value!r}>"

    @property
    def last(self) -> tuple[float, float | None] | None:
        """The progress and the total of the last report of the call's function, ``None`` before the first."""
        return None if self._reported == -math.inf else (self._reported, self._total)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Sends a report of the call's function, unless ``progress`` is not greater than in its last one.

        Raises what the call's `notify` raises.
        """
        if progress <= self._reported:
            return
        self._reported = progress
        value = progress if self._last_value is None or progress > self._last_value else self._next_value()
        if value is None:
            return
        self._last_value, self._total = value, total
        params: dict[str, Any] = {"progressToken": self._token, "progress": value}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self._beats.postpone(self)
        self._sending += 1
        try:
            await self._call.notify(METHOD, params)
        finally:
            self._sending -= 1

    async def say(self, message: str | None) -> None:
        """Sends a beat with a text, on what the call waits for before its function reports anything.

        Raises what the call's `notify` raises.
        """
        value = self._next_value()
        if value is None:
            return
        self._last_value = value
        params: dict[str, Any] = {"progressToken": self._token, "progress": value}
        if message is not None:
            params["message"] = message
        self._beats.postpone(self)
        self._sending += 1
        try:
            await self._call.notify(METHOD, params)
        finally:
            self._sending -= 1

    def beat(self) -> None:
        """Sends a beat, if the client takes it now. Never waits.

        A client that does not read needs no sign of life, and one that cannot be reached gets none.
        """
        # While a report waits to be sent, a beat could overtake it and would be larger.
        if self._sending or self._call.state not in ("running", "waiting"):
            return
        value = self._next_value()
        if value is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": value}
        if self._total is not None:
            params["total"] = self._total
        frame = Frame(encode_notification(METHOD, params), self._call.id, method=METHOD)
        try:
            if self._call.outlet.send_nowait(frame):
                self._last_value = value
        except (trio.BrokenResourceError, LocalProtocolError):
            self.stop()

    def failed(self, error: BaseException) -> None:
        """A beat raised ``error``, which is logged: the call goes on without beats."""
        self.stop()

    def stop(self) -> None:
        """No more beats are sent. Idempotent."""
        self._beats.forget(self)

    def _next_value(self) -> float | None:
        """Returns the smallest number that is greater than all that were sent, or ``None`` if no number is."""
        if self._last_value is None:
            return FIRST
        try:
            value = math.nextafter(float(self._last_value), math.inf)
        except OverflowError:
            return None
        return value if self._last_value < value < math.inf else None


class Beats:
    """Sends the beats of all calls of one `serve`, in one task, which sleeps while no call has a progress token.

    Args:
        interval: Seconds of silence after which a call gets a beat; 0 switches beats off.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        # In the order in which they are due, because all of them are due after the same time.
        self._watched: dict[ProgressReports, None] = {}
        # What the task waits for while there is no call to watch, and when the first beat after that is due.
        self._has_watched: trio.Event | None = None
        self._first_due = math.inf

    def __repr__(self) -> str:
        return f"<Beats of {len(self._watched)} calls, every {self._interval:g} s>"

    def watch(self, call: ReportedCall, token: RequestId) -> ProgressReports:
        """Returns what reports the progress of ``call``, with beats until `ProgressReports.stop`."""
        reports = ProgressReports(self, call, token)
        if self._interval:
            reports.due = call.started + self._interval
            self._watched[reports] = None
            if self._has_watched is not None:
                self._first_due = reports.due
                self._has_watched.set()
                self._has_watched = None
        return reports

    def postpone(self, reports: ProgressReports) -> None:
        """The silence of a call begins anew. Does nothing for a call that gets no beats."""
        if reports in self._watched:
            del self._watched[reports]
            reports.due = trio.current_time() + self._interval
            self._watched[reports] = None

    def forget(self, reports: ProgressReports) -> None:
        """The call gets no more beats."""
        self._watched.pop(reports, None)

    async def run(self) -> None:
        """Sends beats until cancelled. Returns at once if they are switched off."""
        sent = 0
        while self._interval:
            if not self._watched:
                self._has_watched = trio.Event()
                await self._has_watched.wait()
                # Most calls have ended before this task runs: if it waited for the next one now, each would wake it.
                await trio.sleep_until(self._first_due)
                continue
            due = next(iter(self._watched)).due
            if due > trio.current_time():
                await trio.sleep_until(due)
                continue
            self._beat_first()
            sent += 1
            if sent % BEATS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _beat_first(self) -> None:
        # In a function of its own, so that the task keeps no call while it sleeps.
        reports = next(iter(self._watched))
        self.postpone(reports)
        with Containment(BEATS, reports.failed):
            reports.beat()
