"""The subcommands of ``python -m benchmarks`` that belong to the suite: run, goals, report, compare, list."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.suite.endpoints import TRANSPORTS
from benchmarks.suite.goal_table import goals_markdown, write_readme
from benchmarks.suite.goals import GOALS_SIZE, goal_cases
from benchmarks.suite.loading import load_files
from benchmarks.suite.page import page
from benchmarks.suite.peers import PEERS, default_cache
from benchmarks.suite.plan import FULL, QUICK, TOY, make_plan
from benchmarks.suite.report import markdown
from benchmarks.suite.running import prepare_peers, run_plan
from benchmarks.suite.scenarios.table import SCENARIOS
from benchmarks.suite.views import warmth
from mcp_actors.abc.discovery import installed_schemes
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.results import Document, compare, comparison_text

__all__ = ["main"]

SIZES = (QUICK, TOY, GOALS_SIZE)


def main(arguments: list[str]) -> int:
    """``arguments`` begin with the name of the subcommand."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        code: int = options.does(options, console)
        return code
    except LoadError as error:
        console.print(f"[red]{options.command}:[/] {error}", highlight=False)
        return 2


def _run(options: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    size = next((each for each in SIZES if getattr(options, each.name)), FULL)
    loads = tuple(str(Path(name).resolve()) for name in options.load)
    load_files(loads)
    if options.goals:
        if options.transports or options.peers or options.eras:
            raise LoadError("--goals says by itself what runs; names of scenarios make it less")
        cases = goal_cases(options.scenarios)
    else:
        cases = make_plan(
            size,
            scenarios=options.scenarios,
            transports=options.transports,
            peers=options.peers,
            eras=options.eras,
        )
    prepared = prepare_peers(
        {peer for case in cases for peer in case.peers}, options.cache, console, refresh=options.refresh
    )
    document = run_plan(
        cases,
        size,
        prepared,
        rounds=options.rounds or size.rounds,
        seconds=options.seconds or size.seconds,
        seed=options.seed,
        loads=loads,
        prefix=tuple(shlex.split(options.prefix)),
        budget=(options.minutes * 60 or size.budget) - (time.monotonic() - started),
        console=console,
    )
    name = options.output or Path(time.strftime("benchmarks-%Y%m%d-%H%M%S.json", time.gmtime()))
    document.write(name)
    console.print(f"{len(document.rows)} rows in {document.seconds:.0f} s: {name}")
    if warm := warmth(document):
        console.print(f"{warm}", highlight=False)
    _write_report(document, name.with_suffix(""), console)
    return 0 if document.rows else 1


def _report(options: argparse.Namespace, console: Console) -> int:
    document = Document.read(options.results)
    _write_report(document, options.output or options.results.with_suffix(""), console)
    if options.show:
        Console().print(Markdown(markdown(document)))
    return 0


def _goals(options: argparse.Namespace, console: Console) -> int:
    before = Document.read(options.before) if options.before else None
    text = goals_markdown(Document.read(options.results), before)
    if options.readme:
        write_readme(options.readme, text)
    print(text, end="")
    return 0


def _write_report(document: Document, stem: Path, console: Console) -> None:
    for suffix, text in ((".md", markdown(document)), (".html", page(document))):
        path = stem.parent / (stem.name + suffix)
        path.write_text(text)
        console.print(f"written: {path}")


def _compare(options: argparse.Namespace, console: Console) -> int:
    before, after = Document.read(options.before), Document.read(options.after)
    comparison = compare(before, after, beside=options.beside, least=options.least / 100)
    print(comparison_text(comparison))
    return 1 if comparison.regressions and options.fail else 0


def _list(options: argparse.Namespace, console: Console) -> int:
    load_files(options.load)
    print("scenarios")
    for scenario in SCENARIOS.values():
        print(f"  {scenario.name:16} {scenario.title}")
    print("\ntransports (any other scheme: SCHEME or SCHEME=URL with {port} or {directory} in it)")
    for scheme in dict.fromkeys((*TRANSPORTS, *installed_schemes())):
        if scheme == "codec":
            continue
        known = TRANSPORTS.get(scheme)
        there = "" if scheme in installed_schemes() else "  (not installed)"
        print(f"  {scheme:16} {known.url if known else f'{scheme}://127.0.0.1:{{port}}'}{there}")
    print("\npeers")
    for peer in PEERS.values():
        where = ", ".join(sorted(peer.schemes - {"codec"})) or "all transports"
        print(f"  {peer.name:16} {peer.title}; {where}; {', '.join(peer.eras)}")
    return 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="The benchmark suite of mcp-actors."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_run, _add_report, _add_goals, _add_compare, _add_list):
        add(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="measure, and write results with a report beside them")
    run.set_defaults(does=_run)
    run.add_argument("scenarios", nargs="*", help="which (default: all; see list)")
    sizes = run.add_mutually_exclusive_group()
    sizes.add_argument(
        "--quick", action="store_true", help="under five minutes: fewer peers, shorter, three rounds"
    )
    sizes.add_argument(
        "--goals",
        action="store_true",
        help="half an hour: what the table of goals needs, and no more",
    )
    sizes.add_argument(
        "--toy", action="store_true", help="only to see that everything runs: figures mean nothing"
    )
    run.add_argument(
        "--transports", type=_names, default=[], metavar="SCHEME[=URL],...", help="which (see list)"
    )
    run.add_argument("--peers", type=_names, default=[], metavar="PEER,...", help="which (see list)")
    run.add_argument("--eras", type=_names, default=[], metavar="ERA,...", help="legacy, modern or both")
    run.add_argument("--rounds", type=int, default=0, help="times each job is done")
    run.add_argument("--seconds", type=float, default=0.0, help="length of one loop")
    run.add_argument("--minutes", type=float, default=0.0, help="begin nothing more after so many")
    run.add_argument("--seed", type=int, default=1, help="of whatever is drawn (default: %(default)s)")
    _add_load(run)
    run.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="where the results go")
    run.add_argument(
        "--cache", type=Path, default=default_cache(), help="where peers go (default: %(default)s)"
    )
    run.add_argument(
        "--prefix",
        default="",
        metavar="COMMAND",
        help="starts what is measured, as a profiler does: 'py-spy record -o /tmp/profile.svg --' "
        "(processor time and memory are the profiler's then)",
    )
    run.add_argument("--refresh", action="store_true", help="install the newest peers again")


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="Markdown and one HTML page from results")
    report.set_defaults(does=_report)
    report.add_argument("results", type=Path, metavar="FILE.json")
    report.add_argument("-o", "--output", type=Path, metavar="STEM", help="STEM.md and STEM.html are written")
    report.add_argument("--show", action="store_true", help="in the terminal as well")


