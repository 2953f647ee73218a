"""The output of the demo: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from mcp_actors.cli.demo_figures import Tally

if sys.platform != "win32":
    import resource

__all__ = ["peak_memory", "plain_table", "progress_line", "summary", "table"]

# title, width, cell of a row after `seconds`. With one space between them they fill 80 columns at most.
_COLUMNS: tuple[tuple[str, int, Callable[[Tally, float], str]], ...] = (
    ("binding, era", 13, lambda row, _: f"{row.binding} {row.era}"),
    ("sessions", 8, lambda row, _: _sessions(row)),
    ("calls", 7, lambda row, _: f"{row.calls:,}"),
    ("calls/s", 7, lambda row, seconds: f"{row.calls / seconds:,.0f}" if seconds else "-"),
    ("cancelled", 9, lambda row, _: f"{row.cancelled:,}"),
    ("confirmed", 9, lambda row, _: f"{row.confirmed:,}"),
    ("p50 ms", 6, lambda row, _: _milliseconds(row, 50)),
    ("p99 ms", 6, lambda row, _: _milliseconds(row, 99)),
    ("errors", 6, lambda row, _: f"{row.failures.count:,}"),
)


def _sessions(row: Tally) -> str:
    """``2 x 16``: two sessions, each with 16 calls in flight; ``12/148``: not all are open yet."""
    opened = f"{row.opened:,}" if row.opened == row.planned else f"{row.opened:,}/{row.planned:,}"
    return f"{opened} x {row.calls_at_once}" if row.calls_at_once > 1 else opened


def _milliseconds(row: Tally, percent: float) -> str:
    seconds = row.latencies.percentile(percent)
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def table(rows: Iterable[Tally], seconds: float, title: str) -> Any:
    """The rows and their sum as a rich table."""
    from rich.table import Table  # only a terminal needs it

    rows = list(rows)
    drawn = Table(
        title=title, title_justify="left", show_footer=True, box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    total = Tally.total(rows)
    for name, width, cell in _COLUMNS:
        side: Any = "left" if name == _COLUMNS[0][0] else "right"
        drawn.add_column(name, cell(total, seconds), justify=side, min_width=width, no_wrap=True)
    for row in rows:
        style = "red" if row.failures.count else None
        drawn.add_row(*(cell(row, seconds) for _, _, cell in _COLUMNS), style=style)
    return drawn


def progress_line(rows: Iterable[Tally], seconds: float) -> str:
    """The state of the run in one line."""
    total = Tally.total(rows)
    return (
        f"{seconds:5.1f} s  {total.live:,} sessions live  {total.calls:,} calls  {total.cancelled:,} cancelled  "
        f"p50 {_milliseconds(total, 50)} ms  p99 {_milliseconds(total, 99)} ms  {total.failures.count:,} errors"
    )


def plain_table(rows: Iterable[Tally], seconds: float) -> str:
    """The rows and their sum as text."""
    rows = list(rows)
    lines = [[name for name, _, _ in _COLUMNS]]
    lines += [[cell(row, seconds) for _, _, cell in _COLUMNS] for row in [*rows, Tally.total(rows)]]
    return "\n".join(_plain_line(cells) for cells in lines)


def _plain_line(cells: list[str]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, (_, width, _) in zip(cells, _COLUMNS, strict=True))
    return " ".join([first.strip().ljust(len(first)), *others])


def summary(rows: Iterable[Tally], seconds: float) -> str:
    """The last lines: the figures in words, then the first errors of each row."""
    rows = list(rows)
    total = Tally.total(rows)
    missing = total.cancelled - total.confirmed
    unconfirmed = f" ({missing:,} not)" if missing else ""
    lines = [
        f"{total.opened:,} sessions, {total.calls:,} calls in {seconds:.1f} s: {total.calls / seconds:,.0f} calls/s, "
        f"p50 {_milliseconds(total, 50)} ms, p99 {_milliseconds(total, 99)} ms",
        f"{total.cancelled:,} calls cancelled in flight, {total.confirmed:,} confirmed by their handlers{unconfirmed}",
        f"{total.reports:,} reports of progress, {total.failures.count:,} errors{_memory()}",
    ]
    lines += [click.style(f"  {text}", fg="red") for row in rows for text in row.failures.examples]
    return "\n".join(lines)


def _memory() -> str:
    peak = peak_memory()
    return "" if peak is None else f", peak memory {peak} MiB"


def peak_memory() -> int | None:
    """MiB that this process (without its children) had resident at most; ``None`` on Windows, which is not asked."""
    if sys.platform != "win32":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (1024 * 1024) if sys.platform == "darwin" else peak // 1024
    return None
