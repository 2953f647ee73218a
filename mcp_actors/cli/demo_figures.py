"""What the demo counts: one `Tally` for each binding and era. Its memory does not grow with the number of calls."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

__all__ = ["CallLatencies", "Tally"]

_PER_DOUBLING = 16  # buckets: a percentile is right to about 4 %
_FLOOR = 1e-6  # seconds; everything below is in the first bucket
_BUCKETS = 32 * _PER_DOUBLING  # up to more than an hour


@attrs.define
class CallLatencies:
    """A histogram of seconds with buckets of equal ratio."""

    counts: list[int] = attrs.field(factory=lambda: [0] * _BUCKETS)

    def add(self, seconds: float) -> None:
        index = int(math.log2(max(seconds, _FLOOR) / _FLOOR) * _PER_DOUBLING)
        self.counts[min(index, _BUCKETS - 1)] += 1

    def merge(self, other: CallLatencies) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    def percentile(self, percent: float) -> float | None:
        """The value that ``percent`` of 100 stay below, in seconds; ``None`` when nothing was counted."""
        wanted = sum(self.counts) * percent / 100
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return _FLOOR * math.exp2((index + 0.5) / _PER_DOUBLING)
        return None


@attrs.define
class Tally:
    """One row of the table."""

    binding: str
    era: str
    planned: int
    """Sessions to open."""
    lanes: int
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
    errors: int = 0
    examples: list[str] = attrs.field(factory=list)
    """The first few errors, in words."""
    latencies: CallLatencies = attrs.field(factory=CallLatencies)
    """Of the calls that were answered."""

    def fail(self, what: str) -> None:
        self.errors += 1
        if len(self.examples) < 3:
            self.examples.append(what)

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """The sum of all rows."""
        total = cls("all", "", 0, 1)
        for tally in tallies:
            for name in ("planned", "opened", "live", "calls", "reports", "cancelled", "confirmed", "errors"):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
            total.latencies.merge(tally.latencies)
        return total
