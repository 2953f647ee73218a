"""The load process: takes one job as JSON on its input, prints what it measured as JSON."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from benchmarks.suite.bench import Bench, Served, ThisProcess
from benchmarks.suite.endpoints import RaggedWrites, Transport, raw_field, transport
from benchmarks.suite.job import BenchmarkJob, Point
from benchmarks.suite.loading import load_files
from benchmarks.suite.peers import PEERS, server_command
from benchmarks.suite.programs.telling import TELL
from benchmarks.suite.scenarios.table import SCENARIOS
from benchmarks.suite.server import (
    END_WITHIN_SECONDS,
    PROFILE_WITHIN_SECONDS,
    HandlerEvents,
    ServerProcess,
    free_port,
)
from mcp_actors.cli.bench.field import Field, run_blocking
from mcp_actors.cli.bench.plan import Era, LoadError
from mcp_actors.cli.bench.recorder import encoded

__all__ = ["main", "measure"]

FILES = 65_536


def _opening() -> ModuleType:
    # Loaded when needed: raw fields need no Trio, and it takes longer to import than many a job.
    return importlib.import_module("benchmarks.suite.opening")


class _Starter:
    """Starts servers of one job, as often as the scenario wants."""

    def __init__(self, job: BenchmarkJob, here: Transport, directory: Path) -> None:
        self._job = job
        self._here = here
        self._directory = directory
        self._number = 0

    @asynccontextmanager
    async def __call__(self, era: Era) -> AsyncIterator[Bench]:
        self._number += 1
        directory = self._directory / str(self._number)
        directory.mkdir()
        if self._here.drive == "memory":
            events = HandlerEvents(directory / "events")
            os.environ[TELL] = str(events.path)
            async with _opening().in_memory(era, f"{self._here.url}-{self._number}") as field:
                yield self._bench(era, field, ThisProcess(events))
            return
        job, port = self._job, free_port()
        url = self._here.address(port, str(directory))
        command = [*job.prefix, *server_command(job.peer, job.prepared, url, job.loads)]
        scenario, streams = SCENARIOS[job.scenario], SCENARIOS[job.scenario].streams
        write = RaggedWrites(random.Random(job.seed)) if scenario.ragged else os.write
        end_within = PROFILE_WITHIN_SECONDS if job.prefix else END_WITHIN_SECONDS
        with ServerProcess(command, url, port, directory, streams=streams, end_within=end_within) as server:
            try:
                if self._here.drive != "channel":
                    async with raw_field(self._here, era, server, PEERS[job.peer].token, write) as raw:
                        yield self._bench(era, raw, server)
                else:
                    async with _opening().channels(era, url) as field:
                        yield self._bench(era, field, server)
            except LoadError as error:
                raise LoadError(f"{error}{server.complaint()}") from error

    def _bench(self, era: Era, field: Field, served: Served) -> Bench:
        return Bench(self._job, field, served, itertools.count(1), random.Random(self._job.seed), era)


async def _measure(job: BenchmarkJob, here: Transport, directory: Path) -> list[Point]:
    scenario = SCENARIOS[job.scenario]
    start = _Starter(job, here, directory)
    if scenario.solo is not None:
        return await scenario.solo(job, start)
    assert scenario.run is not None
    async with start(job.era) as bench:
        return await scenario.run(bench)


def measure(job: BenchmarkJob) -> list[Point]:
    """Does the job in this process. Raises `LoadError` if it gives no figure."""
    here = transport(job.transport)
    load_files(job.loads)
    with tempfile.TemporaryDirectory(prefix="mcp-") as name:
        if here.drive in ("channel", "memory"):
            try:
                points: list[Point] = _opening().run(_measure, job, here, Path(name))
            except BaseExceptionGroup as group:
                raise _first_load_error(group) from group
            return points
        return run_blocking(_measure(job, here, Path(name)))


def _first_load_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group.subgroup(LoadError) or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def main() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else FILES, hard))
    try:
        points = measure(BenchmarkJob.from_json(sys.stdin.read()))
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    answer = []
    for point in points:
        members = asdict(point)
        took = members.pop("took")
        answer.append(members | {"latency": encoded((seconds, 1) for seconds in took) if took else None})
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
