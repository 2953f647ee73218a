"""``mcp-actors demo``: the command, the lines of its tour, and the figures of its load."""

from __future__ import annotations

import os
import platform
import random
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import click
import trio

from mcp_actors.cli.demo.load import DemoLoad, Tally
from mcp_actors.cli.demo.tour import TOUR, Shown, stage, take_tour
from mcp_actors.cli.failures import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    reported,
    run_interruptible,
    traceback_option,
)
from mcp_actors.cli.output import echo, echo_json, safe, styled
from mcp_actors.supervision.platform import STOP_SIGNALS

__all__ = [
    "columns",
    "command",
    "figures",
    "live_table",
    "paragraph",
    "peak_memory",
    "plain_table",
    "progress_line",
    "summary",
    "tour_lines",
]


_GRACE = 15.0  # seconds for the sessions to end by themselves once the time is over
_REDRAW = 0.25  # seconds between two pictures of the table
_NEXT = """What to type next:
  mcp-actors list 'stdio:mcp-actors serve mcp_actors.examples.everything'
  mcp-actors serve mcp_actors.examples.everything --listen http://127.0.0.1:8000/mcp
  mcp-actors inspect http://127.0.0.1:8000/mcp"""
_NOTE = (
    "All sessions are opened, and call from then on. Each calls again as soon as it is answered, so latencies include "
    "waiting for a processor. A session over stdio is a child process of its own. 2 x 16 = two sessions with 16 calls "
    "in flight each."
)


@click.command("demo", short_help="Show what the engine can do, and under what load.")
@click.option(
    "--sessions", type=click.IntRange(1, 20_000), default=300, show_default=True, help="Sessions at once."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=4.0, show_default=True, help="How long they call."
)
@click.option("--seed", type=int, help="For the mixture of calls; by default another one each time.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on stdout, at the end.")
@traceback_option
def command(sessions: int, seconds: float, seed: int | None, as_json: bool, show_traceback: bool) -> None:
    """Show what the engine can do, then under what load, for real on this machine.

    First each capability once, against a server in this process, over real sockets and child processes, with a line of
    what came of it.

    Then some hundreds of sessions at once, over every binding and in both eras of the protocol, make plain calls, calls
    that report progress, and calls that are cancelled in flight. The server counts the handlers that saw their
    cancellation, and every answer is checked.

    Ctrl-C ends it early: the load with its summary, and exit code 130. Exit code 1 if there was any error. Needs no
    network.
    """
    load = DemoLoad(
        sessions, seconds, random.Random(seed := random.randrange(10**6) if seed is None else seed)
    )
    with reported(show_traceback):
        shown = run_interruptible(partial(_tour, silent=as_json), "the demo was interrupted")
        if not as_json:
            about = paragraph(f"Under load: {sessions} sessions for {seconds:g} s, seed {seed}.", columns())
            echo(f"\n{styled(about, bold=True)}\n{paragraph(_NOTE, columns())}\n")
        interrupted = trio.run(_run, load, _picture_of(load, as_json))
        if as_json:
            asked = {"seed": seed, "seconds": seconds, "interrupted": interrupted}
            echo_json(_machine() | {"tour": shown, "load": asked | figures(load.rows, load.elapsed)})
        else:
            echo(plain_table(load.rows, load.elapsed, columns()))
            echo(f"\n{summary(load.rows, load.elapsed, columns())}")
            echo(f"\n{_NEXT}")
    if interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if any(each.failed for each in shown) or any(row.failures.count for row in load.rows):
        raise click.exceptions.Exit(EXIT_FAILED)


def _machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "platform": sys.platform, "processors": os.cpu_count()}


async def _tour(silent: bool) -> list[Shown]:
    outcomes: list[Shown] = []

    def show(shown: Shown) -> None:
        outcomes.append(shown)
        if not silent:
            echo(tour_lines(shown, columns()))

    async with stage() as set_up:
        if not silent:
            about = f"What it can do, each tried just now against a server at {set_up.url}:"
            echo(f"{styled(paragraph(about, columns()), bold=True)}\n")
        await take_tour(set_up, show)
    return outcomes


