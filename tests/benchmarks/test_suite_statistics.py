"""What the suite says about samples is true of any samples."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors.cli.bench.results import adjusted, interval, mann_whitney, median, ratio_interval, smallest_p

SAMPLES = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=12)
# Few different values, so that there are ties.
SMALL = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)


@given(SAMPLES)
def test_an_interval_is_between_two_samples_and_holds_the_median(samples: list[float]) -> None:
    low, high, confidence = interval(samples)
    assert low in samples
    assert high in samples
    assert low <= median(samples) <= high
    assert 0.0 <= confidence <= 1.0


@pytest.mark.parametrize("size", range(2, 30))
def test_the_confidence_of_an_interval_is_that_of_a_fair_coin(size: int) -> None:
    samples = [float(each) for each in range(size)]
    low, high, confidence = interval(samples)
    # The true median lies below or above each sample with equal chance: count the throws that keep it inside.
    inside = sum(math.comb(size, below) for below in range(int(low) + 1, int(high) + 1))
    assert confidence == pytest.approx(inside / 2**size)
    assert (low, high) == (0.0, size - 1.0) if size < 6 else confidence >= 0.95


def _by_trying_all(first: list[float], second: list[float]) -> float:
    values = [*first, *second]
    ranks = [sum(other < each for other in values) + (values.count(each) + 1) / 2 for each in values]
    middle = sum(ranks) * len(first) / len(values)
    seen = abs(sum(ranks[: len(first)]) - middle)
    splits = list(itertools.combinations(ranks, len(first)))
    return sum(abs(sum(split) - middle) >= seen - 1e-9 for split in splits) / len(splits)


@given(SMALL, SMALL)
def test_the_exact_p_value_is_that_of_all_splits(first: list[float], second: list[float]) -> None:
    assert mann_whitney(first, second) == pytest.approx(_by_trying_all(first, second))


@given(SAMPLES, SAMPLES)
def test_a_p_value_knows_no_order_and_no_unit(first: list[float], second: list[float]) -> None:
    p = mann_whitney(first, second)
    assert 0.0 < p <= 1.0 + 1e-9
    assert mann_whitney(second, first) == pytest.approx(p)
    assert mann_whitney([2.0 * x for x in first], [2.0 * x for x in second]) == pytest.approx(p)


@pytest.mark.parametrize(("first", "second"), [(3, 3), (4, 4), (5, 5), (2, 9), (8, 7)])
def test_samples_that_are_quite_apart_have_the_smallest_p_value(first: int, second: int) -> None:
    low, high = [float(x) for x in range(first)], [100.0 + x for x in range(second)]
    assert mann_whitney(low, high) == pytest.approx(smallest_p(first, second))


def test_many_samples_are_approximated_and_still_told_apart() -> None:
    low, high = [float(x) for x in range(40)], [30.0 + x for x in range(40)]
    assert mann_whitney(low, high) < 0.001
    assert mann_whitney(low, [x + 0.5 for x in low]) > 0.5
    assert mann_whitney([1.0] * 40, [1.0] * 40) == 1.0


@given(st.lists(st.floats(0.0, 1.0), max_size=20))
def test_corrected_p_values_are_no_smaller_and_keep_their_order(values: list[float]) -> None:
    corrected = adjusted(values)
    assert all(p <= q <= 1.0 for p, q in zip(values, corrected, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(corrected[a] <= corrected[b] for a, b in itertools.pairwise(order))


@settings(max_examples=25)  # each draws some ten thousand samples
@given(SAMPLES, SAMPLES, st.floats(0.1, 10.0))
def test_a_ratio_scales_with_its_samples(mine: list[float], other: list[float], factor: float) -> None:
    low, high, _ = ratio_interval(mine, other)
    assert low <= high
    scaled = ratio_interval([factor * each for each in mine], other)
    assert scaled.low == pytest.approx(factor * low)
    assert scaled.high == pytest.approx(factor * high)


def test_a_ratio_of_like_samples_holds_one() -> None:
    samples = [10.0, 11.0, 12.0, 13.0]
    low, high, _ = ratio_interval(samples, samples)
    assert low < 1.0 < high
    assert ratio_interval(samples, samples) == ratio_interval(samples, samples)


def test_nothing_is_said_of_a_ratio_to_nothing() -> None:
    assert math.isnan(ratio_interval([1.0], [0.0]).low)
