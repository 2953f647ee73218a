"""Histograms of seconds, and quantiles of what was measured: the only ones of this project.

A `Histogram` has buckets that are as wide as the values in them are large, so that its memory does not grow with the
number of values, and a quantile is wrong by a known share at most. `quantile_of` is for values that are all kept, and
`quantile_of_buckets` for buckets with given bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

__all__ = ["Histogram", "quantile_of", "quantile_of_buckets"]

_NANOSECONDS = 1e9


def _nearest_rank(share: float, count: int) -> int:
    """Returns the position, from 1, of the smallest of ``count`` values that this share of them does not exceed."""
    return max(1, math.ceil(share * count))


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile of sorted values, of which there is at least one: always a value that was measured."""
    return ordered[_nearest_rank(share, len(ordered)) - 1]


def quantile_of_buckets(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Returns a quantile of values that were counted in buckets, as ``histogram_quantile`` of Prometheus does.

    The values of a bucket count as spread evenly over it, and those above all bounds as the last bound.

    Args:
        bounds: The upper bounds of the buckets, ascending; the first bucket begins at 0.
        counts: The number of values in each, and above all of them.
        share: Such as 0.99.

    Returns:
        ``None`` without any value.
    """
    wanted, passed, begin = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if count and passed + count >= wanted:
            return begin + (bound - begin) * (wanted - passed) / count
        passed, begin = passed + count, bound
    return bounds[-1]


class Histogram:
    """Counts of seconds in buckets.

    Args:
        bits: From one power of two to the next there are so many powers of two of buckets: a quantile is above the
            truth by one part in ``2 ** bits`` at most, and never below it.
    """

    __slots__ = ("_bits", "_counts", "count", "largest", "total")

    def __init__(self, bits: int = 7) -> None:
        self.count = 0
        """Values that were added."""
        self.total = 0.0
        """Seconds of all of them together."""
        self.largest = 0.0
        """Seconds of the longest."""
        self._bits = bits
        self._counts: dict[int, int] = {}

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.count} p50={self.quantile(0.5):.3g} p99={self.quantile(0.99):.3g}>"
        )

    @property
    def mean(self) -> float:
        """Seconds; 0 without any value."""
        return self.total / self.count if self.count else 0.0

    def add(self, seconds: float) -> None:
        """Adds a value."""
        value, bits = int(seconds * _NANOSECONDS), self._bits
        if value >> bits + 1:
            shift = value.bit_length() - bits - 1
            value = (shift << bits) + (value >> shift)
        self._counts[value] = self._counts.get(value, 0) + 1
        self.count += 1
        self.total += seconds
        if seconds > self.largest:
            self.largest = seconds

    def merge(self, other: Histogram) -> None:
        """Adds what another histogram with as many buckets has counted."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def quantile(self, share: float) -> float:
        """Returns the seconds within which that share of the values lies; 0 without any.

        Args:
            share: Such as 0.99; 1 is the longest value.
        """
        wanted, passed = _nearest_rank(share, self.count), 0
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= wanted:
                return min(self._end(bucket) / _NANOSECONDS, self.largest)
        return self.largest

    def values(self) -> Iterator[tuple[float, int]]:
        """Yields the seconds in the middle of each bucket in use, and how many values it has."""
        for bucket, count in self._counts.items():
            yield (self._begin(bucket) + self._end(bucket)) / 2 / _NANOSECONDS, count

    def _begin(self, bucket: int) -> int:
        """The nanoseconds at which a bucket begins."""
        if not bucket >> self._bits + 1:
            return bucket
        shift = (bucket >> self._bits) - 1
        return (bucket - (shift << self._bits)) << shift

    def _end(self, bucket: int) -> int:
        return self._begin(bucket + 1)
