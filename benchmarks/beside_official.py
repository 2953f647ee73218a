"""One figure each, ours beside the official Python SDK, on one machine in one run.

Every round measures every peer once, one after the other, so that a drift of the machine meets all of them.
The load generator is one process, the server another; the in-memory figures are taken inside one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.figures import FLOOR, OFFICIAL, OURS, Figure, Peer, Trial, document, number, run_module, table
from benchmarks.http.trials import http_trials
from benchmarks.suite.process import LoadError

__all__ = ["main"]

OFFICIAL_PACKAGE = "mcp>=2,<3"
SETUP_WITHIN_SECONDS = 600.0


def _load(peer: Peer, *options: str) -> dict[str, Any]:
    return run_module([sys.executable, "-m", "benchmarks", "load", *options, "--", *peer.command()])


def _stdio(era: str, window: int, seconds: float) -> Callable[[Peer], dict[str, Any]]:
    options = ["--era", era, "--window", str(window), "--seconds", str(seconds)]
    if window == 1:
        options.append("--one-cpu")
    return lambda peer: _load(peer, *options)


def _memory(era: str, window: int, seconds: float) -> Callable[[Peer], dict[str, Any]]:
    return lambda peer: run_module([*peer.command("_memory"), era, str(window), str(seconds)])


def _stdio_trials(seconds: float) -> list[Trial]:
    trials = []
    for era in ("legacy", "modern"):
        for window, goal in ((64, 20.0), (1, 5.0)):
            title = f"stdio, {era}, {window} in flight"
            rate = Figure(title, "req/s", goal, "per_second")
            cpu = Figure(f"{title}, processor time", "us/req", goal, "cpu_us", "lower")
            trials.append(Trial(_stdio(era, window, seconds), [rate, cpu]))
    for era in ("legacy", "default"):
        for window in (64, 1):
            title = f"in memory, {era}, {window} in flight"
            figures = [Figure(title, "calls/s", 10.0, "per_second")]
            if window > 1:
                figures.append(Figure(f"{title}, processor time", "us/call", 10.0, "cpu_us", "lower"))
            trials.append(Trial(_memory(era, window, seconds), figures, (OFFICIAL, OURS)))
    title = "start to initialize answered"
    start = Figure(title, "ms", 2.0, "start_ms", "lower")
    start_cpu = Figure(f"{title}, processor time", "ms", 2.0, "cpu_ms", "lower")
    trials.append(Trial(lambda peer: _load(peer, "--start"), [start, start_cpu]))
    return trials


def official_python(cache: Path, *, refresh: bool) -> str:
    """The interpreter of an environment with the newest official SDK 2.x, made if it is not there."""
    environment = cache / f"official-{sys.version_info.major}.{sys.version_info.minor}"
    python = environment / "bin" / "python"
    ready = environment / "ready"
    if refresh or not ready.exists():
        print(f"installing {OFFICIAL_PACKAGE} into {environment}", file=sys.stderr)
        # What pip prints, its harmless warnings included, is shown only when it fails.
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(environment)],
            [str(python), "-m", "pip", "install", "--quiet", OFFICIAL_PACKAGE],
        ):
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=SETUP_WITHIN_SECONDS, check=False
            )
            if result.returncode:
                raise LoadError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        ready.touch()
    return str(python)


def _peers(official: str, wanted: str) -> list[Peer]:
    peers = [Peer(OFFICIAL, official), Peer(OURS, sys.executable), Peer(FLOOR, sys.executable)]
    return [peer for peer in peers if peer.name in wanted.split(",")]


def _measure(trials: list[Trial], peers: list[Peer], rounds: int) -> None:
    for turn in range(1, rounds + 1):
        for trial in trials:
            for peer in peers:
                if peer.name not in trial.peers:
                    continue
                answer = trial.measure(peer)
                for figure in trial.figures:
                    figure.samples.setdefault(peer.name, []).append(float(answer[figure.key]))
                first = trial.figures[0]
                value = f"{number(answer[first.key])} {first.unit}"
                print(f"round {turn}/{rounds}  {first.title}: {peer.name} {value}", file=sys.stderr)


def _machine(official: str) -> dict[str, str]:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    question = "import importlib.metadata as m; print(m.version('mcp'))"
    asked = subprocess.run([official, "-c", question], capture_output=True, text=True, check=True, timeout=60)
    versions = {"official": f"mcp {asked.stdout.strip()}"}
    for name in ("mcp-actors", "trio", "msgspec"):
        versions[name] = metadata.version(name)
    return {
        "machine": f"{model}, {os.cpu_count()} processors, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    } | versions


def _write_readme(readme: Path, machine: dict[str, str], table: str) -> None:
    """Puts the table between its two marks."""
    before, begin, rest = readme.read_text().partition("<!-- figures: begin -->\n")
    _, end, after = rest.partition("<!-- figures: end -->")
    if not begin or not end:
        raise LoadError(f"{readme} has no marks for figures")
    about = (
        f"{machine['machine']}, Python {machine['python']}, {machine['official']}, trio {machine['trio']}, "
        f"{machine['date']}; medians (lowest-highest):"
    )
    readme.write_text(f"{before}{begin}{about}\n\n{table}\n{end}{after}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks beside_official",
        description="Measures this package beside the official Python SDK; prints medians and ratios.",
        epilog="Absolute figures drift from machine to machine and from hour to hour: compare the ratios. "
        "With one request in flight, generator and server share one processor (see load --help). "
        "Processor time is what the server's process (in memory: the one process) took, whoever else was busy. "
        "The stderr of servers is thrown away. 'default' in memory is what each client does by itself.",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-actors"
    parser.add_argument(
        "--rounds", type=int, default=5, help="times every peer is measured (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of one load (default: %(default)s)"
    )
    parser.add_argument(
        "--peers", default="official,ours,floor", help="which to measure (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="only the figures whose title has this text in it")
    parser.add_argument(
        "--json", metavar="FILE", help="write every sample there as well ('-': instead of the table)"
    )
    parser.add_argument(
        "--cache", type=Path, default=cache, help="where the official SDK goes (default: %(default)s)"
    )
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="put the table between the marks of that file"
    )
    parser.add_argument("--refresh", action="store_true", help="install the newest official SDK again")
    return parser


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    trials = [*_stdio_trials(options.seconds), *http_trials(options.seconds)]
    wanted = options.only.lower()
    trials = [each for each in trials if wanted in each.figures[0].title.lower()]
    figures = [figure for trial in trials for figure in trial.figures]
    load = "{:.1f} {:.1f}".format(*os.getloadavg()[:2])
    try:
        official = official_python(options.cache, refresh=options.refresh)
        _measure(trials, _peers(official, options.peers), options.rounds)
    except LoadError as error:
        print(f"beside_official: {error}", file=sys.stderr)
        return 1
    machine = _machine(official) | {
        "load before": f"{load} (1 and 5 minutes; other work makes figures worse)"
    }
    samples = json.dumps(document(figures, machine, options.rounds, options.seconds), indent=1)
    if options.json and options.json != "-":
        Path(options.json).write_text(samples + "\n")
    if options.readme:
        _write_readme(options.readme, machine, table(figures))
    if options.json == "-":
        print(samples)
    else:
        print("\n".join(f"{name}: {value}" for name, value in machine.items()))
        print(f"medians of {options.rounds} rounds of {options.seconds:g} s (lowest-highest)\n")
        print(table(figures))
    return 0
