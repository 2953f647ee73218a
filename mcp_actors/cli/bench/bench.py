"""``mcp-actors bench``: its options, the process that makes the load, and the display while it runs."""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import click

from mcp_actors.cli.arguments import NumberRange
from mcp_actors.cli.bench.plan import LoadPlan, PlannedCall, Stage, ramp_stages, read_calls
from mcp_actors.cli.bench.results import milliseconds
from mcp_actors.cli.bench.targets import look_at
from mcp_actors.cli.connection_options import BENCH, ConfigurableCommand, ConnectionOptions, client_options
from mcp_actors.cli.failures import (
    EXIT_CROSSED,
    EXIT_INTERRUPTED,
    CommandFailure,
    WrongUsage,
    reported,
    traceback_option,
)
from mcp_actors.cli.output import echo, styled
from mcp_actors.supervision.platform import STOP_SIGNALS
from mcp_actors.supervision.printable import safe

__all__ = ["LoadView", "command", "run_process"]


_MOST_SESSIONS, _MOST_WINDOW, _MOST_RATE, _MOST_SECONDS = 20_000, 10_000, 1_000_000.0, 86_400.0
_MOST_CALLS = 10**9


class _BenchCommand(ConfigurableCommand):
    """The command, which with ``--compare`` runs nothing and takes neither a URL nor a tool."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if "--compare" in args and not {"-h", "--help"} & set(args):
            from mcp_actors.cli.bench.results import compare_command  # needs what a load does not

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
    "--rate", type=NumberRange(0, _MOST_RATE, min_open=True), help="Calls a second, whatever comes back."
)
@click.option("--ramp", callback=_ramp, metavar="FROM:TO", help="Ever higher rates; finds the knee.")
@click.option(
    "--sessions", type=click.IntRange(1, _MOST_SESSIONS), default=1, show_default=True, help="Connections."
)
@click.option(
    "--duration",
    type=NumberRange(0.1, _MOST_SECONDS),
    metavar="SECONDS",
    help="Of the load.  [default: 10]",
)
@click.option("--calls", "count", type=click.IntRange(1, _MOST_CALLS), help="End after so many calls.")
@click.option(
    "--warm-up",
    type=NumberRange(0, _MOST_SECONDS),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Of load that is in no figure.",
)
@click.option(
    "--cancel",
    type=NumberRange(0, 1),
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
            raise WrongUsage(
                "bench keeps its latencies in a library that is missing: pip install 'hdrhistogram>=0.10'"
            )
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
            echo(styled(safe(f"crossed: {line}"), fg="red"), err=True)
        raise click.exceptions.Exit(EXIT_CROSSED)


def _require_writable(*files: Path | None) -> None:
    """Checks before the load that its figures can be written after it."""
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
    # Only limits need the package of the extra.
    from mcp_actors.cli.bench.load import document_of, figures
    from mcp_actors.cli.bench.report import page, summary_lines

    started = time.monotonic()
    with view.shown():
        result = run_process(plan, view.report)
    document = document_of(plan, server, result, time.monotonic() - started)
    for line in summary_lines(document):
        echo(line)
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
        raise click.UsageError("the arguments of --calls-file belong in the file")
    try:
        return read_calls(file)
    except (OSError, ValueError, KeyError) as error:
        raise WrongUsage(f"{file}: {error}") from error


# -- ``--fail-if``: limits for the figures of a run ----------------------------------------------------

_LATENCIES = ("p50", "p90", "p95", "p99", "p99.9", "mean", "max")
_NAMES = (*_LATENCIES, "errors", "throughput", "knee")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM = re.compile(r"\s*([a-z][a-z0-9.]*)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*(us|ms|s|%|/s)?\s*")


@attrs.frozen
class Threshold:
    """One limit; ``text`` is how it was written."""

    text: str
    figure: str
    comparison: str
    limit: float

    def crossed(self, figures: Mapping[str, float]) -> str:
        """Returns the figure in words if it crosses the limit or is missing, otherwise nothing."""
        value = figures.get(self.figure)
        if value is None:
            return f"{self.text}: there is no such figure"
        if not _COMPARISONS[self.comparison](value, self.limit):
            return ""
        name = self.figure.removesuffix("%")
        if name in _LATENCIES:
            return f"{self.text}: {name} is {value * 1000:.4g} ms"
        unit = {"errors%": " %", "throughput": "/s", "knee": "/s"}.get(self.figure, "")
        return f"{self.text}: {name} is {value:,.6g}{unit}"


def parse_threshold(text: str) -> Threshold:
    """Parses ``p99>50ms``, ``errors>0``, ``errors>1%`` or ``throughput<1000``.

    Raises:
        click.UsageError: The text has another form.
    """
    found = _FORM.fullmatch(text)
    if text == "regression":
        raise click.UsageError("--fail-if regression compares two files: --compare OLD.json NEW.json")
    if found is None:
        raise click.UsageError(f"--fail-if {text!r}: write for example p99>50ms, errors>0 or throughput<1000")
    name, comparison, number, unit = found.groups()
    if name not in _NAMES:
        raise click.UsageError(
            f"--fail-if {text!r}: there is no figure {name}; there are {', '.join(_NAMES)}"
        )
    limit = float(number)
    if name in _LATENCIES:
        if unit not in _UNITS:
            raise click.UsageError(f"--fail-if {text!r}: a latency needs its unit, us, ms or s")
        limit *= _UNITS[unit]
    elif unit in _UNITS or (unit == "%" and name != "errors") or (unit == "/s" and name == "errors"):
        raise click.UsageError(f"--fail-if {text!r}: {unit} is not a unit of {name}")
    return Threshold(text.strip(), f"{name}%" if unit == "%" else name, comparison, limit)


# -- The display on stderr: a line that is redrawn on a terminal, a line a second elsewhere ------------

_EVERY_SECONDS = 1.0


class LoadView:
    """Shows the reports of a load.

    Args:
        quiet: Nothing is shown.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._last = 0.0

    @contextmanager
    def shown(self) -> Iterator[LoadView]:
        """The display is there inside the block and gone after it."""
        if self._quiet or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console  # only a terminal needs it
        from rich.live import Live

        with Live("", console=Console(stderr=True), auto_refresh=False, transient=True) as self._live:
            yield self
        self._live = None

    def report(self, state: dict[str, Any]) -> None:
        """Shows one report of `mcp_actors.cli.bench.load.RunningLoad`."""
        if self._live is not None:
            self._live.update(_picture(state), refresh=True)
        elif not self._quiet and time.monotonic() - self._last >= _EVERY_SECONDS:
            self._last = time.monotonic()
            echo(_line(state), err=True)


