"""Distributions of durations, in seconds, that draw from the random numbers that they are given."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import attrs

__all__ = ["Constant", "Distribution", "Empirical", "Exponential", "LogNormal", "Uniform", "as_distribution"]


class Distribution(Protocol):
    """Any object with this method."""

    def sample(self, rng: random.Random) -> float:
        """Returns one value, 0 or more. It must take its random numbers from ``rng`` only."""


def _not_negative(instance: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{type(instance).__name__}: {attribute.name} is a number of seconds, not {value!r}")


@attrs.frozen
class Constant:
    """The same value each time.

    Raises:
        ValueError: it is negative or infinite.
    """

    seconds: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns the value."""
        return self.seconds


@attrs.frozen
class Uniform:
    """Values between ``low`` and ``high``, all equally likely.

    Raises:
        ValueError: one of them is negative or infinite, or ``high`` is lower than ``low``.
    """

    low: float = attrs.field(validator=_not_negative)
    high: float = attrs.field(validator=_not_negative)

    def __attrs_post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError("Uniform: high is lower than low")

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return self.low + rng.random() * (self.high - self.low)


@attrs.frozen
class Exponential:
    """Times between random events that are ``mean`` seconds apart on average.

    Raises:
        ValueError: the mean is negative or infinite.
    """

    mean: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return -math.log(1.0 - rng.random()) * self.mean


@attrs.frozen
class LogNormal:
    """Half of the values below ``median``, and a long tail: the longer, the greater ``sigma``.

    p99 is ``median * exp(2.33 * sigma)``: with 0.5 about 3 times the median, with 1 about 10 times.

    Raises:
        ValueError: a value is negative or infinite.
    """

    median: float = attrs.field(validator=_not_negative)
    sigma: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return self.median * math.exp(rng.gauss(0.0, self.sigma))


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


@attrs.frozen
class Empirical:
    """Values that were measured, each as likely as the others, or in proportion to ``weights``.

    Raises:
        ValueError: there are no values, one is negative or infinite, or the weights do not fit them.
    """

    values: Sequence[float] = attrs.field(converter=_numbers)
    weights: Sequence[float] | None = attrs.field(default=None, converter=attrs.converters.optional(_numbers))
    _cumulated: tuple[float, ...] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not self.values or not all(0 <= each < math.inf for each in self.values):
            raise ValueError("Empirical: values are one or more numbers of seconds")
        weights = self.weights if self.weights is not None else (1.0,) * len(self.values)
        if len(weights) != len(self.values) or not all(0 <= each < math.inf for each in weights):
            raise ValueError("Empirical: one weight for each value, none of them negative")
        if not sum(weights) > 0:
            raise ValueError("Empirical: some weight must be more than 0")
        object.__setattr__(self, "_cumulated", tuple(itertools.accumulate(weights)))

    def sample(self, rng: random.Random) -> float:
        """Returns one value."""
        return rng.choices(self.values, cum_weights=self._cumulated)[0]


def as_distribution(value: float | Distribution) -> Distribution:
    """Returns ``value``, or a `Constant` for a plain number."""
    return Constant(value) if isinstance(value, int | float) else value
