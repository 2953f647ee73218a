"""The objects that a scenario uses while it runs, in the load process."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.process import cpu_seconds, peak_mib, resident_kib
from benchmarks.suite.server import HandlerEvents
from mcp_actors.cli.bench.field import Field
from mcp_actors.cli.bench.plan import Era

__all__ = ["Bench", "Served", "ThisProcess", "TimedBlock", "percentile_us"]


class Served(Protocol):
    """Figures of the server's process, and the processes that answer a request."""

    events: HandlerEvents

    @property
    def pid(self) -> int: ...
    def pids(self) -> list[int]: ...
    def cpu_seconds(self) -> float: ...
    def peak_mib(self) -> float: ...
    def resident_kib(self) -> int: ...


class ThisProcess:
    """A server in memory. Its figures are those of this process, including the share of the load."""

    def __init__(self, events: HandlerEvents) -> None:
        self.events = events

    pid = 0

    def pids(self) -> list[int]:
        return []

    def cpu_seconds(self) -> float:
        return cpu_seconds(os.getpid())

    def peak_mib(self) -> float:
        return peak_mib(os.getpid())

    def resident_kib(self) -> int:
        return resident_kib(os.getpid())


@dataclass
class TimedBlock:
    """Figures of a `Bench.timed` block: seconds, the server's processor time and this process's share."""

    seconds: float = 0.0
    server_cpu: float = 0.0
    generator: float | None = None


@dataclass
class Bench:
    """``parameters`` are those of the job; ``ids`` are for requests, each once."""

    job: BenchmarkJob
    field: Field
    server: Served
    ids: Iterator[int]
    chance: random.Random
    era: Era

    def get(self, name: str) -> Any:
        return self.job.parameters[name]

    @contextmanager
    def timed(self) -> Iterator[TimedBlock]:
        clock = TimedBlock()
        server_cpu = self.server.cpu_seconds()
        started, own_cpu = time.perf_counter(), time.process_time()
        yield clock
        clock.seconds = time.perf_counter() - started
        clock.server_cpu = self.server.cpu_seconds() - server_cpu
        if self.server.pid:
            clock.generator = (time.process_time() - own_cpu) / clock.seconds

    @contextmanager
    def one_processor(self, wanted: bool) -> Iterator[None]:
        """Keeps generator and server on one processor. With one request in flight they take turns anyway, and a
        sleeping processor of a virtual machine can take longer to wake than the request.
        """
        if not wanted or not self.server.pid:
            yield
            return
        all_of_them = os.sched_getaffinity(0)
        _pin(self.server.pids(), {max(all_of_them)})
        try:
            yield
        finally:
            _pin(self.server.pids(), all_of_them)


def _pin(server: list[int], processors: set[int]) -> None:
    os.sched_setaffinity(0, processors)
    for pid in server:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), processors)


def percentile_us(took: list[float], share: float) -> float:
    """Returns the microseconds within which that share of the requests was answered."""
    return sorted(took)[min(len(took) - 1, int(len(took) * share))] * 1e6
