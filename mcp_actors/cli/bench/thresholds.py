"""``--fail-if``: limits for the figures of a run."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

import attrs
import click

__all__ = ["Threshold", "parse_threshold"]

_LATENCIES = ("p50", "p90", "p95", "p99", "p99.9", "mean", "max")
_NAMES = (*_LATENCIES, "errors", "throughput", "knee")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM = re.compile(r"\s*([a-z][a-z0-9.]*)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*(us|ms|s|%|/s)?\s*")


@attrs.frozen
class Threshold:
    """One limit; ``text`` is how it was written."""

    text: str
    figure: str
    comparison: str
    limit: float

    def crossed(self, figures: Mapping[str, float]) -> str:
        """Returns the figure in words if it is on the wrong side, otherwise nothing. A missing figure is too."""
        value = figures.get(self.figure)
        if value is None:
            return f"{self.text}: there is no such figure"
        if not _COMPARISONS[self.comparison](value, self.limit):
            return ""
        name = self.figure.removesuffix("%")
        if name in _LATENCIES:
            return f"{self.text}: {name} is {value * 1000:.4g} ms"
        unit = {"errors%": " %", "throughput": "/s", "knee": "/s"}.get(self.figure, "")
        return f"{self.text}: {name} is {value:,.6g}{unit}"


def parse_threshold(text: str) -> Threshold:
    """Parses ``p99>50ms``, ``errors>0``, ``errors>1%`` or ``throughput<1000``.

    Raises:
        click.UsageError: It is nothing like that.
    """
    found = _FORM.fullmatch(text)
    if text == "regression":
        raise click.UsageError("--fail-if regression compares two files: --compare OLD.json NEW.json")
    if found is None:
        raise click.UsageError(f"--fail-if {text!r}: write for example p99>50ms, errors>0 or throughput<1000")
    name, comparison, number, unit = found.groups()
    if name not in _NAMES:
        raise click.UsageError(
            f"--fail-if {text!r}: there is no figure {name}; there are {', '.join(_NAMES)}"
        )
    limit = float(number)
    if name in _LATENCIES:
        if unit not in _UNITS:
            raise click.UsageError(f"--fail-if {text!r}: a latency needs its unit, us, ms or s")
        limit *= _UNITS[unit]
    elif unit in _UNITS or (unit == "%" and name != "errors") or (unit == "/s" and name == "errors"):
        raise click.UsageError(f"--fail-if {text!r}: {unit} is no unit of {name}")
    return Threshold(text.strip(), f"{name}%" if unit == "%" else name, comparison, limit)
