"""The options of ``mcp-actors bench``."""

from __future__ import annotations

import importlib.util
import os
import random
import time
from pathlib import Path
from typing import Any

import click

from mcp_actors.bench.calls import PlannedCall, read_calls
from mcp_actors.bench.plan import LoadPlan, Stage, ramp_stages
from mcp_actors.cli.bench.live import LoadView
from mcp_actors.cli.bench.running import run_process
from mcp_actors.cli.bench.target import look_at
from mcp_actors.cli.bench.thresholds import Threshold, parse_threshold
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import EXIT_CROSSED, WrongUsage, reported, traceback_option
from mcp_actors.cli.sections import BENCH, CommandWithSections
from mcp_actors.printable import safe

__all__ = ["command"]

_MOST_SESSIONS, _MOST_WINDOW, _MOST_RATE, _MOST_SECONDS = 20_000, 10_000, 1_000_000.0, 86_400.0
_MOST_CALLS = 10**9


class _BenchCommand(CommandWithSections):
    """With ``--compare`` nothing is run, and there is neither a URL nor a tool."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if "--compare" in args and not {"-h", "--help"} & set(args):
            from mcp_actors.cli.bench.comparing import compare_command  # needs what a load does not

            rest = [each for each in args if each != "--compare"]
            return compare_command.make_context("bench --compare", rest, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _ramp(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, _, high = text.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        raise click.UsageError(f"--ramp {text!r}: write two rates, such as 100:10000") from None
    if not 0 < found[0] < found[1] <= _MOST_RATE:
        raise click.UsageError(f"--ramp {text!r}: the second rate is to be above the first")
    return found


def _thresholds(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> list[Threshold]:
    return [parse_threshold(text) for text in texts]


@click.command("bench", cls=_BenchCommand, sections=BENCH, short_help="Put a load on any server.")
@client_options
@click.argument("tool", required=False)
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option(
    "--window", type=click.IntRange(1, _MOST_WINDOW), help="Calls in flight, in all sessions together."
)
@click.option(
    "--rate", type=click.FloatRange(0, _MOST_RATE, min_open=True), help="Calls a second, whatever comes back."
)
@click.option("--ramp", callback=_ramp, metavar="FROM:TO", help="Ever higher rates; finds the knee.")
@click.option(
    "--sessions", type=click.IntRange(1, _MOST_SESSIONS), default=1, show_default=True, help="Connections."
)
@click.option(
    "--duration",
    type=click.FloatRange(0.1, _MOST_SECONDS),
    metavar="SECONDS",
    help="Of the load.  [default: 10]",
)
@click.option("--calls", "count", type=click.IntRange(1, _MOST_CALLS), help="End after so many calls.")
@click.option(
    "--warm-up",
    type=click.FloatRange(0, _MOST_SECONDS),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Of load that is in no figure.",
)
@click.option(
    "--cancel",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Of the calls, cancelled in flight.",
)
@click.option(
    "--calls-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Weighted calls, or a recording.",
)
@click.option("--seed", type=int, help="For what is drawn; by default another one each time.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there."
)
@click.option(
    "--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots."
)
@click.option(
    "--fail-if",
    "limits",
    multiple=True,
    callback=_thresholds,
    metavar="LIMIT",
    help="Exit with 6 if crossed: p99>50ms, errors>0, throughput<1000.",
)
@click.option(
    "--compare", is_flag=True, expose_value=False, help="--compare A.json B.json: no load, two results."
)
@click.option("-q", "--quiet", is_flag=True, help="Show nothing while it runs.")
@traceback_option
def command(
    connection: ConnectionOptions,
    tool: str | None,
    arguments: tuple[str, ...],
    calls_file: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    limits: list[Threshold],
    quiet: bool,
    show_traceback: bool,
    seed: int | None,
    sessions: int,
    warm_up: float,
    cancel: float,
    **load: Any,
) -> None:
    """Call a tool of any server many times, and say how fast it answers.

    By default 16 calls are kept in flight; --window has another number. With --rate calls are sent at that rate
    whatever the server does. A latency counts from when a call was meant to be sent. What fails is counted by its kind,
    and ends the load only if everything does. Ctrl-C ends it early, with the figures.

    \b
    mcp-actors bench 'stdio:python weather.py' forecast city=Berlin days=3
    mcp-actors bench http://127.0.0.1:8000/mcp echo text=hi --rate 500 --fail-if 'p99>50ms'
    """
    with reported(show_traceback):
        if importlib.util.find_spec("hdrh") is None:
            raise WrongUsage("a package is missing: pip install 'mcp-actors[bench]'")
        stages = _stages(**load)
        if load["ramp"] is None and any(limit.figure == "knee" for limit in limits):
            raise WrongUsage("--fail-if knee is for a ramp: give --ramp FROM:TO")
        _require_writable(json_file, html_file)
        calls = _calls(tool, arguments, calls_file)
        target = look_at(connection, tool, arguments, calls)
        plan = LoadPlan(
            connection.url,
            "legacy" if target.era == "legacy" else "modern",
            target.version,
            target.calls,
            stages,
            sessions,
            warm_up,
            cancel,
            connection.timeout,
            random.randrange(10**6) if seed is None else seed,
            target.through_client,
            target.login,
            dict(connection.headers),
        )
        crossed = _run(plan, target.server, LoadView(quiet), json_file, html_file, limits)
    if crossed:
        for line in crossed:
            click.secho(safe(f"crossed: {line}"), fg="red", err=True)
        raise click.exceptions.Exit(EXIT_CROSSED)


def _require_writable(*files: Path | None) -> None:
    """Whoever waited for the figures shall get them."""
    for file in filter(None, files):
        if not file.parent.is_dir():
            raise WrongUsage(f"{file} cannot be written: there is no folder {file.parent}")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise WrongUsage(f"{file} cannot be written: you have no right to")


def _run(
    plan: LoadPlan,
    server: str,
    view: LoadView,
    json_file: Path | None,
    html_file: Path | None,
    limits: list[Threshold],
) -> list[str]:
    """Returns the limits that were crossed."""
    # Only they need the package of the extra.
    from mcp_actors.bench.documents import document_of, figures
    from mcp_actors.cli.bench.page import page
    from mcp_actors.cli.bench.text import summary_lines

    started = time.monotonic()
    with view.shown():
        result = run_process(plan, view.report)
    document = document_of(plan, server, result, time.monotonic() - started)
    for line in summary_lines(document):
        click.echo(line)
    if json_file is not None:
        document.write(json_file)
    if html_file is not None:
        html_file.write_text(page(document), "utf-8")
    found = figures(document.details)
    return [line for limit in limits if (line := limit.crossed(found))]


def _stages(
    *,
    window: int | None,
    rate: float | None,
    ramp: tuple[float, float] | None,
    duration: float | None,
    count: int | None,
) -> list[Stage]:
    if (window is not None) + (rate is not None) + (ramp is not None) > 1:
        raise click.UsageError("--window, --rate and --ramp exclude each other")
    if ramp is not None:
        if count is not None:
            raise click.UsageError("--ramp takes --duration, and not --calls")
        return ramp_stages(*ramp, duration or 30.0)
    seconds = duration or (_MOST_SECONDS if count else 10.0)
    if rate is not None:
        return [Stage(seconds, rate=rate, calls=count or 0)]
    return [Stage(seconds, window=window or 16, calls=count or 0)]


def _calls(tool: str | None, arguments: tuple[str, ...], file: Path | None) -> list[PlannedCall]:
    if (tool is None) == (file is None):
        raise click.UsageError("name a TOOL, or give --calls-file")
    if file is None:
        return []
    if arguments:
        raise click.UsageError("the arguments of --calls-file stand in the file")
    try:
        return read_calls(file)
    except (OSError, ValueError, KeyError) as error:
        raise WrongUsage(f"{file}: {error}") from error
