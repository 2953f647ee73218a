"""Latencies as counts in buckets, so that a load of any length takes the same memory."""

from __future__ import annotations

from hdrh.histogram import HdrHistogram

from mcp_actors.bench.histograms import DIGITS, HIGHEST_NS

__all__ = ["LatencyCounts"]

# So many buckets from one power of two to the next: a value is right to less than one percent.
_BITS = 7
_EXACT = 1 << (_BITS + 1)  # nanoseconds below which each has a bucket of its own


class LatencyCounts:
    """Counts of seconds, in buckets that are as wide as the values in them are large.

    ``total`` is how many values there are, ``highest`` the longest, ``sum`` all of them together, in seconds.
    """

    __slots__ = ("_counts", "highest", "sum", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0
        self.highest = 0.0
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        value = int(seconds * 1e9)
        if value >= _EXACT:
            shift = value.bit_length() - _BITS - 1
            value = (shift << _BITS) + (value >> shift)
        counts = self._counts
        counts[value] = counts.get(value, 0) + 1
        self.total += 1
        self.sum += seconds
        if seconds > self.highest:
            self.highest = seconds

    def merge(self, other: LatencyCounts) -> None:
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += other.total
        self.sum += other.sum
        self.highest = max(self.highest, other.highest)

    @property
    def mean(self) -> float:
        return self.sum / self.total if self.total else 0.0

    def percentile(self, share: float) -> float:
        """Returns the seconds within which that share of the values lies; the longest for all of them."""
        wanted = share * self.total
        passed = 0
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= wanted:
                return min(_middle(bucket) / 1e9, self.highest)
        return self.highest

    def encoded(self) -> str:
        """Returns the distribution as an HdrHistogram in nanoseconds, compressed, in base 64."""
        histogram = HdrHistogram(1, HIGHEST_NS, DIGITS)
        for bucket, count in self._counts.items():
            histogram.record_value(max(1, min(HIGHEST_NS, _middle(bucket))), count)
        text: bytes = histogram.encode()
        return text.decode()


def _middle(bucket: int) -> int:
    """Returns the nanoseconds in the middle of a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    return ((bucket - (shift << _BITS)) << shift) + (1 << shift >> 1)
