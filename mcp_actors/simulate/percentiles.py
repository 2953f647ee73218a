"""Percentiles of measured values, by the nearest-rank method: the result is always a value that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["percentile", "percentile_of_counts"]


def _rank(percent: float, count: int) -> int:
    """Returns the position, from 1, of the smallest value that ``percent`` of 100 of all values do not exceed."""
    return max(1, math.ceil(percent * count / 100))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of values that are sorted, of which there is at least one."""
    return ordered[_rank(percent, len(ordered)) - 1]


def percentile_of_counts(counts: Iterable[tuple[float, int]], total: int, percent: float) -> float | None:
    """Returns a percentile of values that are given in order, each with how often it was measured.

    Args:
        counts: pairs of a value and its count.
        total: the sum of the counts.
        percent: between 0 and 100.

    Returns:
        The value, or ``None`` if the total is 0.
    """
    rank = _rank(percent, total)
    seen = 0
    for value, count in counts:
        seen += count
        if seen >= rank:
            return value
    return None
