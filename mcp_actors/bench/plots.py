"""Draws plots as SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Plot", "PlotLine", "colour"]

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 26, 34, 46
LEGEND_LINE = 15
# The mean width of a letter of a title.
TITLE_LETTER = 7.6
# After Okabe and Ito: told apart by the colour-blind too.
COLOURS = ("#0072b2", "#777777", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "currentColor")
KNOWN = (
    "ours",
    "floor",
    "official",
    "fastmcp",
    "typescript1",
    "typescript2",
    "floor_inline",
    "ours_protected",
)
# Peers that are variants of another one have its colour.
VARIANTS = {
    "asyncio": "ours",
    "sync": "ours",
    "ours_asgi": "ours",
    "official_asgi": "official",
    "floor_asgi": "floor",
}
# Variants, and a second line of the same peer, are dashed or dotted, in the legend too.
DASHES = {
    "floor": "5 3",
    "floor_inline": "2 2",
    "floor_asgi": "8 2",
    "asyncio": "7 3",
    "sync": "2 3",
    "ours_asgi": "8 2 2 2",
    "official_asgi": "7 3",
    "beside stalled": "1 3",
}


def colour(name: str, others: Sequence[str] = ()) -> str:
    """A peer has the same colour in every plot; others get one by their place."""
    peer = name.partition(", ")[0]
    peer = VARIANTS.get(peer, peer)
    if peer in KNOWN:
        return COLOURS[KNOWN.index(peer)]
    return COLOURS[list(others).index(name) % len(COLOURS)] if name in others else COLOURS[-1]


def _place(name: str) -> int:
    peer = name.partition(", ")[0]
    return KNOWN.index(peer) if peer in KNOWN else len(KNOWN)


@dataclass
class PlotLine:
    """``points`` are (x, y, lowest y, highest y)."""

    name: str
    points: list[tuple[float, float, float, float]]


@dataclass
class Plot:
    """Lines over a number. ``ticks_x`` are values of x and what is written there; without any they are the points."""

    title: str
    x: str
    y: str
    lines: list[PlotLine] = field(default_factory=list)
    log_x: bool = True
    log_y: bool = True
    ticks_x: list[tuple[float, str]] = field(default_factory=list)

    def _drawn(self) -> list[PlotLine]:
        """Lines that have points; nothing, and less, has no place on a logarithmic scale."""
        lines = [
            PlotLine(line.name, [point for point in line.points if point[2] > 0 or not self.log_y])
            for line in self.lines
        ]
        return [line for line in lines if line.points]

    def svg(self) -> str:
        lines = sorted(self._drawn(), key=lambda line: _place(line.name))
        if not lines:
            return ""
        names = [line.name for line in lines]
        xs = sorted({point[0] for line in lines for point in line.points})
        ys = [y for line in lines for point in line.points for y in point[1:] if y > 0 or not self.log_y]
        across, up = _scale(xs, self.log_x, LEFT, WIDTH - RIGHT), _vertical(ys, self.log_y)
        columns = 3 if max(map(len, names)) < 16 else 2
        height = HEIGHT + LEGEND_LINE * math.ceil(len(lines) / columns)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(self.title)}">',
            f'<text x="14" y="18" class="title"{_squeezed(self.title)}>{escape(self.title)}</text>',
        ]
        for value in _ticks(min(ys), max(ys), self.log_y):
            y = up(value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{_short(value)}</text>')
        last = -math.inf
        for value, text in self.ticks_x or [(x, _short(x)) for x in xs]:
            place = across(value)
            if place - last >= 30:
                parts.append(
                    f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 16}" class="mid">{escape(text)}</text>'
                )
                last = place
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts += [
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" class="mid">{escape(self.x)}</text>',
            f'<text x="14" y="{middle}" class="mid" transform="rotate(-90 14 {middle})">{escape(self.y)}</text>',
        ]
        for line in lines:
            parts += _draw(line, colour(line.name, names), across, up)
        for place, line in enumerate(lines):
            x = LEFT + 396 // columns * (place % columns)
            y = HEIGHT + LEGEND_LINE * (place // columns) + 4
            ink = colour(line.name, names)
            parts.append(
                f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{ink}" stroke-width="3"{_dash(line.name)}/>'
            )
            parts.append(f'<text x="{x + 23}" y="{y + 4}">{escape(line.name)}</text>')
        return "\n".join([*parts, "</svg>"])


def _draw(
    line: PlotLine, ink: str, across: Callable[[float], float], up: Callable[[float], float]
) -> list[str]:
    points = sorted(line.points)
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _, _ in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2"{_dash(line.name)}/>']
    for x, y, low, high in points:
        place = f"{across(x):.1f}"
        parts.append(
            f'<line x1="{place}" x2="{place}" y1="{up(low):.1f}" y2="{up(high):.1f}" stroke="{ink}"/>'
        )
        told = f"{line.name}: {_short(y)} at {_short(x)}"
        parts.append(
            f'<circle cx="{place}" cy="{up(y):.1f}" r="3" fill="{ink}"><title>{escape(told)}</title></circle>'
        )
    return parts


def _squeezed(title: str) -> str:
    """The attributes of a title that is longer than the plot is wide."""
    room = WIDTH - 28
    return f' textLength="{room}" lengthAdjust="spacingAndGlyphs"' if len(title) * TITLE_LETTER > room else ""


def _dash(name: str) -> str:
    """The attribute of a line that is dotted, in the plot and in its legend."""
    dashes = DASHES.get(name.partition(", ")[2] or name)
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _scale(values: Sequence[float], log: bool, start: float, end: float) -> Callable[[float], float]:
    turn: Callable[[float], float] = (lambda value: math.log10(max(value, 1e-9))) if log else float
    low, high = turn(min(values)), turn(max(values))
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (turn(value) - low) / (high - low) * (end - start)


def _vertical(values: Sequence[float], log: bool) -> Callable[[float], float]:
    ticks = _ticks(min(values), max(values), log)
    return _scale([ticks[0], ticks[-1]], log, HEIGHT - BOTTOM, TOP)


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Round numbers from below the lowest to above the highest value."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        if last - first > 2:
            return [10.0**power for power in range(first, last + 1)]
        steps = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
        below = max((step for step in steps if step <= low), default=steps[0])
        above = min((step for step in steps if step >= high), default=steps[-1])
        kept = [step for step in steps if below <= step <= above]
        return kept if len(kept) > 1 else [below, below * 10]
    step = 10.0 ** math.floor(math.log10(high)) if high > 0 else 1.0
    step = next((step * part for part in (0.1, 0.2, 0.5) if high / (step * part) <= 6), step)
    return [step * number for number in range(math.ceil(high / step) + 1)] if high > 0 else [0.0, 1.0]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
