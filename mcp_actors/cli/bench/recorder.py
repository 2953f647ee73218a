"""The figures of a load while it runs. Their memory grows with the number of slices, not with that of the calls."""

from __future__ import annotations

import attrs
from hdrh.histogram import HdrHistogram

from mcp_actors.cli.bench.results import Document, Key

__all__ = [
    "CallFigures",
    "CancelFigures",
    "FailureCount",
    "LatencyCounts",
    "LoadRecorder",
    "Slice",
    "encoded",
    "percentiles",
]


# -- Distributions of latencies as HdrHistograms, in nanoseconds -----------------------------------------

# Nanoseconds, to two digits that mean something: what a figure of a shared machine deserves.
HIGHEST_NS, DIGITS = 600_000_000_000, 2
PERCENTILES = (0.0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


def encoded(took: list[float]) -> str:
    """The distribution as an HdrHistogram in nanoseconds, compressed, in base 64."""
    histogram = HdrHistogram(1, HIGHEST_NS, DIGITS)
    for seconds in took:
        histogram.record_value(max(1, min(HIGHEST_NS, round(seconds * 1e9))))
    text: bytes = histogram.encode()
    return text.decode()


def percentiles(document: Document, key: Key) -> list[tuple[float, float]]:
    """(percentile, microseconds) of all rounds of a place together; the last is the longest."""
    merged: HdrHistogram | None = None
    for row in document.rows:
        if row.latency and row.key == key:
            histogram = HdrHistogram.decode(row.latency)
            if merged is None:
                merged = histogram
            else:
                merged.add(histogram)
    if merged is None or not merged.total_count:
        return []
    total = merged.total_count
    told = [each for each in PERCENTILES if each == 0 or total * (100 - each) >= 100]
    return [(each, merged.get_value_at_percentile(each) / 1000) for each in told]


# -- Latencies as counts in buckets, so that a load of any length takes the same memory ------------------

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


# ----------------------------------------------------------------------------------------------------

# A server may make up ever new errors.
_MOST_KINDS = 50
_OTHER = "other"


@attrs.define
class FailureCount:
    """One way in which calls failed: how often, and what was said the first time."""

    count: int = 0
    example: str = ""


@attrs.define
class CallFigures:
    """The figures of one kind of call."""

    latencies: LatencyCounts = attrs.field(factory=LatencyCounts)
    failures: int = 0


@attrs.define
class CancelFigures:
    """Calls that were cancelled in flight: how many, and when the server answered or ended them all the same."""

    sent: int = 0
    answered: LatencyCounts = attrs.field(factory=LatencyCounts)
    ended: LatencyCounts = attrs.field(factory=LatencyCounts)


@attrs.define
class Slice:
    """A part of a stage: the sample of a result. Times are of the clock of the driver."""

    began: float
    ended: float = 0.0
    latencies: LatencyCounts = attrs.field(factory=LatencyCounts)
    good: int = 0
    failures: int = 0
    processor: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.ended - self.began, 1e-9)


class LoadRecorder:
    """Takes what happened to each call."""

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        self.calls = [CallFigures() for _ in labels]
        self.failures: dict[str, FailureCount] = {}
        self.cancelled = CancelFigures()
        self.late = LatencyCounts()
        self.slices: list[Slice] = []
        self.total = LatencyCounts()
        self.unsent = 0
        # Answers that came after the last slice had ended belong to its latencies, not to its throughput.
        self.open = True

    @property
    def good(self) -> int:
        return self.total.total

    @property
    def failed(self) -> int:
        return sum(each.count for each in self.failures.values())

    def begin(self, now: float, processor: float) -> None:
        """Begins a slice, and ends the one before."""
        self.end(now, processor)
        self.slices.append(Slice(now, processor=processor))
        self.open = True

    def end(self, now: float, processor: float) -> None:
        if self.slices and self.open:
            last = self.slices[-1]
            last.ended, last.processor = now, processor - last.processor
        self.open = False

    def answered(self, label: int, seconds: float) -> None:
        here = self.slices[-1]
        here.latencies.add(seconds)
        if self.open:
            here.good += 1
        self.total.add(seconds)
        if len(self.calls) > 1:
            self.calls[label].latencies.add(seconds)

    def failed_call(self, label: int, kind: str, text: str) -> None:
        if kind not in self.failures and len(self.failures) >= _MOST_KINDS:
            kind = _OTHER
        found = self.failures.setdefault(kind, FailureCount(example=text))
        found.count += 1
        if self.slices:
            self.slices[-1].failures += 1
        if 0 <= label < len(self.calls):
            self.calls[label].failures += 1

    def reason(self) -> str:
        """Returns why all calls failed, in one line; nothing if none was made."""
        if not self.failures:
            return ""
        kind, found = max(self.failures.items(), key=lambda each: each[1].count)
        return f"every call failed ({kind}, {found.count} of {self.failed}): {found.example}"
