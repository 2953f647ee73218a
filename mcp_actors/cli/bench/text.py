"""A run as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mcp_actors.bench.documents import knee
from mcp_actors.bench.results import Document
from mcp_actors.bench.statistics import interval
from mcp_actors.printable import safe

__all__ = [
    "call_rows",
    "cancellation_text",
    "figure_rows",
    "milliseconds",
    "summary_lines",
    "summary_sentence",
]

_MOST_LINES = 20


def milliseconds(seconds: float) -> str:
    """Returns a duration with three digits that mean something."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def summary_sentence(document: Document) -> str:
    """Returns what was measured and what came of it, in one sentence."""
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
        failed = f"{stage['failed']:,}" + ("" if stage["held"] else "  not held")
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
