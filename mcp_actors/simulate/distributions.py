"""How long things take: small values, each of which draws from rng that it is given. All times are seconds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import attrs

__all__ = ["Constant", "Distribution", "Empirical", "Exponential", "LogNormal", "Uniform", "as_distribution"]


class Distribution(Protocol):
    """Anything with this method will do."""

    def sample(self, rng: random.Random) -> float:
        """Draws one value, 0 or more; must use no other source of chance than ``rng``."""


def _not_negative(instance: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{type(instance).__name__}: {attribute.name} is a number of seconds, not {value!r}")


@attrs.frozen
class Constant:
    """Always the same."""

    seconds: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """Draws nothing."""
        return self.seconds


@attrs.frozen
class Uniform:
    """Anything between two values, all equally likely."""

    low: float = attrs.field(validator=_not_negative)
    high: float = attrs.field(validator=_not_negative)

    def __attrs_post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError("Uniform: high is lower than low")

    def sample(self, rng: random.Random) -> float:
        """One draw."""
        return self.low + rng.random() * (self.high - self.low)


@attrs.frozen
class Exponential:
    """Waiting times for what happens at random, ``mean`` seconds apart."""

    mean: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """One draw."""
        return -math.log(1.0 - rng.random()) * self.mean


@attrs.frozen
class LogNormal:
    """Half of the values below ``median``, and a long tail: the longer, the greater ``sigma``.

    p99 is ``median * exp(2.33 * sigma)``: with 0.5 about 3 times the median, with 1 about 10 times.
    """

    median: float = attrs.field(validator=_not_negative)
    sigma: float = attrs.field(validator=_not_negative)

    def sample(self, rng: random.Random) -> float:
        """One normal draw."""
        return self.median * math.exp(rng.gauss(0.0, self.sigma))


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


@attrs.frozen
class Empirical:
    """Values that were measured, each as likely as the others, or in proportion to ``weights``."""

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
        """One draw."""
        return rng.choices(self.values, cum_weights=self._cumulated)[0]


def as_distribution(value: float | Distribution) -> Distribution:
    """A plain number is a `Constant`."""
    return Constant(value) if isinstance(value, int | float) else value
