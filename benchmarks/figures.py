"""What is measured and how it is told: peers, trials, and the figures that come out of them."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suite.process import LoadError

__all__ = ["Figure", "Peer", "Trial", "document", "number", "run_module", "table"]

ROOT = Path(__file__).parent.parent
MEASURE_WITHIN_SECONDS = 180.0
OFFICIAL, OURS, FLOOR = "official", "ours", "floor"


@dataclass
class Peer:
    """One of those that are measured, and its interpreter. What it does is in `benchmarks.peers`, by its name."""

    name: str
    python: str

    def command(self, suffix: str = "") -> list[str]:
        """How its program is started: ``floor`` serves stdio, ``floor_http`` HTTP, and so on."""
        return [self.python, "-m", f"benchmarks.peers.{self.name}{suffix}"]


@dataclass
class Figure:
    """One row of the table. ``goal`` is how many times better than the official SDK ours is meant to be; where the
    goal is no ratio, ``at_most`` is what ours is meant to stay under.
    """

    title: str
    unit: str
    goal: float | None
    key: str
    better: str = "higher"
    at_most: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)

    def median(self, peer: str) -> float | None:
        return statistics.median(self.samples[peer]) if self.samples.get(peer) else None

    def times_better(self, peer: str, than: str) -> float | None:
        mine, other = self.median(peer), self.median(than)
        if not mine or not other:
            return None
        return other / mine if self.better == "lower" else mine / other

    @property
    def aim(self) -> str:
        """The goal as the table says it."""
        if self.at_most is not None:
            return f"<= {self.at_most:g} {self.unit}"
        return f"{self.goal:g}x" if self.goal is not None else "-"


@dataclass
class Trial:
    """One thing that is done to every peer that can do it, and the figures that come out of it."""

    measure: Callable[[Peer], dict[str, Any]]
    figures: list[Figure]
    peers: tuple[str, ...] = (OFFICIAL, OURS, FLOOR)


def run_module(command: list[str]) -> dict[str, Any]:
    """Runs one measurement in a process of its own; what it printed. Raises `LoadError` with what it complained of."""
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=MEASURE_WITHIN_SECONDS, check=False
    )
    if result.returncode:
        raise LoadError(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def number(value: float) -> str:
    """A figure to read: whole, or with two digits that mean something."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _cell(figure: Figure, peer: str) -> str:
    samples = figure.samples.get(peer)
    if not samples:
        return "-"
    middle, lowest, highest = statistics.median(samples), min(samples), max(samples)
    return f"{number(middle)} ({number(lowest)}-{number(highest)})"


def table(figures: list[Figure]) -> str:
    """The figures as a table in Markdown."""
    header = ["", "official", "ours", "ours is", "goal", "floor", "of the floor"]
    rows = [header]
    for figure in figures:
        times = figure.times_better("ours", "official")
        share = figure.times_better("ours", "floor")
        rows.append(
            [
                f"{figure.title}, {figure.unit}",
                _cell(figure, "official"),
                _cell(figure, "ours"),
                f"{times:.1f}x" if times else "-",
                figure.aim,
                _cell(figure, "floor"),
                f"{share:.0%}" if share else "-",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def document(figures: list[Figure], machine: dict[str, str], rounds: int, seconds: float) -> dict[str, Any]:
    """The figures with every sample."""
    return {
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "figures": [
            {
                "title": figure.title,
                "unit": figure.unit,
                "better": figure.better,
                "goal": figure.goal,
                "at_most": figure.at_most,
                "times_official": figure.times_better("ours", "official"),
                "samples": figure.samples,
                "medians": {peer: figure.median(peer) for peer in figure.samples},
            }
            for figure in figures
        ],
    }
