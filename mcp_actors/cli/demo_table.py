"""The figures of the load: a live table on a terminal, lines elsewhere, and a JSON value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import click

from mcp_actors.cli.demo_figures import Tally
from mcp_actors.cli.demo_text import paragraph

if sys.platform != "win32":
    import resource

__all__ = ["figures", "live_table", "peak_memory", "plain_table", "progress_line", "summary"]

# title, least width, cell of a row after `seconds`. With one space between them they fill 80 columns.
_COLUMNS: tuple[tuple[str, int, Callable[[Tally, float], str]], ...] = (
    ("binding, era", 13, lambda row, _: f"{row.binding} {row.era}".strip()),
    ("sessions", 8, lambda row, _: _sessions(row)),
    ("calls", 7, lambda row, _: f"{row.calls:,}"),
    ("calls/s", 7, lambda row, seconds: f"{row.calls / seconds:,.0f}" if seconds else "-"),
    ("cancelled", 9, lambda row, _: f"{row.cancelled:,}"),
    ("confirmed", 9, lambda row, _: f"{row.confirmed:,}"),
    ("p50 ms", 6, lambda row, _: _in_ms(row, 50)),
    ("p99 ms", 6, lambda row, _: _in_ms(row, 99)),
    ("errors", 6, lambda row, _: f"{row.failures.count:,}"),
)


def _sessions(row: Tally) -> str:
    """``2 x 16``: two sessions, each with 16 calls in flight; ``12/148``: not all are open yet."""
    opened = f"{row.opened:,}" if row.opened == row.planned else f"{row.opened:,}/{row.planned:,}"
    return f"{opened} x {row.calls_at_once}" if row.calls_at_once > 1 else opened


def _in_ms(row: Tally, percent: float) -> str:
    milliseconds = _milliseconds(row, percent)
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.1f}"


def _milliseconds(row: Tally, percent: float) -> float | None:
    seconds = row.latencies.percentile(percent)
    return None if seconds is None else seconds * 1000


@attrs.frozen
class FiguresColumn:
    """A column of the table as text."""

    title: str
    width: int
    cells: list[str]
    """One for each row, and the sum."""


def _blocks(rows: Sequence[Tally], seconds: float, width: int) -> list[list[FiguresColumn]]:
    """The columns in as few tables as fit, each of which begins with the names of the rows."""
    lines = [*rows, Tally.total(rows)]
    columns = []
    for title, least, cell in _COLUMNS:
        cells = [cell(row, seconds) for row in lines]
        columns.append(FiguresColumn(title, max(least, *map(len, cells)), cells))
    name, *others = columns
    blocks = [[name]]
    for column in others:
        if len(blocks[-1]) > 1 and sum(each.width + 1 for each in blocks[-1]) + column.width > width:
            blocks.append([name])
        blocks[-1].append(column)
    return blocks


def live_table(rows: Sequence[Tally], seconds: float, title: str, width: int) -> Any:
    """The rows and their sum as a rich table, with as many of the columns as fit."""
    from rich.table import Table  # only a terminal needs it

    drawn = Table(
        title=title, title_justify="left", show_footer=True, box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    block = _blocks(rows, seconds, width)[0]
    for column in block:
        side: Any = "left" if column is block[0] else "right"
        drawn.add_column(column.title, column.cells[-1], justify=side, min_width=column.width, no_wrap=True)
    for at, row in enumerate(rows):
        drawn.add_row(*(each.cells[at] for each in block), style="red" if row.failures.count else None)
    return drawn


def progress_line(rows: Iterable[Tally], seconds: float) -> str:
    """The state of the run in one line."""
    total = Tally.total(rows)
    return (
        f"{seconds:4.1f} s  {total.live:,} sessions live  {total.calls:,} calls  p99 {_in_ms(total, 99)} ms  "
        f"{total.failures.count:,} errors"
    )


def plain_table(rows: Sequence[Tally], seconds: float, width: int) -> str:
    """The rows and their sum as text: one table, or several with a part of the columns each where it is narrow."""
    return "\n\n".join(_plain_block(block, rows) for block in _blocks(rows, seconds, width))


def _plain_block(block: Sequence[FiguresColumn], rows: Sequence[Tally]) -> str:
    lines = [_plain_line(block, [each.title for each in block])]
    lines += [_plain_line(block, list(cells)) for cells in zip(*(each.cells for each in block), strict=True)]
    for at, row in enumerate(rows, 1):
        if row.failures.count:
            lines[at] = click.style(lines[at], fg="red")
    return "\n".join(lines)


def _plain_line(block: Sequence[FiguresColumn], cells: Sequence[str]) -> str:
    name, *figures = cells
    right = (f"{cell:>{column.width}}" for cell, column in zip(figures, block[1:], strict=True))
    return " ".join([name.ljust(block[0].width), *right])


def summary(rows: Sequence[Tally], seconds: float, width: int) -> str:
    """The last lines: the figures in words, then the first errors of each row."""
    total = Tally.total(rows)
    missing = total.cancelled - total.confirmed
    unconfirmed = f" ({missing:,} not)" if missing else ""
    peak = peak_memory()
    memory = "" if peak is None else f", peak memory {peak} MiB"
    lines = [
        f"{total.opened:,} sessions, {total.calls:,} calls in {seconds:.1f} s: {_per_second(total, seconds):,.0f} "
        f"calls/s, p50 {_in_ms(total, 50)} ms, p99 {_in_ms(total, 99)} ms",
        f"{total.cancelled:,} calls cancelled in flight, {total.confirmed:,} confirmed by their handlers{unconfirmed}",
        f"{total.reports:,} reports of progress, {total.failures.count:,} errors{memory}",
    ]
    said = [paragraph(line, width) for line in lines]
    said += [click.style(f"  {text}", fg="red") for row in rows for text in row.failures.examples]
    return "\n".join(said)


def figures(rows: Sequence[Tally], seconds: float) -> dict[str, Any]:
    """The rows, their sum, the first errors of each row, and the peak memory of this process, as JSON."""
    return {
        "elapsed_seconds": round(seconds, 3),
        "rows": [_row_figures(row, seconds) for row in rows],
        "total": _row_figures(Tally.total(rows), seconds),
        "error_examples": [text for row in rows for text in row.failures.examples],
        "peak_memory_mib": peak_memory(),
    }


def _row_figures(row: Tally, seconds: float) -> dict[str, Any]:
    latencies = {f"p{percent}_ms": _milliseconds(row, percent) for percent in (50, 99)}
    return {
        "binding": row.binding,
        "era": row.era or "all",
        "sessions": row.opened,
        "calls_at_once": row.calls_at_once,
        "calls": row.calls,
        "calls_per_second": round(_per_second(row, seconds), 1),
        "cancelled": row.cancelled,
        "confirmed": row.confirmed,
        "progress_reports": row.reports,
        "errors": row.failures.count,
        **{name: None if value is None else round(value, 3) for name, value in latencies.items()},
    }


def _per_second(row: Tally, seconds: float) -> float:
    return row.calls / seconds if seconds else 0.0


def peak_memory() -> int | None:
    """MiB that this process (without its children) had resident at most; ``None`` on Windows, which is not asked."""
    if sys.platform != "win32":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (1024 * 1024) if sys.platform == "darwin" else peak // 1024
    return None
