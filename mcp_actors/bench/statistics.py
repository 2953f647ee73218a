"""Statistics for few samples.

Nothing here assumes a distribution. Rounds are the samples, never single requests: those of one round depend on each
other, and thousands of them would prove anything.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "adjusted", "interval", "mann_whitney", "median", "ratio_interval", "smallest_p"]

CONFIDENCE = 0.95
RESAMPLES = 2000
# All ways to split n + m rounds are tried up to this number; beyond it the normal approximation is good.
MOST_SPLITS = 20_000

median = statistics.median


class Interval(NamedTuple):
    """``confidence`` is the share of repetitions in which the interval holds the true value; it may be less than
    was asked for, when there are too few samples for more.
    """

    low: float
    high: float
    confidence: float


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Between two of the samples, in order: where the median is, whatever the distribution.

    The narrowest pair of order statistics that is sure enough; with few samples that is the lowest and the highest,
    and the confidence is told.
    """
    ordered = sorted(samples)
    size = len(ordered)
    tail = 0.0  # the probability that fewer than `rank` samples lie below the median
    best = Interval(ordered[0], ordered[-1], 1.0 - 2.0 ** (1 - size))
    for rank in range(size // 2):
        tail += math.comb(size, rank) / 2.0**size
        if 1.0 - 2.0 * tail < confidence:
            break
        best = Interval(ordered[rank], ordered[size - 1 - rank], 1.0 - 2.0 * tail)
    return best


def ratio_interval(
    mine: Sequence[float], other: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Of median(mine) / median(other), by the percentile bootstrap; the same samples give the same answer."""
    chance = random.Random(seed)
    ratios = []
    for _ in range(RESAMPLES):
        below = median(chance.choices(other, k=len(other)))
        if below:
            ratios.append(median(chance.choices(mine, k=len(mine))) / below)
    if not ratios:
        return Interval(math.nan, math.nan, 0.0)
    ratios.sort()
    cut = (1.0 - confidence) / 2.0
    last = len(ratios) - 1
    return Interval(ratios[round(cut * last)], ratios[round((1.0 - cut) * last)], confidence)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of "no difference": exact while the splits can be counted, ties and all."""
    values = [*first, *second]
    ranks = _ranks(values)
    observed = sum(ranks[: len(first)])
    if math.comb(len(values), len(first)) > MOST_SPLITS:
        return _approximate(ranks, observed, len(first), len(second))
    # Ranks with ties are halves: doubled, they are whole, and splits are counted by their sums.
    doubled = [round(2 * rank) for rank in ranks]
    ways: list[dict[int, int]] = [{} for _ in range(len(first) + 1)]
    ways[0][0] = 1
    for rank in doubled:
        for taken in range(len(first), 0, -1):
            for total, count in ways[taken - 1].items():
                ways[taken][total + rank] = ways[taken].get(total + rank, 0) + count
    middle = sum(doubled) * len(first) / len(doubled)
    distance = abs(2 * observed - middle)
    far = sum(count for total, count in ways[-1].items() if abs(total - middle) >= distance - 1e-9)
    return far / sum(ways[-1].values())


def smallest_p(first: int, second: int) -> float:
    """The least p-value that so many samples can give: above 0.05 no difference, however large, can be shown."""
    return 2.0 / math.comb(first + second, first)


def adjusted(values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg: p-values of many comparisons, so that few of those below 0.05 are false alarms."""
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    result = [0.0] * len(values)
    lowest = 1.0
    for place, index in enumerate(order):
        lowest = min(lowest, values[index] * (len(values) / (len(values) - place)))
        result[index] = lowest
    return result


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + 1 + end) / 2
        start = end
    return ranks


def _approximate(ranks: Sequence[float], observed: float, first: int, second: int) -> float:
    size = first + second
    middle = first * (size + 1) / 2
    spread = sum((rank - (size + 1) / 2) ** 2 for rank in ranks) * first * second / (size * (size - 1))
    if not spread:
        return 1.0
    distance = max(0.0, abs(observed - middle) - 0.5) / math.sqrt(spread)
    return math.erfc(distance / math.sqrt(2.0))
