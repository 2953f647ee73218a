"""The report of a run: lines of text for a terminal, and one HTML page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from mcp_actors.cli.bench.load import knee
from mcp_actors.cli.bench.recorder import distribution, percentiles
from mcp_actors.cli.bench.results import Document, interval, milliseconds
from mcp_actors.supervision.printable import safe

__all__ = [
    "STYLE",
    "Bars",
    "Plot",
    "PlotLine",
    "about_list",
    "call_rows",
    "cancellation_text",
    "colour",
    "document_head",
    "figure_rows",
    "page",
    "summary_lines",
    "summary_sentence",
    "table",
]


# -- The frame of a page, and its tables ---------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --pale: #666; --line: #ddd; --head: #f4f4f4 }
:root { --grid: #e6e6e6; --missed: #b00020; --mind: #fff7e0; --link: #0055aa }
@media (prefers-color-scheme: dark) {
:root { --ink: #ddd; --paper: #16181b; --pale: #9aa0a6; --line: #3a3f45; --head: #24282d }
:root { --grid: #30353b; --missed: #ff8a8a; --mind: #3a3015; --link: #82b7ff }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
body { max-width: 1440px; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere } h1 { font-size: 1.6rem }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem }
a { color: var(--link) } .sentence { font-weight: 600 } nav { margin: 1rem 0 }
nav ol { columns: 20rem; column-gap: 2rem; list-style: none; margin: 0; padding: 0 }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1rem } dt { color: var(--pale) }
dd { margin: 0; overflow-wrap: anywhere }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr)); gap: 1rem }
svg { width: 100%; border: 1px solid var(--line); border-radius: 6px; color: var(--ink) }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .title { font-size: 13px; font-weight: 600 }
svg .end { text-anchor: end } svg .mid { text-anchor: middle } svg .grid { stroke: var(--grid) }
svg .hit rect { fill: transparent } svg .hit .tip { visibility: hidden } svg .hit { outline: none }
svg .hit:hover .tip, svg .hit:focus .tip { visibility: visible } svg .tip line { stroke: var(--ink); opacity: .5 }
svg .tip rect { fill: var(--head); stroke: var(--line) } svg .mark line { stroke: var(--missed); stroke-dasharray: 4 3 }
svg .mark text { fill: var(--missed); font-weight: 600 } svg .bar { fill: var(--link) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { background: var(--head) } th:nth-child(-n+4), td:nth-child(-n+4) { text-align: left }
.goals td { white-space: normal; min-width: 9rem } .goals td, .goals th { text-align: left }
.missed { color: var(--missed); font-weight: 600 }
.mind { background: var(--mind); border-left: 4px solid #e69f00; padding: .4rem 1rem }
@media (max-width: 600px) {
dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } .mind ul { padding-left: 1rem }
}
"""


def document_head(title: str, about: Sequence[tuple[str, str]], sentence: str = "") -> list[str]:
    """Returns the parts of a page before its first section: the title, the outcome, and what is known of the run."""
    return [
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>",
        f'<p class="sentence">{escape(sentence)}</p>' if sentence else "",
        about_list(about) if about else "",
    ]


