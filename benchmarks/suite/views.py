"""The contents of reports: medians with intervals, ratios side by side, merged distributions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hdrh.histogram import HdrHistogram

from benchmarks.suite.model import Document, Key, Place
from benchmarks.suite.peers import FLOOR, OURS, PEERS
from benchmarks.suite.statistics import Interval, interval, median

__all__ = [
    "SHOWN",
    "Group",
    "compared_peers",
    "figure_text",
    "groups",
    "number",
    "percentiles",
    "ratio_text",
    "shown_metrics",
]

# The metrics that a reader looks at, by scenario; of others all that there are.
SHOWN = {
    "roundtrip": ("per_second", "p50_us", "p99_us", "p999_us", "cpu_us"),
    "eras": ("per_second", "p50_us", "cpu_us"),
    "client_calls": ("per_second", "each_us", "call_us"),
    "startup": ("start_ms", "start_cpu_ms", "rss_mib"),
    "many_sessions": (
        "kib_each",
        "setups_per_second",
        "setup_cpu_us",
        "churn_per_second",
        "cpu_us",
        "p99_us",
    ),
    "mixed": ("per_second", "p50_us", "p99_us", "cpu_us"),
}
PERCENTILES = (0.0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


class Group(NamedTuple):
    """All peers at one place."""

    scenario: str
    transport: str
    era: str
    at: Place
    samples: dict[str, dict[str, list[float]]]  # of each peer, of each metric


def groups(document: Document) -> list[Group]:
    """In the order in which they were measured."""
    found: dict[Key, Group] = {}
    for key, metrics in document.samples().items():
        place = key._replace(peer="")
        group = found.setdefault(place, Group(key.scenario, key.transport, key.era, key.at, {}))
        group.samples[key.peer] = metrics
    return list(found.values())


def shown_metrics(scenario: str, all_of_it: Iterable[Group]) -> list[str]:
    there = dict.fromkeys(
        metric for group in all_of_it for metrics in group.samples.values() for metric in metrics
    )
    wanted = SHOWN.get(scenario)
    return [metric for metric in wanted if metric in there] if wanted else list(there)


def number(value: float) -> str:
    """Returns a figure with its significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def figure_text(samples: list[float]) -> str:
    """The median and where it lies."""
    if len(samples) == 1:
        return number(samples[0])
    low, high, _ = interval(samples)
    return f"{number(median(samples))} ({number(low)} to {number(high)})"


def ratio_text(group: Group, metric: str, better: str, other: str) -> str:
    """Returns the ratio of ours to ``other``: the median of the ratios of the rounds, with its interval."""
    mine = group.samples.get(OURS, {}).get(metric)
    theirs = group.samples.get(other, {}).get(metric)
    if not mine or not theirs or len(mine) != len(theirs) or not all(mine) or not all(theirs):
        return "-"
    pairs = zip(mine, theirs, strict=True)
    ratios = [ours / their if better == "higher" else their / ours for ours, their in pairs]
    where: Interval = interval(ratios)
    return f"{median(ratios):.2f}x" + (f" ({where.low:.2f} to {where.high:.2f})" if len(ratios) > 1 else "")


def warnings_in_short(document: Document) -> list[str]:
    """The warnings, those that differ in nothing but place and number together."""
    found: dict[tuple[str, str], list[str]] = {}
    for warning in document.warnings:
        where, _, note = warning.partition(": ")
        found.setdefault((where.partition(" ")[0], re.sub(r"\d+", "N", note)), []).append(warning)
    short = []
    for several in found.values():
        more = f" (and {len(several) - 1} more like it)" if len(several) > 1 else ""
        short.append(several[0] + more)
    return short


def compared_peers(document: Document) -> list[str]:
    """Those that ours is compared with: all others, the floor last."""
    there = {row.peer for row in document.rows}
    return [name for name in PEERS if name in there and name not in (OURS, FLOOR)] + [FLOOR] * (
        FLOOR in there
    )


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
