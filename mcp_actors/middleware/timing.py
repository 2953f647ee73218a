"""The times that calls take, by method and tool."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol

import trio

from mcp_actors.types import CallToolResult

__all__ = ["Durations", "Timing"]


# -- A histogram of times --------------------------------------------------------------------------------

# Powers of two between which a time is sorted: from 15 microseconds to an hour. Each has four buckets, so that a
# quantile is at most a fifth above the time that it stands for.
_LOWEST, _HIGHEST = -15, 12
_PARTS = 4


class Durations:
    """A histogram of seconds, of some 110 buckets, each a fifth wider than the one below it."""

    __slots__ = ("_buckets", "count", "failed", "largest", "total")

    def __init__(self) -> None:
        self.count = 0
        """Calls that have ended."""
        self.failed = 0
        """Calls that have raised, or returned the failure of a tool, among them."""
        self.total = 0.0
        """Seconds that all of them took."""
        self.largest = 0.0
        """Seconds that the longest one took."""
        self._buckets = [0] * ((_HIGHEST - _LOWEST + 1) * _PARTS)

    def __repr__(self) -> str:
        return f"<Durations {self.count} p50={self.quantile(0.5):.3g} p99={self.quantile(0.99):.3g}>"

    def add(self, seconds: float, failed: bool = False) -> None:
        """Adds a call."""
        self.count += 1
        self.failed += failed
        self.total += seconds
        if seconds > self.largest:
            self.largest = seconds
        fraction, power = math.frexp(seconds)
        if power < _LOWEST:
            self._buckets[0] += 1
        elif power > _HIGHEST:
            self._buckets[-1] += 1
        else:
            self._buckets[(power - _LOWEST) * _PARTS + int((fraction - 0.5) * 2 * _PARTS)] += 1

    def quantile(self, share: float) -> float:
        """Returns the seconds within which that share of the calls ended, at most a fifth too much; 0 without any.

        Args:
            share: Such as 0.99.
        """
        wanted = share * self.count
        seen = 0
        for number, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                power, part = divmod(number, _PARTS)
                above = math.ldexp(0.5 + (part + 1) / (2 * _PARTS), power + _LOWEST)
                return min(above, self.largest)
        return 0.0


# ----------------------------------------------------------------------------------------------------

# Methods and tools that have a row of their own; what comes after them is counted by its method, or as one.
MAX_ROWS = 1000
_OTHERS = "other"
# The methods that name something of which there are as many as the server has registered.
_NAMED = frozenset({"tools/call", "prompts/get"})


class _Called(Protocol):
    """A call on either side: a `Context`, or a `ClientCall`."""

    @property
    def method(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


class Timing:
    """Middleware of a server or a client: keeps a histogram of seconds for each method, and each tool and prompt.

    ``timing.rows["tools/call", "search"].quantile(0.99)`` is the time within which 99 of 100 calls ended, and
    ``print(timing)`` a table of all. A name has a row once a call of it was answered, so that what clients make up has
    none; there are at most 1,000 rows. It measures what is inside of it: added first, all other middleware too.
    """

    for_side: ClassVar = "both"

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Durations] = {}
        """The histograms by method and by the name of the tool or prompt, empty for other methods."""

    def __repr__(self) -> str:
        return f"<Timing {len(self.rows)} rows>"

    def __str__(self) -> str:
        lines = [f"{'method':<28} {'name':<24} {'calls':>8} {'failed':>7} {'p50':>9} {'p99':>9} {'most':>9}"]
        for (method, name), row in sorted(self.rows.items()):
            times = "".join(
                f" {seconds * 1000:>6.1f} ms"
                for seconds in (row.quantile(0.5), row.quantile(0.99), row.largest)
            )
            lines.append(f"{method[:28]:<28} {name[:24]:<24} {row.count:>8} {row.failed:>7}{times}")
        return "\n".join(lines)

    async def __call__(self, call: _Called, call_next: Callable[[], Awaitable[Any]], /) -> Any:
        """Measures a call."""
        began = trio.current_time()
        failed = answered = False
        try:
            result = await call_next()
            answered = True
            failed = isinstance(result, CallToolResult) and bool(result.is_error)
            return result
        finally:
            seconds = trio.current_time() - began
            self._row(call, answered).add(seconds, failed or not answered)

    def _row(self, call: _Called, answered: bool) -> Durations:
        method = call.method
        name = call.params.get("name") if method in _NAMED else ""
        key = (method, name if isinstance(name, str) else "")
        row = self.rows.get(key)
        if row is None:
            if not answered:
                key = (method, "")
            if len(self.rows) >= MAX_ROWS and key not in self.rows:
                key = (_OTHERS, "")
            row = self.rows.setdefault(key, Durations())
        return row
