"""A run as one HTML page that needs nothing else: the sentence, the plots, the tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from mcp_actors.bench.histograms import percentiles
from mcp_actors.bench.html import document_head, table
from mcp_actors.bench.plots import Plot, PlotLine
from mcp_actors.bench.results import Document
from mcp_actors.cli.bench.text import call_rows, cancellation_text, figure_rows, summary_sentence

__all__ = ["page"]

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
    return _ramp(document, "us", lines) or _over_time(
        document, "Latency in each part of the run", "us", lines
    )


def _ramp(document: Document, y: str, metrics: list[tuple[str, str]]) -> Plot | None:
    """Against the rate, of all parts of each together."""
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
                value = total.get(metric.removesuffix("_us"), 0.0) * 1e6
            points.append((rate, value, value, value))
        lines.append(PlotLine(name, points))
    title = "Answered beside asked for" if y == "calls/s" else "Latency against the rate"
    return Plot(title, "calls/s that were asked for", y, lines)


def _over_time(document: Document, title: str, y: str, metrics: list[tuple[str, str]]) -> Plot:
    began = document.details["stages"][0]["began"]
    lines = [
        PlotLine(
            name,
            [
                (place, row.metrics[metric], row.metrics[metric], row.metrics[metric])
                for place, row in zip(began, document.rows, strict=False)
                if metric in row.metrics
            ],
        )
        for name, metric in metrics
    ]
    last = max(began, default=0.0)
    ticks = [(value, f"{value:.3g}") for value in sorted({0.0, last / 2, last})]
    return Plot(title, "seconds since the load began", y, lines, log_x=False, log_y=y == "us", ticks_x=ticks)


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
            PlotLine(name, [(_nines(share), us, us, us) for share, us in percentiles(document, key)])
        )
    reach = max((point[0] for line in lines for point in line.points), default=0.0)
    ticks = [(_nines(share), f"{share:g} %") for share in _TICKS if _nines(share) <= reach]
    return Plot("Latency by percentile", "percentile of the calls", "us", lines, log_x=False, ticks_x=ticks)


def _nines(percentile: float) -> float:
    """Each further nine is as wide as the one before."""
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
    plots = (_throughput(document), _latency(document), _distribution(document))
    return f'<div class="plots">{"".join(plot.svg() for plot in plots)}</div>'


_SECTIONS: tuple[tuple[str, Callable[[Document], str]], ...] = (
    ("Throughput and latency", _plots),
    ("Figures", _figures),
    ("Calls", _calls),
    ("Failures", _failures),
    ("Cancelled calls", _cancelled),
)
