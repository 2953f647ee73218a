"""``mcp-actors demo``."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click
import trio

from mcp_actors.cli.demo_load import Load
from mcp_actors.cli.demo_table import plain_table, progress_line, summary, table
from mcp_actors.cli.failures import EXIT_FAILED, reported, traceback_option
from mcp_actors.platform.signals import STOP_SIGNALS

__all__ = ["command"]

_GRACE = 15.0  # seconds for the sessions to end by themselves once the time is over
_REDRAW = 0.25  # seconds between two pictures of the table
_NOTE = """\
Each session calls again as soon as it is answered: latencies include waiting
for a processor. A session over stdio is a child process of its own.
2 x 16 = two sessions with 16 calls in flight each."""


@click.command("demo", short_help="Run the engine for real.")
@click.option(
    "--sessions", type=click.IntRange(1, 20_000), default=300, show_default=True, help="Sessions at once."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=8.0, show_default=True, help="How long they call."
)
@click.option("--seed", type=int, help="For the mixture of calls; by default another one each time.")
@traceback_option
def command(sessions: int, seconds: float, seed: int | None, show_traceback: bool) -> None:
    """Run the engine for real on this machine.

    Some hundreds of sessions at once, over every binding and in both eras of the protocol, make plain calls, calls
    that report progress, and calls that are cancelled in flight. The server counts the handlers that saw their
    cancellation, and every answer is checked. Ctrl-C ends it early, with the summary. Exit code 1 if there was any
    error. Needs no network.
    """
    seed = random.randrange(10**6) if seed is None else seed
    load = Load(sessions, seconds, random.Random(seed))
    click.echo(f"{sessions} sessions for {seconds:g} s, seed {seed}.\n{_NOTE}")
    with reported(show_traceback):
        trio.run(_run, load, _draw if sys.stdout.isatty() else _print)
        if not sys.stdout.isatty():
            click.echo(plain_table(load.rows, load.elapsed))
        click.echo(summary(load.rows, load.elapsed))
    if any(row.failures.count for row in load.rows):
        raise click.exceptions.Exit(EXIT_FAILED)


async def _run(load: Load, show: Callable[[Load], Awaitable[None]]) -> None:
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, load, signals, nursery.cancel_scope)
            nursery.start_soon(_bound, load, nursery.cancel_scope)
            nursery.start_soon(show, load)
            try:
                await load.run()
            finally:
                load.stop()  # the clock as well, whatever ended it
            nursery.cancel_scope.cancel()


async def _bound(load: Load, everything: trio.CancelScope) -> None:
    """The sessions get a grace to end by themselves; what hangs longer is counted as an error and cut off."""
    await load.stopping.wait()
    await trio.sleep(_GRACE)
    for row in load.rows:
        if row.live:
            row.failures.add(f"{row.binding}/{row.era}: {row.live} sessions did not end within {_GRACE:g} s")
    everything.cancel()


async def _stop_on_signal(load: Load, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
    async for _ in signals:
        if load.stopping.is_set():  # the second one: no grace either
            everything.cancel()
        load.stop()


async def _print(load: Load) -> None:
    while True:
        await trio.sleep(1)
        click.echo(progress_line(load.rows, load.elapsed))


async def _draw(load: Load) -> None:
    from rich.live import Live  # only a terminal needs it

    def picture(title: str = "mcp-actors demo, Ctrl-C ends it early") -> Any:
        return table(load.rows, load.elapsed, title)

    with Live(picture(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        try:
            while True:
                await trio.sleep(_REDRAW)
                live.update(picture(), refresh=True)
        finally:
            live.update(picture("mcp-actors demo"), refresh=True)
