"""A document as one self-contained HTML page: tables, and plots as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.suite.goal_table import goal_rows
from benchmarks.suite.peers import OURS
from benchmarks.suite.report import about, how_to_read, tables
from benchmarks.suite.summary import summary
from benchmarks.suite.views import transport_name, warnings_in_short
from mcp_actors.cli.bench.recorder import percentiles
from mcp_actors.cli.bench.report import Plot, PlotLine, about_list, document_head, table
from mcp_actors.cli.bench.results import METRICS, Document, interval, median, place_text

__all__ = ["page"]

# Which member of a place is a plot's x, for which metric, what it is called, and what is plotted.
Curve = tuple[str, str, str, str, str]
THROUGHPUT: tuple[Curve, ...] = (
    ("roundtrip", "in_flight", "per_second", "requests in flight", "Throughput against concurrency"),
    ("client_calls", "in_flight", "per_second", "calls in flight", "Clients"),
    ("large_payload", "bytes", "mib_per_second", "bytes of the text", "Large payloads"),
    ("progress_stream", "reports_a_call", "per_second", "reports a call", "Progress reports"),
)
LATENCY: tuple[Curve, ...] = (
    ("roundtrip", "in_flight", "p99_us", "requests in flight", "99th percentile against concurrency"),
    ("fan_out", "subscribers", "p99_us", "subscribers", "One change, sent to all"),
    ("mixed", "users", "p99_us", "users", "Mixed requests"),
)
COST: tuple[Curve, ...] = (
    ("many_sessions", "sessions", "cpu_us", "sessions", "Cost of a call among sessions"),
    ("many_sessions", "sessions", "kib_each", "sessions", "Memory of an idle session"),
    ("large_payload", "bytes", "rss_mib", "bytes of the text", "Memory with large payloads"),
)
# Distributions of the longest closed loop and of open loops; of these all places.
DISTRIBUTIONS = ("roundtrip", "cancel_latency", "stalled_peer", "mixed")
WINDOW_SHOWN = 64


def page(document: Document) -> str:
    """Returns the page: what came of it, with a verdict on each goal, then its contents, plots and every figure."""
    sections = list(_sections(document))
    parts = document_head("Benchmarks of mcp-actors", (), summary(document))
    parts.append(_verdicts(document))
    links = "".join(
        f'<li><a href="#s{at}">{escape(title)}</a></li>' for at, (title, _) in enumerate(sections)
    )
    parts.append(f'<nav aria-label="Contents"><ol>{links}</ol></nav>')
    parts += [f"<p>{escape(how_to_read(document))}</p>", about_list(about(document))]
    if document.warnings:
        items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings_in_short(document))
        parts.append(f'<div class="mind"><strong>Mind</strong><ul>{items}</ul></div>')
    parts += [f'<h2 id="s{at}">{escape(title)}</h2>{text}' for at, (title, text) in enumerate(sections)]
    return "\n".join([*parts, "</html>\n"])


# Verdicts are small, because all of them are to be seen at once.
_VERDICTS = """
.verdicts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); gap: 0 1.2rem }
.verdicts { list-style: none; margin: .6rem 0; padding: 0; font-size: 12.5px; line-height: 1.5 }
.verdicts li { display: flex; gap: .4rem; white-space: nowrap; border-bottom: 1px solid var(--line) }
.verdicts .what { flex: 1; overflow: hidden; text-overflow: ellipsis }
.verdicts b { font-variant-numeric: tabular-nums }
.verdicts li.missed { font-weight: 400; background: var(--mind) } .verdicts .aim { color: var(--pale) }
"""


def _verdicts(document: Document) -> str:
    """Returns each goal with its figure and whether it is reached, those first that are not; nothing without goals."""
    rows = goal_rows(document)
    found = []
    for row in rows[1:]:
        for column, cell in zip(rows[0][1:], row[1:], strict=True):
            figure, goal, aim = cell.text.partition(", goal ")
            if goal:
                found.append((cell.missed, f"{row[0].text}, {column.text}", figure, aim.partition(":")[0]))
    found.sort(key=lambda each: not each[0])
    lines = "".join(
        f'<li{" class=missed" * missed} title="{escape(f"{what}: {figure}, goal {aim}")}">'
        f"<span>{'✗' if missed else '-' if figure.startswith('not run') else '✓'}</span>"
        f'<span class="what">{escape(what)}</span><b>{escape(_shortened(figure))}</b>'
        f'<span class="aim">{escape(aim.partition(" or ")[0])}</span></li>'
        for missed, what, figure, aim in found
    )
    return f'<style>{_VERDICTS}</style><ul class="verdicts" aria-label="Goals">{lines}</ul>' if found else ""


def _shortened(figure: str) -> str:
    """Returns a figure without where it lies, and without those that it is made of."""
    return figure.rpartition(": ")[2].partition(" (")[0]


def _sections(document: Document) -> Iterator[tuple[str, str]]:
    """The sections that have anything in them, as titles and HTML."""
    if goals := _goals(document):
        yield "Goals", goals
    drawn = (
        ("Throughput", _curves(document, THROUGHPUT)),
        ("Own transports beside each other", _transports(document)),
        ("Latency", [*_curves(document, LATENCY), *_distributions(document)]),
        ("Processor time and memory", [*_curves(document, COST), *_memory(document)]),
    )
    for title, plots in drawn:
        if svg := "".join(plot.svg() for plot in plots):
            yield title, f'<div class="plots">{svg}</div>'
    for title, rows in tables(document):
        yield title, table(rows)
    if document.failures:
        yield "No figure", _failures(document)


def _failures(document: Document) -> str:
    lines = (
        f"{each.scenario}, {transport_name(each.transport)}, {each.era}, {each.peer}: {each.reason}"
        for each in document.failures
    )
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in lines)}</ul>"


def _goals(document: Document) -> str:
    """The table of goals, as far as there are figures for it."""
    lines = []
    for number, row in enumerate(goal_rows(document)):
        tag = "td" if number else "th"
        cells = [f"<{tag}{' class=missed' * cell.missed}>{escape(cell.text)}</{tag}>" for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table class="goals">{"".join(lines)}</table></div>' if lines else ""


def _curves(document: Document, curves: Sequence[Curve]) -> list[Plot]:
    plots = []
    samples = document.samples()
    for scenario, member, metric, x, title in curves:
        found: dict[tuple[str, str], dict[str, PlotLine]] = {}
        for key, metrics in samples.items():
            at = dict(key.at)
            if key.scenario == scenario and member in at and len(at) == 1 and metric in metrics:
                lines = found.setdefault((key.transport, key.era), {})
                line = lines.setdefault(key.peer, PlotLine(key.peer, []))
                line.points.append(_point(float(at[member]), metrics[metric]))
        plots += [
            Plot(
                f"{title}: {transport_name(transport)}, {era}",
                x,
                METRICS[metric].title + f", {METRICS[metric].unit}",
                list(lines.values()),
            )
            for (transport, era), lines in sorted(found.items())
            if any(len(line.points) > 1 for line in lines.values())
        ]
    return plots


def _point(x: float, samples: list[float]) -> tuple[float, float, float, float]:
    low, high, _ = interval(samples)
    return x, median(samples), low, high


def _transports(document: Document) -> list[Plot]:
    """Ours on every transport, in one picture: throughput first."""
    samples = document.samples()
    plots = []
    for metric in ("per_second", "p50_us", "cpu_us"):
        for era in ("legacy", "modern"):
            lines: dict[str, PlotLine] = {}
            for key, metrics in samples.items():
                at = dict(key.at)
                here = (key.scenario, key.peer, key.era) == ("roundtrip", OURS, era)
                if here and set(at) == {"in_flight"} and metric in metrics:
                    line = lines.setdefault(key.transport, PlotLine(transport_name(key.transport), []))
                    line.points.append(_point(float(at["in_flight"]), metrics[metric]))
            plotted = METRICS[metric]
            plots.append(
                Plot(f"{plotted.title}, {era}", "requests in flight", plotted.unit, list(lines.values()))
            )
    return plots


def _distributions(document: Document) -> list[Plot]:
    found: dict[tuple[str, str, str, str], list[PlotLine]] = {}
    for key in document.samples():
        at = dict(key.at)
        if (
            key.scenario not in DISTRIBUTIONS
            or at.get("in_flight", WINDOW_SHOWN) != WINDOW_SHOWN
            or "tool" in at
        ):
            continue
        name, where = key.peer, place_text(key.at)
        if "live_calls" in at:
            name, where = f"{key.peer}, beside {at['beside']}", f"{at['live_calls']} live calls"
        line = PlotLine(name, [(_nines(share), us, us, us) for share, us in percentiles(document, key)])
        found.setdefault((key.scenario, key.transport, key.era, where), []).append(line)
    ticks = [(_nines(share), f"{share:g} %") for share in (0, 50, 90, 99, 99.9, 99.99)]
    plots = []
    for (scenario, transport, era, where), lines in found.items():
        reach = max((point[0] for line in lines for point in line.points), default=0.0)
        title = f"{scenario}: {transport_name(transport)}, {era}" + (
            f", {where}" if where not in ("", "-") else ""
        )
        shown = [tick for tick in ticks if tick[0] <= reach]
        plots.append(Plot(title, "percentile of requests", "latency, us", lines, log_x=False, ticks_x=shown))
    return plots


def _nines(percentile: float) -> float:
    """Each further nine is as wide as the one before."""
    return -math.log10(1 - percentile / 100)


def _memory(document: Document) -> list[Plot]:
    """The memory of servers after their start, and after the load of roundtrip."""
    samples = document.samples()
    transports = list(dict.fromkeys(key.transport for key in samples if key.scenario == "startup"))
    lines: dict[str, PlotLine] = {}
    for key, metrics in samples.items():
        if key.scenario == "startup" and "rss_mib" in metrics:
            line = lines.setdefault(f"{key.peer}", PlotLine(key.peer, []))
            place = transports.index(key.transport) + (0.15 if key.era == "modern" else -0.15)
            line.points.append(_point(place, metrics["rss_mib"]))
    ticks = [(float(place), transport_name(name)) for place, name in enumerate(transports)]
    plot = Plot(
        "Memory of a server that has answered once", "transport (legacy, modern)", "MiB", list(lines.values())
    )
    plot.log_x = plot.log_y = False
    plot.ticks_x = ticks
    return [plot]
