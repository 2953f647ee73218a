"""A histogram of times."""

from __future__ import annotations

import math

__all__ = ["Durations"]

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
