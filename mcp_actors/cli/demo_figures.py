"""The figures of the demo: one `Tally` for each binding and era. Its memory does not grow with the number of calls."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from mcp_actors.simulate.percentiles import percentile_of_counts

__all__ = ["CallLatencies", "Failures", "Tally"]

# Buckets from one value to twice the value: a percentile is right to about 4 %.
_PER_DOUBLING = 16
# Seconds; everything below is in the first bucket.
_FLOOR = 1e-6
# The last bucket begins beyond an hour.
_BUCKETS = 32 * _PER_DOUBLING


@attrs.define
class CallLatencies:
    """A histogram of seconds with buckets of equal ratio."""

    counts: list[int] = attrs.field(factory=lambda: [0] * _BUCKETS)

    def add(self, seconds: float) -> None:
        """Counts a value."""
        index = int(math.log2(max(seconds, _FLOOR) / _FLOOR) * _PER_DOUBLING)
        self.counts[min(index, _BUCKETS - 1)] += 1

    def merge(self, other: CallLatencies) -> None:
        """Adds what another histogram has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    def percentile(self, percent: float) -> float | None:
        """Returns the seconds that ``percent`` of 100 values do not exceed, or ``None`` if nothing was counted."""
        middles = (_FLOOR * math.exp2((index + 0.5) / _PER_DOUBLING) for index in range(_BUCKETS))
        counts = zip(middles, self.counts, strict=True)
        return percentile_of_counts(counts, sum(self.counts), percent)


@attrs.define
class Failures:
    """The errors of one row: how many there were, and the first few of them in words."""

    count: int = 0
    examples: list[str] = attrs.field(factory=list)

    def add(self, what: str) -> None:
        """Counts an error and keeps its text if it is one of the first three."""
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(what)


@attrs.define
class Tally:
    """One row of the table."""

    binding: str
    era: str
    planned: int
    """Sessions to open."""
    calls_at_once: int
    """Calls that each session keeps in flight."""
    opened: int = 0
    live: int = 0
    calls: int = 0
    """Calls that came to their end: answered, or cancelled on purpose."""
    reports: int = 0
    """Progress reports that arrived."""
    cancelled: int = 0
    """Calls that were cancelled in flight."""
    confirmed: int = 0
    """Of these, the handlers at the server that saw ``trio.Cancelled``, as counted by the server."""
    failures: Failures = attrs.field(factory=Failures)
    latencies: CallLatencies = attrs.field(factory=CallLatencies)
    """Of the calls that were answered."""

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Returns the sum of all rows."""
        total = cls("all", "", 0, 1)
        for tally in tallies:
            for name in ("planned", "opened", "live", "calls", "reports", "cancelled", "confirmed"):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
            total.failures.count += tally.failures.count
            total.latencies.merge(tally.latencies)
        return total