def _add_goals(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    goals = commands.add_parser("goals", help="the table of goals from results, as Markdown")
    goals.set_defaults(does=_goals)
    goals.add_argument("results", type=Path, metavar="FILE.json")
    goals.add_argument(
        "--before",
        type=Path,
        metavar="FILE.json",
        help="results of an earlier tree on the same machine, for the goals that are a number of times its ratios",
    )
    goals.add_argument(
        "--readme", type=Path, metavar="FILE.md", help="put it between the marks of that file as well"
    )


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    both = commands.add_parser("compare", help="what became slower or faster, and how sure that is")
    both.set_defaults(does=_compare)
    both.add_argument("before", type=Path, metavar="A.json")
    both.add_argument("after", type=Path, metavar="B.json")
    both.add_argument(
        "--beside",
        metavar="PEER",
        default="",
        help="compare ratios to this peer of the same run, so that a drift of the machine cancels out",
    )
    both.add_argument(
        "--least",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="smaller changes are ignored (default: %(default)s)",
    )
    both.add_argument("--fail", action="store_true", help="exit with 1 if there is a regression")


def _add_list(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shown = commands.add_parser("list", help="scenarios, transports and peers")
    shown.set_defaults(does=_list)
    _add_load(shown)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file that registers transports of your own (may be given several times)",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