def _picture_of(load: DemoLoad, silent: bool) -> Callable[[DemoLoad], Awaitable[None]]:
    if silent:
        return _show_nothing
    return _draw if sys.stdout.isatty() else _print


async def _run(load: DemoLoad, show: Callable[[DemoLoad], Awaitable[None]]) -> bool:
    """Returns whether a signal has ended it."""
    interrupted = trio.Event()
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, load, signals, nursery.cancel_scope, interrupted)
            nursery.start_soon(_bound, load, nursery.cancel_scope)
            nursery.start_soon(show, load)
            try:
                await load.run()
            finally:
                load.stop()  # stops the clock as well, whatever ended it
            nursery.cancel_scope.cancel()
    return interrupted.is_set()


async def _bound(load: DemoLoad, everything: trio.CancelScope) -> None:
    """The sessions get a grace to end by themselves; what hangs longer is counted as an error and cut off."""
    await load.stopping.wait()
    await trio.sleep(_GRACE)
    for row in load.rows:
        if row.live:
            row.failures.add(f"{row.binding}/{row.era}: {row.live} sessions did not end within {_GRACE:g} s")
    everything.cancel()


async def _stop_on_signal(
    load: DemoLoad, signals: AsyncIterator[int], everything: trio.CancelScope, interrupted: trio.Event
) -> None:
    async for _ in signals:
        if interrupted.is_set():  # the second one: no grace either
            everything.cancel()
        interrupted.set()
        load.stop()


async def _show_nothing(load: DemoLoad) -> None:
    """Draws nothing: stdout is for one JSON object."""


async def _print(load: DemoLoad) -> None:
    while True:
        await trio.sleep(1)
        echo(paragraph(progress_line(load.rows, load.elapsed), columns()))


async def _draw(load: DemoLoad) -> None:
    from rich.live import Live  # only a terminal needs it

    def picture() -> Any:
        return live_table(load.rows, load.elapsed, "Ctrl-C ends it early", columns())

    # The last picture is removed, and the whole table printed in its place.
    with Live(
        picture(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
    ) as live:
        while True:
            await trio.sleep(_REDRAW)
            live.update(picture(), refresh=True)


# -- The lines of the tour, as wide as the terminal ----------------------------------------------------

_TITLE_WIDTH = max(len(each.title) for each in TOUR) + 2
_LEAST_BESIDE = 60  # columns; in fewer the title is above its line, not beside it


def columns() -> int:
    """The width of the terminal, or of the variable COLUMNS; 80 where there is neither."""
    return shutil.get_terminal_size().columns


def paragraph(text: str, width: int) -> str:
    """The text, broken between words."""
    return _filled(text, width, "")


def tour_lines(shown: Shown, width: int) -> str:
    """The title of a demonstration, and what came of it."""
    colour = "red" if shown.failed else None
    text = safe(shown.text)
    if width < _LEAST_BESIDE:
        return "\n".join([styled(shown.title, bold=True), styled(_filled(text, width, "  "), fg=colour)])
    margin = " " * _TITLE_WIDTH
    beside = _filled(text, width, margin).removeprefix(margin)
    return styled(shown.title.ljust(_TITLE_WIDTH), bold=True) + styled(beside, fg=colour)


def _filled(text: str, width: int, margin: str) -> str:
    lines: Iterable[str] = textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return "\n".join(lines)


# -- The figures of the load: a live table on a terminal, lines elsewhere, and a JSON value ------------

if sys.platform != "win32":
    import resource


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
    return row.latencies.quantile(percent / 100) * 1000 if row.latencies.count else None


@attrs.frozen
class FiguresColumn:
    """A column of the table as text."""

    title: str
    width: int
    cells: list[str]
    """Returns a cell for each row, and the sum."""


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
            lines[at] = styled(lines[at], fg="red")
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
    said += [styled(f"  {text}", fg="red") for row in rows for text in row.failures.examples]
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
    """MiB that this process (without its children) had resident at most; ``None`` on Windows."""
    if sys.platform != "win32":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // (1024 * 1024) if sys.platform == "darwin" else peak // 1024
    return None
