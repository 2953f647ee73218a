"""Calls through gateways: what a hop from one server to the next costs, one and three of them in a row."""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.suite.bench import Bench, percentile_us
from benchmarks.suite.endpoints import TRANSPORTS, raw_field
from benchmarks.suite.gateways import GATEWAYS, UpstreamPlace, chain_of
from benchmarks.suite.job import BenchmarkJob, Point
from benchmarks.suite.peers import OWN
from benchmarks.suite.process import cpu_seconds, peak_mib
from benchmarks.suite.scenarios.loops import warm_up
from benchmarks.suite.scenarios.roundtrip import measure_window
from benchmarks.suite.scenarios.solo import Start
from benchmarks.suite.server import (
    END_WITHIN_SECONDS,
    PROFILE_WITHIN_SECONDS,
    HandlerEvents,
    ServerProcess,
    free_port,
)
from mcp_actors.cli.bench.plan import LoadError

__all__ = ["gateway_hop"]

# The cheapest server there is, so that what is measured is the hops.
SERVER = f"{OWN}.floor_inline"
SLICES = 3


async def gateway_hop(job: BenchmarkJob, start: Start) -> list[Point]:
    """For each binding of the upstream: the server alone and behind chains of gateways, which take turns in slices."""
    points: list[Point] = []
    for reached in job.parameters["to"]:
        chains = [chain_of(job.transport, reached, hops) for hops in sorted({0, *job.parameters["hops"]})]
        able = [chain for chain in chains if GATEWAYS[job.peer].can(chain)]
        if len(able) > 1:
            points += await _side_by_side(job, reached, able)
    if not points:
        raise LoadError("it cannot make any of these hops")
    return points


async def _side_by_side(job: BenchmarkJob, reached: str, chains: Sequence[tuple[str, ...]]) -> list[Point]:
    found: dict[tuple[int, int], list[Point]] = {}
    note = ""
    async with AsyncExitStack() as stack:
        benches: list[tuple[int, Bench, int]] = []
        for chain in chains:
            try:
                bench, lane = await _started(job, chain, stack)
            except LoadError as error:
                # One hop may work where several do not: this gateway may not get on with itself.
                note = f"{len(chain) - 1} hops: {error}"
                if len(benches) < 2:
                    raise
                continue
            benches.append((len(chain) - 1, bench, lane))
        for window in job.parameters["windows"]:
            for _ in range(SLICES):
                for hops, bench, lane in benches:
                    # Connections that were closed while others had their turn are noticed before they are used.
                    await bench.field.arrivals(time.perf_counter())
                    point = await measure_window(bench, [lane], window, "add", job.seconds / SLICES)
                    found.setdefault((hops, window), []).append(point)
    points = [_joined(reached, hops, window, points) for (hops, window), points in found.items()]
    points[-1].note = note
    return points


async def _started(job: BenchmarkJob, chain: Sequence[str], stack: AsyncExitStack) -> tuple[Bench, int]:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp-")))
    served = stack.enter_context(_Chain(job, chain, directory))
    try:
        field = await stack.enter_async_context(raw_field(TRANSPORTS[job.transport], job.era, served.front))
        bench = Bench(job, field, served, itertools.count(1), random.Random(job.seed), job.era)
        lane = await field.begin()
        # Behind no gateway there is the floor alone, which needs no load to get up to speed.
        await warm_up(bench, lane, briefly=len(chain) == 1)
    except LoadError as error:
        raise LoadError(f"{' to '.join(chain)}: {error}{served.front.complaint()}") from error
    served.find_processes()
    return bench, lane


def _joined(reached: str, hops: int, window: int, points: list[Point]) -> Point:
    took = [each for point in points for each in point.took]
    metrics = {
        name: sum(point.metrics[name] for point in points) / len(points) for name in ("per_second", "cpu_us")
    }
    metrics |= {"p50_us": percentile_us(took, 0.5), "p99_us": percentile_us(took, 0.99)}
    if hops:
        metrics["rss_mib"] = points[-1].metrics["rss_mib"]
    else:
        # What the server itself takes does not count for a gateway.
        del metrics["cpu_us"]
    shares = [point.generator for point in points if point.generator is not None]
    at: dict[str, int | str] = {"to": reached, "hops": hops, "in_flight": window}
    return Point(at, metrics, took, max(shares) if shares else None)


class _Chain:
    """A server and the gateways before it, for the length of a ``with`` block.

    Its figures are those of the gateways' processes, with all that they have started but the server.
    """

    def __init__(self, job: BenchmarkJob, chain: Sequence[str], directory: Path) -> None:
        self._job = job
        self._chain = chain
        self._directory = directory
        self._processes: list[ServerProcess] = []
        self._gateways: list[int] = []
        self._all: list[int] = []
        self.events = HandlerEvents(directory / "events")

    @property
    def front(self) -> ServerProcess:
        """The process that the client speaks with."""
        return self._processes[-1]

    def __enter__(self) -> _Chain:
        upstream: UpstreamPlace = []
        try:
            for number, binding in reversed(list(enumerate(self._chain))):
                port = free_port()
                url = TRANSPORTS[binding].address(port, str(self._directory))
                if number == len(self._chain) - 1:
                    command = [sys.executable, "-m", SERVER, url]
                else:
                    command = GATEWAYS[self._job.peer].command(self._job.prepared, url, upstream)
                upstream = url
                if number and binding == "stdio":
                    upstream = command
                else:
                    self._start(command, url, port, first=number == 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, command: list[str], url: str, port: int, *, first: bool) -> None:
        directory = self._directory / str(len(self._processes))
        directory.mkdir()
        # A profiler is to say where a gateway spends its time.
        profiled = first and len(self._chain) > 1 and bool(self._job.prefix)
        process = ServerProcess(
            [*self._job.prefix, *command] if profiled else command,
            url,
            port,
            directory,
            streams=False,
            end_within=PROFILE_WITHIN_SECONDS if profiled else END_WITHIN_SECONDS,
        )
        self._processes.append(process)
        if not first:
            process.wait_until_open()

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.__exit__()

    def find_processes(self) -> None:
        """Looks which processes there are, once all of them have been used."""
        self._all = [pid for process in self._processes for pid in _tree(process.pid)]
        self._gateways = [pid for pid in self._all if not _is_server(pid)]

    @property
    def pid(self) -> int:
        return self.front.pid

    def pids(self) -> list[int]:
        return self._all

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._gateways))

    def peak_mib(self) -> float:
        return sum(map(peak_mib, self._gateways))

    def resident_kib(self) -> int:
        raise NotImplementedError


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        yield from _tree(child)


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for each in Path(f"/proc/{pid}/task").glob("*/children")
        for child in each.read_text().split()
    ]


def _is_server(pid: int) -> bool:
    """Whether it is the server: its name is among the arguments of every process before it too."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return SERVER.encode() in words and not _children(pid)
