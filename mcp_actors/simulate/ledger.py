"""Who asked for what, and what became of it: both sides of every call, told apart by a number in its metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors.context import Context
from mcp_actors.errors import RpcError

__all__ = ["NUMBER", "Errand", "Ledger", "name_of"]

# Travels in the `_meta` of a simulated call, so that the server's side of it can be found.
NUMBER = "mcp-actors.simulate/call"


class Errand:
    """One call, seen from both sides."""

    __slots__ = ("began", "gone", "number", "worked")

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = trio.current_time()
        # Whether nobody waits any more, and why: "answered", "cancelled" or "failed".
        self.gone: str | None = None
        # Handler seconds that are neither useful nor wasted yet, by run.
        self.worked: list[float] = []


class Ledger:
    """Counts. Times are virtual seconds."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.cancels_confirmed = 0
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.connected = 0
        self.runs = 0
        self.stopped = 0
        self.wasted_runs = 0
        self._open: dict[int, Errand] = {}
        # Sums are made once, at the end, by `math.fsum`: added up in any order they give the same.
        self._ended: list[float] = []
        self._wasted: list[float] = []
        # Handlers at work: when each began, and for whom.
        self._running: dict[int, tuple[float, Errand | None]] = {}

    def __repr__(self) -> str:
        return f"<Ledger {self.calls} calls, {len(self._open)} open>"

    # -- the client's side -------------------------------------------------------------------------------------------

    def begin(self) -> Errand:
        """A client makes a call."""
        self.calls += 1
        errand = self._open[self.calls] = Errand(self.calls)
        return errand

    def answered(self, errand: Errand) -> None:
        """It has its result."""
        self.latencies.append(trio.current_time() - errand.began)
        self._close(errand, "answered")

    def given_up(self, errand: Errand) -> None:
        """It cancelled the call."""
        self.cancelled += 1
        self._close(errand, "cancelled")

    def failed(self, errand: Errand, why: str) -> None:
        """It got an error."""
        self.errors[why] += 1
        self._close(errand, "failed")

    def _close(self, errand: Errand, why: str) -> None:
        errand.gone = why
        del self._open[errand.number]
        if why != "answered":
            self.wasted_runs += len(errand.worked)
            self._wasted += errand.worked

    # -- the server's side -------------------------------------------------------------------------------------------

    async def middleware(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Times every handler that works for a simulated call."""
        number = ctx.meta.get(NUMBER)
        if not isinstance(number, int):
            return await call_next()
        self.runs += 1
        run = self.runs
        # Nobody is found if the caller has left before its call arrived.
        errand = self._open.get(number)
        began = trio.current_time()
        self._running[run] = began, errand
        try:
            return await call_next()
        except trio.Cancelled:
            self.stopped += 1
            if errand is not None and errand.gone == "cancelled":
                self.cancels_confirmed += 1
            raise
        finally:
            del self._running[run]
            self._worked(errand, trio.current_time() - began)

    def _worked(self, errand: Errand | None, seconds: float) -> None:
        self._ended.append(seconds)
        if errand is None or errand.gone is not None:
            self.wasted_runs += 1
            self._wasted.append(seconds)
        else:
            errand.worked.append(seconds)

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """Calls in flight."""
        return len(self._open)

    def times(self) -> tuple[list[float], list[float], int]:
        """Handler seconds, those for nobody, and runs for nobody; handlers at work count with what they did so far."""
        now = trio.current_time()
        worked, wasted, runs = list(self._ended), list(self._wasted), self.wasted_runs
        for began, errand in self._running.values():
            worked.append(now - began)
            if errand is None or errand.gone is not None:
                wasted.append(now - began)
                runs += 1
        return worked, wasted, runs


def name_of(error: Exception) -> str:
    """How an error is counted."""
    name = type(error).__name__
    return f"{name} {error.code}" if type(error) is RpcError else name
