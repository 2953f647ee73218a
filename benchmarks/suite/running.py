"""Runs a plan: rounds of A B A B, each job in a load process of its own, with a progress bar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.peers import NODE_WARM_UP_CALLS, PEERS
from benchmarks.suite.plan import Case, Size
from benchmarks.suite.server import ROOT
from benchmarks.suite.views import NODE_WARM_UP
from mcp_actors.cli.bench.load import machine, versions
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.results import Document, JobFailure, ResultRow, place_text

__all__ = ["prepare_peers", "run_job", "run_plan"]

JOB_WITHIN_SECONDS = 300.0
# Above it the server may have waited for the generator, and its figure is too low.
BUSY_SHARE = 0.9
# Later than this after it was meant to, and a generator measures itself.
LATE_US = 1000.0


def prepare_peers(
    names: set[str], cache: Path, console: Console, *, refresh: bool
) -> dict[str, dict[str, str]]:
    """Installs the missing programs. A peer that cannot be installed is left out, with a message."""
    prepared = {}
    for name in PEERS:
        if name not in names:
            continue
        try:
            with console.status(f"preparing {PEERS[name].title} …"):
                prepared[name] = PEERS[name].prepare(cache, refresh=refresh)
        except LoadError as error:
            console.print(f"[yellow]{name} is left out:[/] {error}")
    return prepared


def run_job(job: BenchmarkJob) -> list[dict[str, Any]]:
    """Runs one job in a load process of its own. Raises `LoadError` with its error message."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.suite.worker"],
            cwd=ROOT,
            input=job.to_json(),
            capture_output=True,
            text=True,
            timeout=JOB_WITHIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"not done within {JOB_WITHIN_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise LoadError(" / ".join(lines[-3:]) if lines else f"the load ended with {done.returncode}")
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def run_plan(
    cases: list[Case],
    size: Size,
    prepared: dict[str, dict[str, str]],
    *,
    rounds: int,
    seconds: float,
    seed: int,
    loads: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
    budget: float,
    console: Console,
) -> Document:
    """Every round does every case once, and within a case every peer once, so that a drift of the machine meets all.

    A job that gives no figure is not tried again. Interrupted, or after ``budget`` seconds, gives what there is.
    """
    options = {"size": size.name, "rounds": rounds, "seconds": seconds, "seed": seed, "loads": list(loads)}
    options[NODE_WARM_UP] = NODE_WARM_UP_CALLS
    load = "{:.1f} {:.1f}".format(*os.getloadavg()[:2])
    document = Document(
        machine(load),
        versions() | {name: each["version"] for name, each in prepared.items() if "version" in each},
        commit(),
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        options,
    )
    started = time.monotonic()
    jobs = [
        (turn, case, peer)
        for turn in range(1, rounds + 1)
        for case in cases
        for peer in _in_turn(case, turn, prepared)
    ]
    failed: set[tuple[str, str, str, str]] = set()
    with _progress(console, len(jobs)) as show:
        try:
            for turn, case, peer in jobs:
                names = case.scenario.name, case.transport, case.era, peer
                show(f"{turn}/{rounds} {names[0]} {names[1].partition('=')[0]} {names[2]} {peer}")
                if names in failed:
                    continue
                if time.monotonic() - started > budget:
                    document.warnings.append(
                        f"out of time in round {turn}: some cases have a round less than others"
                    )
                    break
                length = seconds * case.scenario.share
                job = case.job(peer, size, length, seed + turn, prepared[peer], loads, prefix)
                try:
                    _take(document, turn, job, run_job(job))
                except LoadError as error:
                    failed.add(names)
                    document.failures.append(JobFailure(*names, str(error)[:600]))
                    console.print(f"[yellow]{' '.join(names)}:[/] {str(error)[:200]}", highlight=False)
        except KeyboardInterrupt:
            document.warnings.append("interrupted: some cases have fewer rounds than others, or none")
    document.seconds = time.monotonic() - started
    return document


def _in_turn(case: Case, turn: int, prepared: dict[str, dict[str, str]]) -> list[str]:
    """The peers in an order that changes from round to round."""
    able = [peer for peer in case.peers if peer in prepared]
    first = turn % len(able) if able else 0
    return able[first:] + able[:first]


def _take(document: Document, turn: int, job: BenchmarkJob, answer: list[dict[str, Any]]) -> None:
    scheme = job.transport.partition("=")[0]
    for point in answer:
        era = str(point["at"].pop("era", job.era))
        note = point.pop("note")
        row = ResultRow(turn, job.scenario, scheme, era, job.peer, **point)
        document.rows.append(row)
        where = f"{row.scenario} {scheme} {era} {row.peer}, {place_text(row.key.at)}"
        if row.generator is not None and row.generator > BUSY_SHARE:
            note = f"the generator was at {row.generator:.0%} of a processor: the server can do more"
        elif row.metrics.get("late_p99_us", 0.0) > LATE_US:
            note = f"the generator was up to {row.metrics['late_p99_us']:.0f} us late: latencies are that much too long"
        elif row.metrics.get("never"):
            note = f"{row.metrics['never']:.0f} handlers were never cancelled: the latency is a lower bound"
        if note and (warning := f"{where}: {note}") not in document.warnings:
            document.warnings.append(warning)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, completed=-1)
        yield lambda text: progress.update(task, advance=1, description=text)
        progress.update(task, completed=total, description="done")


def commit() -> str:
    """The commit that was measured, with a mark if files were changed since."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
