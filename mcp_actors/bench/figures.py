"""Figures as people read them."""

from __future__ import annotations

from mcp_actors.bench.statistics import interval, median

__all__ = ["figure_text", "number"]


def number(value: float) -> str:
    """Returns a figure with its significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def figure_text(samples: list[float]) -> str:
    """The median and where it lies."""
    if len(samples) == 1:
        return number(samples[0])
    low, high, _ = interval(samples)
    return f"{number(median(samples))} ({number(low)} to {number(high)})"
