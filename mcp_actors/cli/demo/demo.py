"""``mcp-actors demo``: the command, the lines of its tour, and the figures of its load.

Both fit a terminal of 80 columns and 24 rows: first the tour, under which a line says how far the load is, and then the
figures with what to type next. So nothing scrolls away while a person reads.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import click
import trio

from mcp_actors.cli.arguments import NumberRange
from mcp_actors.cli.demo.load import DemoLatencies, DemoLoad, Tally
from mcp_actors.cli.demo.tour import TOUR, Shown, stage, take_tour
from mcp_actors.cli.failures import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    reported,
    run_interruptible,
    traceback_option,
)
from mcp_actors.cli.output import echo, echo_json, overwrite, safe, styled
from mcp_actors.supervision.histogram import Histogram
from mcp_actors.supervision.platform import STOP_SIGNALS, join_words

__all__ = [
    "columns",
    "command",
    "figures",
    "next_steps",
    "paragraph",
    "peak_memory",
    "plain_table",
    "progress_line",
    "summary",
    "tour_lines",
]


_GRACE = 15.0  # seconds for the sessions to end by themselves once the time is over
_REDRAW = 0.25  # seconds between two states of the line below the tour


@click.command("demo", short_help="Show what the engine can do, and under what load.")
@click.option(
    "--sessions", type=click.IntRange(1, 20_000), default=300, show_default=True, help="Sessions at once."
)
@click.option(
    "--seconds", type=NumberRange(0.1), default=4.0, show_default=True, help="How long all of them call."
)
@click.option("--seed", type=int, help="For the mixture of calls; by default another one each time.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on stdout, at the end.")
@traceback_option
def command(sessions: int, seconds: float, seed: int | None, as_json: bool, show_traceback: bool) -> None:
    """Show what the engine can do, then under what load, for real on this machine.

    First each capability once, against a server in this process, over real sockets and child processes, with a line of
    what came of it.

    Then some hundreds of sessions, over every binding and in both eras of the protocol: one call at a time while the
    others are idle, a few sessions at a steady rate, and then all at once, with plain calls, calls that report
    progress, and calls that are cancelled in flight. The server counts the handlers that saw their cancellation, and
    every answer is checked.

    Ctrl-C ends it early: the load with its summary, and exit code 130. Exit code 1 if there was any error. Needs no
    network.
    """
    load = DemoLoad(
        sessions, seconds, random.Random(seed := random.randrange(10**6) if seed is None else seed)
    )
    with reported(show_traceback):
        shown = run_interruptible(partial(_tour, silent=as_json), "the demo was interrupted")
        if not as_json:
            about = paragraph(f"Under load: {sessions:,} sessions, seed {seed}.", columns())
            echo(f"\n{styled(about, bold=True)}\n{paragraph(_note(load), columns())}")
        interrupted = trio.run(_run, load, _picture_of(load, as_json))
        if as_json:
            asked = {"seed": seed, "seconds": seconds, "interrupted": interrupted}
            echo_json(_machine() | {"tour": shown, "load": asked | figures(load)})
        else:
            echo(f"\n{plain_table(load, columns())}\n\n{summary(load, columns())}\n\n{next_steps()}")
    if interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if any(each.failed for each in shown) or any(row.failures.count for row in load.rows):
        raise click.exceptions.Exit(EXIT_FAILED)


def _note(load: DemoLoad) -> str:
    return (
        f"First one call at a time over each binding; then {load.steady_sessions} sessions with {load.steady_rate} "
        "calls a second in all; then all, each again as soon as it is answered. 2 x 16 = two sessions, 16 calls in "
        "flight each."
    )


def next_steps() -> str:
    """Commands that work in any folder; where ``mcp-actors`` is not found, by this Python."""
    found = shutil.which("mcp-actors") is not None
    command = "mcp-actors" if found else join_words([sys.executable, "-P", "-m", "mcp_actors"])
    server = f"stdio:{command} serve mcp_actors.examples.filesystem -- ."
    lines = ["What to type next, to look into the folder that you are in:"]
    if sys.platform == "win32":  # each shell there has variables of its own
        quoted = f'"{server}"'
    else:
        quoted = '"$SERVER"'
        lines.append(f"export SERVER={shlex.quote(server)}")
    return "\n  ".join(
        [
            *lines,
            f"{command} list {quoted}",
            f"{command} call {quoted} list_directory",
            f"{command} inspect {quoted}",
        ]
    )


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
            about = f"What it can do, each tried just now at {set_up.url}:"
            echo(f"{styled(paragraph(about, columns()), bold=True)}\n")
        await take_tour(set_up, show)
    return outcomes


def _picture_of(load: DemoLoad, silent: bool) -> Callable[[DemoLoad], Awaitable[None]]:
    if silent:
        return _show_nothing
    return _overwrite if sys.stdout.isatty() and sys.stderr.isatty() else _print


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
        echo(paragraph(progress_line(load), columns()))


async def _overwrite(load: DemoLoad) -> None:
    width = 0
    try:
        while True:
            line = progress_line(load)[: columns() - 1]
            width = max(width, len(line))
            overwrite(line, width)
            await trio.sleep(_REDRAW)
    finally:
        overwrite("", width)


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


# -- The figures of the load: a line while it runs, a table at its end, and a JSON value ---------------

if sys.platform != "win32":
    import resource


# title in two lines, least width, cell of a row. With one space between them they fit 80 columns.
_COLUMNS: tuple[tuple[str, str, int, Callable[[DemoLoad, Tally], str]], ...] = (
    ("", "binding, era", 13, lambda _, row: f"{row.binding} {row.era}".strip()),
    ("alone", "p50 ms", 6, lambda _, row: _in_ms(row.latencies.alone, 50)),
    ("alone", "p99 ms", 6, lambda _, row: _in_ms(row.latencies.alone, 99)),
    ("{rate}/s", "p50 ms", 6, lambda _, row: _in_ms(row.latencies.steady, 50)),
    ("{rate}/s", "p99 ms", 6, lambda _, row: _in_ms(row.latencies.steady, 99)),
    ("", "sessions", 8, lambda _, row: _sessions(row)),
    ("all busy", "calls/s", 8, lambda load, row: f"{_per_second(row, load.elapsed):,.0f}"),
    ("", "cancelled", 9, lambda _, row: f"{row.cancelled:,}"),
    ("", "errors", 6, lambda _, row: f"{row.failures.count:,}"),
)


def _sessions(row: Tally) -> str:
    """``2 x 16``: two sessions, each with 16 calls in flight; ``12/148``: not all are open yet."""
    opened = f"{row.opened:,}" if row.opened == row.planned else f"{row.opened:,}/{row.planned:,}"
    return f"{opened} x {row.calls_at_once}" if row.calls_at_once > 1 else opened


def _in_ms(latencies: Histogram, percent: float) -> str:
    milliseconds = _milliseconds(latencies, percent)
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.{2 if milliseconds < 10 else 1 if milliseconds < 100 else 0}f}"


def _milliseconds(latencies: Histogram, percent: float) -> float | None:
    return latencies.quantile(percent / 100) * 1000 if latencies.count else None


@attrs.frozen
class FiguresColumn:
    """A column of the table as text."""

    width: int
    cells: list[str]
    """Both lines of the title, a cell for each row, and the sum."""


def _blocks(load: DemoLoad, width: int) -> list[list[FiguresColumn]]:
    """The columns in as few tables as fit, each of which begins with the names of the rows."""
    columns = []
    for above, title, least, cell in _COLUMNS:
        figures = [cell(load, row) for row in (*load.rows, Tally.total(load.rows))]
        cells = [above.format(rate=load.steady_rate), title, *figures]
        columns.append(FiguresColumn(max(least, *map(len, cells)), cells))
    name, *others = columns
    blocks = [[name]]
    for column in others:
        if len(blocks[-1]) > 1 and sum(each.width + 1 for each in blocks[-1]) + column.width > width:
            blocks.append([name])
        blocks[-1].append(column)
    return blocks


def progress_line(load: DemoLoad) -> str:
    """The state of the run in one line."""
    total = Tally.total(load.rows)
    state = f"{total.live:,} sessions live, {load.phase}"
    if load.began is not None:
        state += f": {load.elapsed:.1f} s, {total.calls:,} calls, {total.failures.count:,} errors"
    return state


def plain_table(load: DemoLoad, width: int) -> str:
    """The rows and their sum as text: one table, or several with a part of the columns each where it is narrow."""
    return "\n\n".join(_plain_block(block, load.rows) for block in _blocks(load, width))


def _plain_block(block: Sequence[FiguresColumn], rows: Sequence[Tally]) -> str:
    lines = [_plain_line(block, list(cells)) for cells in zip(*(each.cells for each in block), strict=True)]
    for at, row in enumerate(rows, 2):
        if row.failures.count:
            lines[at] = styled(lines[at], fg="red")
    return "\n".join(lines)


def _plain_line(block: Sequence[FiguresColumn], cells: Sequence[str]) -> str:
    name, *figures = cells
    right = (f"{cell:>{column.width}}" for cell, column in zip(figures, block[1:], strict=True))
    return " ".join([name.ljust(block[0].width), *right])


def summary(load: DemoLoad, width: int) -> str:
    """The figures in words, then the first errors of each row."""
    rows, total = load.rows, Tally.total(load.rows)
    missing = total.cancelled - total.confirmed
    unconfirmed = f" ({missing:,} not)" if missing else ""
    peak = peak_memory()
    memory = "" if peak is None else f", peak memory {peak} MiB"
    lines = [
        _latencies_in_words(total.latencies, load.steady_rate),
        f"{total.opened:,} sessions: {_per_second(total, load.elapsed):,.0f} calls/s on {os.cpu_count()} processors, "
        f"{total.failures.count:,} errors{memory}",
        f"{total.cancelled:,} calls cancelled in flight, {total.confirmed:,} confirmed by their handlers{unconfirmed}",
    ]
    said = [paragraph(line, width) for line in lines]
    said += [styled(f"  {text}", fg="red") for row in rows for text in row.failures.examples]
    return "\n".join(said)


def _latencies_in_words(latencies: DemoLatencies, steady_rate: int) -> str:
    """Returns the measured latencies in words; a load that was ended early has only a part of them."""
    named = (
        (latencies.alone, "alone"),
        (latencies.steady, f"at {steady_rate} calls/s"),
        (latencies.busy, "with all busy"),
    )
    said = [f"{_in_ms(measured, 50)} ms {name}" for measured, name in named if measured.count]
    return f"p50 of a call: {', '.join(said)}" if said else "no latency was measured yet"


def figures(load: DemoLoad) -> dict[str, Any]:
    """The rows, their sum, the first errors of each row, and the peak memory of this process, as JSON."""
    return {
        "elapsed_seconds": round(load.elapsed, 3),
        "steady_calls_per_second": load.steady_rate,
        "rows": [_row_figures(row, load.elapsed) for row in load.rows],
        "total": _row_figures(Tally.total(load.rows), load.elapsed),
        "error_examples": [text for row in load.rows for text in row.failures.examples],
        "peak_memory_mib": peak_memory(),
    }


def _row_figures(row: Tally, seconds: float) -> dict[str, Any]:
    latencies = {
        f"{prefix}p{percent}_ms": _milliseconds(measured, percent)
        for prefix, measured in (
            ("alone_", row.latencies.alone),
            ("steady_", row.latencies.steady),
            ("", row.latencies.busy),
        )
        for percent in (50, 99)
    }
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
