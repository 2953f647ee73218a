"""Records both sides of every simulated call, which a number in its metadata identifies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors.context import Context
from mcp_actors.errors import RpcError

__all__ = ["NUMBER", "CallLedger", "HandlerTimes", "SimulatedCall", "name_of"]

# The key in the `_meta` of a simulated call that identifies it on the side of the server.
NUMBER = "mcp-actors.simulate/call"


class SimulatedCall:
    """One call, seen from both sides."""

    __slots__ = ("began", "number", "outcome", "worked")

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = trio.current_time()
        # How the call ended for the client: "answered", "cancelled" or "failed"; ``None`` while the client waits.
        self.outcome: str | None = None
        # The seconds of each run of its handler, of which is not known yet whether they were useful or wasted.
        self.worked: list[float] = []


class CallLedger:
    """Counts the calls of all clients. Times are virtual seconds."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.connected = 0
        self.handlers = HandlerTimes()
        self._open: dict[int, SimulatedCall] = {}

    def __repr__(self) -> str:
        return f"<CallLedger {self.calls} calls, {len(self._open)} open>"

    def begin(self) -> SimulatedCall:
        """Records a new call of a client."""
        self.calls += 1
        call = self._open[self.calls] = SimulatedCall(self.calls)
        return call

    def answered(self, call: SimulatedCall) -> None:
        """Records that a call got its result."""
        self.latencies.append(trio.current_time() - call.began)
        self._close(call, "answered")

    def given_up(self, call: SimulatedCall) -> None:
        """Records that the client cancelled a call."""
        self.cancelled += 1
        self._close(call, "cancelled")

    def failed(self, call: SimulatedCall, why: str) -> None:
        """Records that a call got an error."""
        self.errors[why] += 1
        self._close(call, "failed")

    def _close(self, call: SimulatedCall, why: str) -> None:
        call.outcome = why
        del self._open[call.number]
        if why != "answered":
            self.handlers.waste(call)

    @property
    def unfinished(self) -> int:
        """Calls in flight."""
        return len(self._open)

    async def middleware(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Times every handler that works for a simulated call."""
        number = ctx.meta.get(NUMBER)
        if not isinstance(number, int):
            return await call_next()
        # A call that ended before it arrived at the server is not found.
        return await self.handlers.measure(self._open.get(number), call_next)


class HandlerTimes:
    """Counts the runs of handlers and their virtual seconds, useful and wasted."""

    def __init__(self) -> None:
        self.runs = 0
        self.stopped = 0
        self.cancels_confirmed = 0
        self.wasted_runs = 0
        # Summed up once at the end by `math.fsum`, whose result does not depend on the order.
        self._ended: list[float] = []
        self._wasted: list[float] = []
        # For each running handler when it began, and for which call.
        self._running: dict[int, tuple[float, SimulatedCall | None]] = {}

    async def measure(self, call: SimulatedCall | None, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits ``handler()`` and records how long it took, and whether it was cancelled."""
        self.runs += 1
        run = self.runs
        began = trio.current_time()
        self._running[run] = began, call
        try:
            return await handler()
        except trio.Cancelled:
            self.stopped += 1
            if call is not None and call.outcome == "cancelled":
                self.cancels_confirmed += 1
            raise
        finally:
            del self._running[run]
            self._add(call, trio.current_time() - began)

    def waste(self, call: SimulatedCall) -> None:
        """Counts the runs for a call as wasted, because its answer reached nobody."""
        self.wasted_runs += len(call.worked)
        self._wasted += call.worked

    def _add(self, call: SimulatedCall | None, seconds: float) -> None:
        self._ended.append(seconds)
        if call is None or call.outcome is not None:
            self.wasted_runs += 1
            self._wasted.append(seconds)
        else:
            call.worked.append(seconds)

    def times(self) -> tuple[list[float], list[float], int]:
        """Returns the seconds of all runs, those of wasted runs, and the number of wasted runs.

        Handlers that are running count with their time so far.
        """
        now = trio.current_time()
        worked, wasted, runs = list(self._ended), list(self._wasted), self.wasted_runs
        for began, call in self._running.values():
            worked.append(now - began)
            if call is None or call.outcome is not None:
                wasted.append(now - began)
                runs += 1
        return worked, wasted, runs


def name_of(error: Exception) -> str:
    """Returns the name under which an error is counted."""
    name = type(error).__name__
    return f"{name} {error.code}" if type(error) is RpcError else name
