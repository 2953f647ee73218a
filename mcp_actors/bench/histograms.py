"""Distributions of latencies as HdrHistograms, in nanoseconds."""

from __future__ import annotations

from hdrh.histogram import HdrHistogram

from mcp_actors.bench.results import Document, Key

__all__ = ["encoded", "percentiles"]

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
