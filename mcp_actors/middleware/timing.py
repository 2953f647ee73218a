"""The times that calls take, by method and tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol

import trio

from mcp_actors.supervision.histogram import Histogram
from mcp_actors.types import CallToolResult

__all__ = ["Durations", "Timing"]


# A quantile of a row is at most a quarter above the truth, for some 110 numbers at most.
_BITS = 2


class Durations(Histogram):
    """A histogram of the seconds that calls took."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        super().__init__(_BITS)
        self.failed = 0
        """Calls that have raised, or returned the failure of a tool, among those that are counted."""

    def add(self, seconds: float, failed: bool = False) -> None:
        """Adds a call."""
        super().add(seconds)
        self.failed += failed


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
