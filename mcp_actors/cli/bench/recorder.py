"""The figures of a load while it runs. Their memory grows with the number of slices, not with that of the calls."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
from hdrh.histogram import HdrHistogram

from mcp_actors.cli.bench.results import Document, Key
from mcp_actors.supervision.histogram import Histogram

__all__ = [
    "CallFigures",
    "CancelFigures",
    "FailureCount",
    "LoadRecorder",
    "Slice",
    "distribution",
    "encoded",
    "percentiles",
]


# -- Distributions of latencies as HdrHistograms, in nanoseconds -----------------------------------------

# Nanoseconds, to two significant digits: a shared machine deserves no more.
HIGHEST_NS, DIGITS = 600_000_000_000, 2
PERCENTILES = (0.0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


def encoded(took: Iterable[tuple[float, int]]) -> str:
    """Returns seconds, each with how often they were measured, as an HdrHistogram, compressed, in base 64."""
    histogram = HdrHistogram(1, HIGHEST_NS, DIGITS)
    for seconds, count in took:
        histogram.record_value(max(1, min(HIGHEST_NS, round(seconds * 1e9))), count)
    text: bytes = histogram.encode()
    return text.decode()


def _merged(document: Document, key: Key) -> HdrHistogram | None:
    """Returns the latencies of all rounds of a place together, ``None`` if nothing was answered."""
    merged: HdrHistogram | None = None
    for row in document.rows:
        if row.latency and row.key == key:
            histogram = HdrHistogram.decode(row.latency)
            if merged is None:
                merged = histogram
            else:
                merged.add(histogram)
    return merged if merged is not None and merged.total_count else None


def percentiles(document: Document, key: Key) -> list[tuple[float, float]]:
    """(percentile, microseconds) of all rounds of a place together; the last is the longest."""
    merged = _merged(document, key)
    if merged is None:
        return []
    total = merged.total_count
    shown = [each for each in PERCENTILES if each == 0 or total * (100 - each) >= 100]
    return [(each, merged.get_value_at_percentile(each) / 1000) for each in shown]


# Bars of a distribution from one power of ten to the next.
BARS_OF_A_DECADE = 10


def distribution(document: Document, key: Key) -> list[tuple[float, float, int]]:
    """Returns the latencies of all rounds of a place as bars: from and to, in milliseconds, and how many are there.

    On a logarithmic scale all are as wide, those without any call among them.
    """
    merged = _merged(document, key)
    if merged is None:
        return []
    counts: dict[int, int] = {}
    for each in merged.get_recorded_iterator():
        place = math.floor(math.log10(each.value_iterated_to / 1e6) * BARS_OF_A_DECADE)
        counts[place] = counts.get(place, 0) + each.count_added_in_this_iter_step
    return [
        (10 ** (place / BARS_OF_A_DECADE), 10 ** ((place + 1) / BARS_OF_A_DECADE), counts.get(place, 0))
        for place in range(min(counts), max(counts) + 1)
    ]


# A server may make up new errors without end.
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

    latencies: Histogram = attrs.field(factory=Histogram)
    failures: int = 0


@attrs.define
class CancelFigures:
    """Calls that were cancelled in flight: how many, and when the server answered or ended them all the same."""

    sent: int = 0
    answered: Histogram = attrs.field(factory=Histogram)
    ended: Histogram = attrs.field(factory=Histogram)


@attrs.define
class Slice:
    """A part of a stage: the sample of a result. Times are of the clock of the driver."""

    began: float
    ended: float = 0.0
    latencies: Histogram = attrs.field(factory=Histogram)
    good: int = 0
    failures: int = 0
    processor: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.ended - self.began, 1e-9)


class LoadRecorder:
    """Records what happened to each call."""

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        self.calls = [CallFigures() for _ in labels]
        self.failures: dict[str, FailureCount] = {}
        self.cancelled = CancelFigures()
        self.late = Histogram()
        self.slices: list[Slice] = []
        self.total = Histogram()
        self.unsent = 0
        self.held_up = False
        """Whether a call was sent late because the server had too many, or no session of it was left."""
        # Answers that came after the last slice had ended belong to its latencies, not to its throughput.
        self.open = True

    @property
    def good(self) -> int:
        return self.total.count

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
        """Returns why all calls failed, in one line; empty if no call was made."""
        if not self.failures:
            return ""
        kind, found = max(self.failures.items(), key=lambda each: each[1].count)
        return f"every call failed ({kind}, {found.count} of {self.failed}): {found.example}"