def about_list(about: Sequence[tuple[str, str]]) -> str:
    """Returns what is known of a run, as a list of names and values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in about)
    return f"<dl>{items}</dl>"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that can be moved sideways; the first of ``rows`` is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


# -- Plots as SVG, without a library -------------------------------------------------------------------

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 26, 34, 46
LEGEND_LINE = 15
# The mean width of a letter of a title.
TITLE_LETTER = 7.6
# After Okabe and Ito: the colour-blind can distinguish them too.
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
    """Lines over a number. ``ticks_x`` are values of x with their labels; without any, every point is a tick.

    ``marks`` are values of x with a line and a text of their own. The values at an x are shown under the pointer, and
    where the keyboard is.
    """

    title: str
    x: str
    y: str
    lines: list[PlotLine] = field(default_factory=list)
    log_x: bool = True
    log_y: bool = True
    ticks_x: list[tuple[float, str]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def _drawn(self) -> list[PlotLine]:
        """Returns the lines that have points; a logarithmic scale has no place for zero and less."""
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
        for mark, text in self.marks:
            parts += _mark(across(mark), text)
        named = dict(self.ticks_x)
        spots = []
        for at in xs:
            values = [(each.name, point[1]) for each in lines for point in each.points if point[0] == at]
            texts = [named.get(at, _short(at)), *(f"{name} {_short(value)}" for name, value in values)]
            spots.append((across(at), texts))
        return "\n".join([*parts, *_hits(spots), "</svg>"])


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
        hint = f"{line.name}: {_short(y)} at {_short(x)}"
        parts.append(
            f'<circle cx="{place}" cy="{up(y):.1f}" r="3" fill="{ink}"><title>{escape(hint)}</title></circle>'
        )
    return parts


def _mark(place: float, text: str) -> list[str]:
    end = ' class="end"' if place > WIDTH / 2 else ""
    shift = -5 if end else 5
    return [
        '<g class="mark">'
        f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{place + shift:.1f}" y="{TOP + 10}"{end}>{escape(text)}</text></g>'
    ]


# The mean width of a letter of a value, and the height of its line.
TIP_LETTER, TIP_LINE = 6.2, 14


def _hits(spots: Sequence[tuple[float, list[str]]]) -> Iterator[str]:
    """Yields what shows the values of each place while the pointer, or the keyboard, is there."""
    places = [place for place, _ in spots]
    for number, (place, texts) in enumerate(spots):
        begin = (places[number - 1] + place) / 2 if number else LEFT
        end = (places[number + 1] + place) / 2 if number + 1 < len(places) else WIDTH - RIGHT
        width, height = max(map(len, texts)) * TIP_LETTER + 12, len(texts) * TIP_LINE + 6
        x = min(max(place + 8 if place < WIDTH / 2 else place - 8 - width, 2), WIDTH - width - 2)
        said = escape(", ".join(texts))
        shown = "".join(
            f'<text x="{x + 6:.1f}" y="{TOP + 14 + TIP_LINE * line:.1f}">{escape(text)}</text>'
            for line, text in enumerate(texts)
        )
        yield (
            f'<g class="hit" tabindex="0" role="img" aria-label="{said}">'
            f'<rect x="{begin:.1f}" y="{TOP}" width="{max(end - begin, 1):.1f}" height="{HEIGHT - BOTTOM - TOP}"/>'
            f'<g class="tip"><line x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{height}" rx="4"/>{shown}</g></g>'
        )


@dataclass
class Bars:
    """A histogram on a logarithmic scale. ``bars`` are (from, to, how many)."""

    title: str
    x: str
    y: str
    bars: list[tuple[float, float, int]]

    def svg(self) -> str:
        if not self.bars:
            return ""
        edges = [self.bars[0][0], self.bars[-1][1]]
        across = _scale(edges, True, LEFT, WIDTH - RIGHT)
        highest, total = max(count for _, _, count in self.bars), sum(count for _, _, count in self.bars)
        up = _vertical([0.0, float(highest)], False)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            f'<text x="14" y="18" class="title"{_squeezed(self.title)}>{escape(self.title)}</text>',
        ]
        for value in _ticks(0.0, float(highest), False):
            y = up(value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{_short(value)}</text>')
        parts += [
            f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 16}" class="mid">{_short(value)}</text>'
            for value in _ticks(edges[0], edges[1], True)
            if edges[0] <= value <= edges[1]
        ]
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts += [
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" class="mid">{escape(self.x)}</text>',
            f'<text x="14" y="{middle}" class="mid" transform="rotate(-90 14 {middle})">{escape(self.y)}</text>',
        ]
        spots = []
        passed = 0
        for begin, end, count in self.bars:
            left, right, top = across(begin), across(end), up(float(count))
            passed += count
            parts.append(
                f'<rect class="bar" x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 1):.1f}" '
                f'height="{max(HEIGHT - BOTTOM - top, 0):.1f}"/>'
            )
            texts = [f"{begin:.3g} to {end:.3g} ms", f"{count:,} calls", f"{passed / total:.2%} up to here"]
            spots.append(((left + right) / 2, texts))
        return "\n".join([*parts, *_hits(spots), "</svg>"])


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


# -- A run as text for people --------------------------------------------------------------------------

_MOST_LINES = 20


def summary_sentence(document: Document) -> str:
    """Returns what was measured, and the outcome, in one sentence."""
    details, options, row = document.details, document.options, document.rows[0]
    calls = options["calls"]
    called = calls[0] if len(calls) == 1 else f"{len(calls)} different calls"
    sessions = f"{options['sessions']} session" + ("s" if options["sessions"] > 1 else "")
    where = f"{row.peer or 'the server'} ({row.era}, {options['version']}, {row.transport}, {sessions})"
    at_knee = knee(details)
    if at_knee is not None:
        held = f"held up to {at_knee:,.0f} calls/s" if at_knee else "held none of the rates of"
        return f"{where} {held} in a ramp of {called}."
    stage = details["stages"][0]
    load = (
        f"at {stage['at']['arrivals_per_second']:,} calls/s"
        if "arrivals_per_second" in stage["at"]
        else f"with {stage['at']['in_flight']} in flight"
    )
    total = stage["total"]
    return (
        f"{where} answered {stage['per_second']:,.0f} calls/s of {called} {load}, half of them within "
        f"{milliseconds(total['p50'])} and 99 % within {milliseconds(total['p99'])}; {details['failed']:,} failed."
    )


def summary_lines(document: Document) -> Iterator[str]:
    """Returns the report of a run. What a server said is spelled out where a terminal would obey it."""
    yield safe(summary_sentence(document))
    yield ""
    yield from _table(figure_rows(document))
    details = document.details
    if len(details["calls"]) > 1:
        yield ""
        yield from _table(call_rows(details["calls"]))
    if details["failures"]:
        yield ""
        head = [["failed", "calls", "the first one"]]
        failures = sorted(details["failures"].items(), key=lambda each: -each[1]["count"])
        lines = [[kind, f"{found['count']:,}", found["example"][:120]] for kind, found in failures]
        yield from _table(head + lines[:_MOST_LINES], left=(0, 2))
    if details["cancelled"]["sent"]:
        yield ""
        yield cancellation_text(details["cancelled"])
    for warning in document.warnings:
        yield safe(f"Mind: {warning}.")


def cancellation_text(cancelled: dict[str, Any]) -> str:
    """Returns what became of the calls that were cancelled in flight."""
    text = f"{cancelled['sent']:,} calls were cancelled in flight"
    for name, verb in (("answered", "were answered all the same"), ("ended", "were ended without an answer")):
        found = cancelled[name]
        if found["count"]:
            text += (
                f"; {found['count']:,} {verb}, half of them within {milliseconds(found['p50'])} of the "
                f"cancellation and 99 % within {milliseconds(found['p99'])}"
            )
    silent = cancelled["sent"] - cancelled["answered"]["count"] - cancelled["ended"]["count"]
    return text + (f"; {silent:,} got nothing more" if silent else "") + "."


def figure_rows(document: Document) -> list[list[str]]:
    rows = [["load", "calls/s", "where it lies", "p50", "p90", "p99", "p99.9", "longest", "failed"]]
    for stage in document.details["stages"]:
        total = stage["total"]
        samples = [
            row.metrics["per_second"]
            for row in document.rows
            if row.at == stage["at"] and row.metrics["per_second"]
        ]
        low, high, _ = interval(samples or [0.0])
        times = [
            milliseconds(total[each]) if total["count"] else "-"
            for each in ("p50", "p90", "p99", "p99.9", "max")
        ]
        verdict = "" if stage["held"] else "  not judged" if stage.get("missed") else "  not held"
        failed = f"{stage['failed']:,}" + verdict
        rows.append(
            [_load(stage), f"{stage['per_second']:,.0f}", f"{low:,.0f} to {high:,.0f}", *times, failed]
        )
    return rows


def _load(stage: dict[str, Any]) -> str:
    at = stage["at"]
    return (
        f"{at['arrivals_per_second']:,}/s" if "arrivals_per_second" in at else f"{at['in_flight']} in flight"
    )


def call_rows(calls: dict[str, Any]) -> list[list[str]]:
    rows = [["call", "answered", "p50", "p99", "longest", "failed"]]
    for label, found in list(calls.items())[:_MOST_LINES]:
        times = [milliseconds(found[each]) if found["count"] else "-" for each in ("p50", "p99", "max")]
        rows.append([label, f"{found['count']:,}", *times, f"{found['failed']:,}"])
    if len(calls) > _MOST_LINES:
        rows.append([f"and {len(calls) - _MOST_LINES} more", *[""] * 5])
    return rows


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Iterator[str]:
    shown = [[safe(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in shown) for place in range(len(shown[0]))]
    for row in shown:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


# -- A run as a page: the sentence, the plots, the tables ----------------------------------------------

_READING = (
    "Latencies count from when a call was meant to be sent, so a stall counts for every call that was due meanwhile. "
    "They are of the calls that were answered; those that failed are counted beside. The run was cut into parts of "
    "equal length: a median is that of the parts, and where it lies is between two of them."
)
_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)


def page(document: Document) -> str:
    """Returns the page of a run."""
    parts = document_head("A load on one server", _about(document), summary_sentence(document))
    sections = [(title, text) for title, make in _SECTIONS if (text := make(document))]
    links = " · ".join(
        f'<a href="#s{number}">{escape(title)}</a>' for number, (title, _) in enumerate(sections)
    )
    parts.append(f"<nav>{links}</nav>")
    if document.warnings:
        items = "".join(f"<li>{escape(warning)}</li>" for warning in document.warnings)
        parts.append(f'<div class="mind"><strong>Mind</strong><ul>{items}</ul></div>')
    parts.append(f"<p>{escape(_READING)}</p>")
    parts += [
        f'<h2 id="s{number}">{escape(title)}</h2>{text}' for number, (title, text) in enumerate(sections)
    ]
    return "\n".join([*parts, "</html>\n"])


def _about(document: Document) -> list[tuple[str, str]]:
    options = document.options
    calls = options["calls"]
    shown = ", ".join(calls[:5]) + (f" and {len(calls) - 5} more" if len(calls) > 5 else "")
    load = (
        f"{options['seconds']:g} s after {options['warm_up']:g} s of warm-up, sessions: {options['sessions']}, "
        f"cancelled: {options['cancel_share']:.0%}, seed {options['seed']}"
    )
    own = f"mcp-actors {document.versions.get('mcp-actors', '')}"
    return [
        ("server", f"{document.rows[0].peer}, revision {options['version']}"),
        ("address", options["url"]),
        ("calls", shown),
        ("load", load),
        *document.machine.items(),
        ("made by", own),
        ("date", document.started),
    ]


def _throughput(document: Document) -> Plot:
    ramp = _ramp(document, "calls/s", [("answered", "per_second"), ("asked for", "")])
    return ramp or _over_time(
        document, "Answered in each part of the run", "calls/s", [("answered", "per_second")]
    )


def _latency(document: Document) -> Plot:
    lines = [("p50", "p50_us"), ("p90", "p90_us"), ("p99", "p99_us")]
    return _ramp(document, "ms", lines) or _over_time(
        document, "Latency in each part of the run", "ms", lines
    )


def _errors(document: Document) -> Plot:
    """Returns the failed calls of each part of the run, of all stages one after the other."""
    points, before, began = [], 0.0, iter(document.rows)
    for stage in document.details["stages"]:
        for place, row in zip(stage["began"], began, strict=False):
            failed = row.metrics.get("failed_share", 0.0)
            points.append((before + place, failed, failed, failed))
        before += stage["seconds"]
    last = max((point[0] for point in points), default=0.0)
    ticks = [(value, f"{value:.3g}") for value in sorted({0.0, last / 2, last})]
    return Plot(
        "Failed calls in each part of the run",
        "seconds since the load began",
        "% of the calls",
        [PlotLine("failed", points)],
        log_x=False,
        log_y=False,
        ticks_x=ticks,
    )


def _histogram(document: Document) -> Bars:
    """Returns how often a call took how long: at the knee of a ramp, or at its first rate."""
    at_knee = knee(document.details)
    keys = list(dict.fromkeys(row.key for row in document.rows))
    key = next((each for each in keys if dict(each.at).get("arrivals_per_second") == at_knee), keys[0])
    where = "" if at_knee is None else f" at {dict(key.at).get('arrivals_per_second', 0):,}/s"
    return Bars(f"How long calls took{where}", "ms", "calls", distribution(document, key))


def _ramp(document: Document, y: str, metrics: list[tuple[str, str]]) -> Plot | None:
    """Returns plots against the rate, each point of all parts of a stage together."""
    stages = document.details["stages"]
    if not document.details["ramp"]:
        return None
    lines = []
    for name, metric in metrics:
        points = []
        for stage in stages:
            rate = float(stage["at"]["arrivals_per_second"])
            total = stage["total"]
            if metric in ("", "per_second"):
                value = stage["per_second"] if metric else rate
            else:
                value = total.get(metric.removesuffix("_us"), 0.0) * 1e3
            points.append((rate, value, value, value))
        lines.append(PlotLine(name, points))
    title = "Answered beside asked for" if y == "calls/s" else "Latency against the rate"
    plot = Plot(title, "calls/s that were asked for", y, lines)
    at_knee = knee(document.details)
    if at_knee:
        plot.marks.append((at_knee, f"knee {at_knee:,.0f}/s"))
    plot.marks += [
        (float(stage["at"]["arrivals_per_second"]), "not judged") for stage in stages if stage.get("missed")
    ]
    return plot


def _over_time(document: Document, title: str, y: str, metrics: list[tuple[str, str]]) -> Plot:
    began = document.details["stages"][0]["began"]
    scale = 1e3 if y == "ms" else 1.0
    lines = []
    for name, metric in metrics:
        found = [
            (place, row.metrics[metric] / scale)
            for place, row in zip(began, document.rows, strict=False)
            if metric in row.metrics
        ]
        lines.append(PlotLine(name, [(place, value, value, value) for place, value in found]))
    last = max(began, default=0.0)
    ticks = [(value, f"{value:.3g}") for value in sorted({0.0, last / 2, last})]
    return Plot(title, "seconds since the load began", y, lines, log_x=False, log_y=y == "ms", ticks_x=ticks)


def _distribution(document: Document) -> Plot:
    lines = []
    keys = list(dict.fromkeys(row.key for row in document.rows))
    for key in keys[:: max(1, math.ceil(len(keys) / 5))]:
        at = dict(key.at)
        name = (
            f"{at['arrivals_per_second']}/s"
            if "arrivals_per_second" in at
            else f"{at['in_flight']} in flight"
        )
        lines.append(
            PlotLine(
                name,
                [(_nines(share), us / 1e3, us / 1e3, us / 1e3) for share, us in percentiles(document, key)],
            )
        )
    reach = max((point[0] for line in lines for point in line.points), default=0.0)
    ticks = [(_nines(share), f"{share:g} %") for share in _TICKS if _nines(share) <= reach]
    return Plot("Latency by percentile", "percentile of the calls", "ms", lines, log_x=False, ticks_x=ticks)


def _nines(percentile: float) -> float:
    """Returns the place of a percentile on a scale on which each further nine is as wide as the one before."""
    return -math.log10(1 - percentile / 100)


def _figures(document: Document) -> str:
    return table(figure_rows(document))


def _calls(document: Document) -> str:
    calls = document.details["calls"]
    return table(call_rows(calls)) if len(calls) > 1 else ""


def _failures(document: Document) -> str:
    found = document.details["failures"]
    if not found:
        return ""
    rows = [[kind, f"{each['count']:,}", each["example"]] for kind, each in found.items()]
    return table([["failed", "calls", "the first one"], *rows])


def _cancelled(document: Document) -> str:
    cancelled = document.details["cancelled"]
    return f"<p>{escape(cancellation_text(cancelled))}</p>" if cancelled["sent"] else ""


def _plots(document: Document) -> str:
    plots: list[Plot | Bars] = [_throughput(document), _latency(document), _histogram(document)]
    plots += [_distribution(document), _errors(document)]
    return f'<div class="plots">{"".join(plot.svg() for plot in plots)}</div>'


_SECTIONS: tuple[tuple[str, Callable[[Document], str]], ...] = (
    ("Throughput and latency", _plots),
    ("Figures", _figures),
    ("Calls", _calls),
    ("Failures", _failures),
    ("Cancelled calls", _cancelled),
)