def _line(state: dict[str, Any]) -> str:
    if not state["seconds"]:
        return f"{state['phase']}: {state['sessions']:,} open"
    text = (
        f"{state['phase']}, {state['elapsed']:.1f} of {state['seconds']:.4g} s: {state['calls']:,} calls, "
        f"{state['per_second']:,.0f}/s"
    )
    if state["calls"]:
        text += f", p50 {milliseconds(state['p50'])}, p99 {milliseconds(state['p99'])}"
    return text + (f", {state['failed']:,} failed" if state["failed"] else "")


def _picture(state: dict[str, Any]) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    line = Text(_line(state))
    if not state["seconds"]:
        return line
    done = min(state["elapsed"], state["seconds"])
    return Group(
        line, ProgressBar(total=state["seconds"], completed=done, width=40), Text("Ctrl-C ends it early")
    )


# -- The process of the load ---------------------------------------------------------------------------

# From the result, or from the signal, to the end of the process: servers over stdio take their time to end.
_END_WITHIN_SECONDS = 15.0


class _LoadStopped(CommandFailure):
    """Ctrl-C came a second time, or before there was a figure."""

    exit_code = EXIT_INTERRUPTED


class _Stops:
    """Ctrl-C ends the load early, with its figures; the second one ends the process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.count = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.obey()

    def obey(self) -> None:
        """Does to the process what the signals ask for that have come, if there is one by now."""
        if self.count and self.process is not None and self.process.poll() is None:
            if self.count == 1:
                self.process.terminate()
            else:
                self.process.kill()


def run_process(plan: LoadPlan, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Returns the results of the load, as `mcp_actors.cli.bench.load.RunningLoad.run` does.

    Args:
        plan: The load.
        show: Called with each report, several times a second.

    Raises:
        CommandFailure: The load has no result; the text says why.
    """
    stops = _Stops()
    answer: dict[str, Any] = {}
    before = [(number, signal.signal(number, stops)) for number in STOP_SIGNALS]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "mcp_actors.cli.bench.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # The terminal sends Ctrl-C to its whole process group; here this process alone reacts to it.
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            stops.process = process
            stops.obey()
            try:
                process.stdin.write(plan.to_json() + "\n")
                process.stdin.flush()
                for line in process.stdout:
                    answer = json.loads(line)
                    if "result" not in answer and "failure" not in answer:
                        show(answer)
            except BrokenPipeError:
                answer = {}
            finally:
                if "result" not in answer and process.poll() is None:
                    process.terminate()
                try:
                    process.wait(_END_WITHIN_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if "result" in answer:
        result: dict[str, Any] = answer["result"]
        return result
    if stops.count:
        raise _LoadStopped("the load was ended before there were figures")
    raise CommandFailure(answer.get("failure") or f"the process of the load ended with {process.returncode}")
