"""``mcp-actors demo``."""

from __future__ import annotations

import os
import platform
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import click
import trio

from mcp_actors.cli.demo_load import DemoLoad
from mcp_actors.cli.demo_stage import stage
from mcp_actors.cli.demo_table import figures, live_table, plain_table, progress_line, summary
from mcp_actors.cli.demo_text import columns, paragraph, tour_lines
from mcp_actors.cli.demo_tour import Shown, take_tour
from mcp_actors.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, reported, traceback_option
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.output import echo_json
from mcp_actors.platform.signals import STOP_SIGNALS

__all__ = ["command"]

_GRACE = 15.0  # seconds for the sessions to end by themselves once the time is over
_REDRAW = 0.25  # seconds between two pictures of the table
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
            click.echo(f"\n{click.style(about, bold=True)}\n{paragraph(_NOTE, columns())}\n")
        interrupted = trio.run(_run, load, _picture_of(load, as_json))
        if as_json:
            asked = {"seed": seed, "seconds": seconds, "interrupted": interrupted}
            echo_json(_machine() | {"tour": shown, "load": asked | figures(load.rows, load.elapsed)})
        else:
            click.echo(plain_table(load.rows, load.elapsed, columns()))
            click.echo(f"\n{summary(load.rows, load.elapsed, columns())}")
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
            click.echo(tour_lines(shown, columns()))

    async with stage() as set_up:
        if not silent:
            about = f"What it can do, each tried just now against a server at {set_up.url}:"
            click.echo(f"{click.style(paragraph(about, columns()), bold=True)}\n")
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
                load.stop()  # the clock as well, whatever ended it
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
        click.echo(paragraph(progress_line(load.rows, load.elapsed), columns()))


async def _draw(load: DemoLoad) -> None:
    from rich.live import Live  # only a terminal needs it

    def picture() -> Any:
        return live_table(load.rows, load.elapsed, "Ctrl-C ends it early", columns())

    # The last picture is taken away: the whole table is printed in its place.
    with Live(
        picture(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
    ) as live:
        while True:
            await trio.sleep(_REDRAW)
            live.update(picture(), refresh=True)
