"""The process of a load: it reads its plan on stdin, and writes lines of JSON, the last of which is the result.

It is a process of its own so that nothing else, not even the display, takes time from sending and receiving.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import trio

from mcp_actors._client.options import shown
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.bench.driver import LoadDriver
from mcp_actors.cli.bench.field import Field, channels, run_blocking
from mcp_actors.cli.bench.plan import LoadError, LoadPlan, Stage
from mcp_actors.cli.bench.recorder import CallFigures, LoadRecorder, Slice, encoded
from mcp_actors.cli.bench.results import Document, JobFailure, ResultRow
from mcp_actors.cli.bench.targets import PipedServers, has_raw_field, raw_field
from mcp_actors.errors import McpError
from mcp_actors.supervision.descriptors import raise_limit
from mcp_actors.supervision.histogram import Histogram
from mcp_actors.supervision.platform import STOP_SIGNALS

__all__ = [
    "BUSY_SHARE",
    "LATE_US",
    "SCENARIO",
    "RunningLoad",
    "document_of",
    "figures",
    "knee",
    "machine",
    "main",
    "run_load",
    "versions",
]


# -- The machine of a run, and the versions of what ran there ------------------------------------------

OWN_PACKAGES = ("mcp-actors", "trio", "msgspec", "attrs", "cattrs", "httptools", "hdrhistogram")


def machine(load: str) -> dict[str, str]:
    """Returns a description of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    model = platform.processor() or platform.machine()
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = "not known"
    if sys.platform != "win32":
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return {
        "processor": f"{model}, {os.cpu_count()} processors",
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": f"{load} (1 and 5 minutes; other work makes figures worse)",
    }


def versions() -> dict[str, str]:
    """Returns the versions of this package and of what it is made of."""
    found = {}
    for name in OWN_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


# -- A whole load: it opens the sessions, warms up, does the stages, and makes results of them ---------

# Above this share of a processor the server may have waited for the load, and could do more.
BUSY_SHARE = 0.9
# A load that sends later than that measures itself.
LATE_US = 1000.0
# The share of a rate that is answered where the rate is held.
HELD_SHARE = 0.95
# Nor is a rate held when the 99th percentile is that many times the least of all rates before it, and more than that
# many seconds above it.
STEEP_TIMES, STEEP_SECONDS = 10.0, 0.02
# A load that sends one call in a hundred later than that was itself what kept a rate from being held, unless the server
# held it up. Such a step says nothing of the server, and is made again, that often at most.
_LATE_SECONDS = STEEP_SECONDS / 2
_REPEATS = 2
_IN_FLIGHT_AT_THE_END = 2
# Stages in a row that are not held, after which a ramp ends.
_GIVE_UP_AFTER = 2
_TICKS_A_SECOND = 4
# With fewer calls that percentile is just the longest call.
_ENOUGH_FOR_P999 = 1000

Report = Callable[[dict[str, Any]], None]


class RunningLoad:
    """A load that runs; `stop` ends it early, from a handler of a signal too."""

    def __init__(self, plan: LoadPlan, report: Report) -> None:
        self.plan = plan
        self._report = report
        self._driver: LoadDriver | None = None
        self._phase = "opening sessions"
        self._next_report = 0.0
        self._began = self._seconds = 0.0
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        if self._driver is not None:
            self._driver.stopped = True

    async def run(self, field: Field) -> dict[str, Any]:
        """Returns the results as plain JSON. Raises `LoadError` if there are none."""
        plan = self.plan
        driver = self._driver = LoadDriver(field, plan, self._tick)
        await driver.open()
        opened = len(driver.sessions.ready)
        if plan.warm_up and not self.stopped:
            self._begin("warming up", plan.warm_up)
            first = attrs.evolve(plan.stages[0], seconds=plan.warm_up, calls=0, slices=1)
            await driver.run(first, LoadRecorder(driver.mix.labels))
        stages: list[dict[str, Any]] = []
        recorders: list[LoadRecorder] = []
        misses = 0
        for stage in plan.stages:
            if driver.stopped:
                break
            recorder, result = await self._stage(driver, stage, [each["p99"] for each in stages])
            recorders.append(recorder)
            if recorder.good + recorder.failed or not driver.stopped:
                stages.append(result)
                misses = 0 if stages[-1]["held"] else misses + 1
            if len(plan.stages) > 1 and misses >= _GIVE_UP_AFTER:
                break
        await driver.close()
        if not any(recorder.good for recorder in recorders):
            reasons = [recorder.reason() for recorder in recorders if recorder.reason()]
            if not reasons and driver.stopped:
                raise LoadError("it was ended before anything was answered")
            raise LoadError(reasons[0] if reasons else "nothing was answered")
        return {
            "stages": stages,
            "sessions": {"opened": opened, "wanted": plan.sessions, "lost": driver.sessions.lost}
            | ({"reason": driver.sessions.reason} if driver.sessions.reason else {}),
            "interrupted": driver.stopped,
            "ramp": len(plan.stages) > 1,
        } | _totals(driver.mix.labels, recorders)

    async def _stage(
        self, driver: LoadDriver, stage: Stage, before: list[float]
    ) -> tuple[LoadRecorder, dict[str, Any]]:
        """Does one stage, that of a ramp again where the load itself has missed it; returns the last attempt."""
        repeats = 0
        while True:
            self._begin(_title(stage) + (", again" if repeats else ""), stage.seconds)
            recorder = LoadRecorder(driver.mix.labels)
            await driver.run(stage, recorder)
            result = _stage_result(stage, recorder, before) | {"repeats": repeats}
            may_repeat = len(self.plan.stages) > 1 and repeats < _REPEATS
            if not result["missed"] or driver.stopped or not may_repeat:
                return recorder, result
            repeats += 1

    def _begin(self, phase: str, seconds: float) -> None:
        self._phase, self._began = phase, time.perf_counter()
        self._next_report = 0.0
        self._seconds = seconds

    def _tick(self, now: float) -> None:
        if now < self._next_report or self._driver is None:
            return
        self._next_report = now + 1 / _TICKS_A_SECOND
        recorder, elapsed = self._driver.recorder, now - self._began if self._began else 0.0
        self._report(
            {
                "phase": self._phase,
                "elapsed": elapsed,
                "seconds": self._seconds if self._began else 0.0,
                "sessions": len(self._driver.sessions.ready),
                "calls": recorder.good,
                "failed": recorder.failed,
                "per_second": recorder.good / elapsed if elapsed > 0 else 0.0,
                "p50": recorder.total.quantile(0.5),
                "p99": recorder.total.quantile(0.99),
            }
        )


def run_load(load: RunningLoad, transport: ClientTransport | None = None) -> dict[str, Any]:
    """Runs a load to its end in this process, without a scheduler where the URL has a raw field.

    Raises `LoadError` if it yields no figure.
    """
    plan = load.plan
    if transport is None and not plan.through_client and has_raw_field(plan.url):
        return run_blocking(_raw(load))
    return trio.run(_through_client, load, transport or plan.url)


async def _raw(load: RunningLoad) -> dict[str, Any]:
    async with _raw_field(load.plan) as field:
        return await load.run(field)


@asynccontextmanager
async def _raw_field(plan: LoadPlan) -> AsyncIterator[Field]:
    scheme, _, command = plan.url.partition(":")
    if scheme.lower() == "stdio":
        with PipedServers(command) as servers:
            async with raw_field(plan.url, plan.era, plan.headers, servers) as field:
                yield field
        return
    async with raw_field(plan.url, plan.era, plan.headers, None) as field:
        yield field


async def _through_client(load: RunningLoad, target: str | ClientTransport) -> dict[str, Any]:
    async with channels(load.plan.era, target) as field:
        return await load.run(field)


def _title(stage: Stage) -> str:
    return f"{stage.rate:,.0f} calls/s" if stage.rate else f"{stage.window} in flight"


def _stage_result(stage: Stage, recorder: LoadRecorder, before: list[float]) -> dict[str, Any]:
    seconds = sum(each.seconds for each in recorder.slices)
    good = sum(each.good for each in recorder.slices)
    per_second = good / seconds
    p99 = recorder.total.quantile(0.99)
    offered = min(stage.rate, stage.calls / seconds) if stage.calls else stage.rate
    # Cancelled calls are never answered, and belong to no rate.
    expected = offered - recorder.cancelled.sent / seconds
    # What was in flight at the end is not a backlog, unless it is more than a server without a backlog has.
    in_flight = expected * recorder.total.quantile(0.0) + _IN_FLIGHT_AT_THE_END
    held = not stage.rate or (
        good + in_flight >= HELD_SHARE * expected * seconds and not recorder.unsent and recorder.good > 0
    )
    if before and p99 > STEEP_TIMES * min(before) and p99 > min(before) + STEEP_SECONDS:
        held = not stage.rate
    late = recorder.late.quantile(0.99) > _LATE_SECONDS or bool(recorder.unsent)
    began = recorder.slices[0].began
    return {
        "at": stage.at,
        "seconds": seconds,
        "per_second": per_second,
        "p50": recorder.total.quantile(0.5),
        "p99": p99,
        "held": held,
        "missed": not held and late and not recorder.held_up,
        "unsent": recorder.unsent,
        "total": _latency_result(recorder.total),
        "failed": recorder.failed,
        "slices": [_slice_result(stage, each, recorder, began) for each in recorder.slices],
    }


def _slice_result(stage: Stage, each: Slice, recorder: LoadRecorder, began: float) -> dict[str, Any]:
    counts, metrics = each.latencies, {"per_second": each.good / each.seconds}
    if counts.count:
        metrics |= {f"p{share * 100:g}_us": counts.quantile(share) * 1e6 for share in (0.5, 0.9, 0.99)}
        metrics["max_us"] = counts.largest * 1e6
        if counts.count >= _ENOUGH_FOR_P999:
            metrics["p999_us"] = counts.quantile(0.999) * 1e6
    calls = counts.count + each.failures
    metrics["failed_share"] = 100.0 * each.failures / calls if calls else 0.0
    if stage.rate:
        metrics["late_p99_us"] = recorder.late.quantile(0.99) * 1e6
    return {
        "began": each.began - began,
        "metrics": metrics,
        "latency": encoded(counts.values()) if counts.count else None,
        # Between two sends of an open loop the time is spent looking at the clock.
        "generator": None if stage.rate else each.processor / each.seconds,
    }


def _totals(labels: list[str], recorders: list[LoadRecorder]) -> dict[str, Any]:
    total, failures = Histogram(), dict[str, dict[str, Any]]()
    per_call = {label: CallFigures() for label in labels}
    answered, ended, cancelled = Histogram(), Histogram(), 0
    for recorder in recorders:
        total.merge(recorder.total)
        for kind, found in recorder.failures.items():
            kept = failures.setdefault(kind, {"count": 0, "example": found.example})
            kept["count"] += found.count
        for label, figures in zip(labels, recorder.calls, strict=True):
            per_call[label].latencies.merge(figures.latencies)
            per_call[label].failures += figures.failures
        cancelled += recorder.cancelled.sent
        answered.merge(recorder.cancelled.answered)
        ended.merge(recorder.cancelled.ended)
    found_calls = {
        label: _latency_result(each.latencies) | {"failed": each.failures} for label, each in per_call.items()
    }
    return {
        "total": _latency_result(total),
        "failed": sum(each["count"] for each in failures.values()),
        "failures": failures,
        "calls": found_calls if len(labels) > 1 else {},
        "cancelled": {
            "sent": cancelled,
            "answered": _latency_result(answered),
            "ended": _latency_result(ended),
        },
    }


def _latency_result(counts: Histogram) -> dict[str, float]:
    """In seconds."""
    if not counts.count:
        return {"count": 0}
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
    figures = {name: counts.quantile(share) for name, share in shares.items()}
    return {"count": counts.count, "mean": counts.mean, **figures, "max": counts.largest}


# -- From the results to the document that is kept, and to the figures that a threshold looks at -------

SCENARIO = "bench"


def document_of(plan: LoadPlan, server: str, result: dict[str, Any], seconds: float) -> Document:
    """Returns the document of one load."""
    scheme = plan.url.partition(":")[0].lower()
    load = "{:.1f} {:.1f}".format(*os.getloadavg()[:2]) if hasattr(os, "getloadavg") else "not known"
    options: dict[str, Any] = {
        "size": SCENARIO,
        "rounds": plan.stages[0].slices,
        "seconds": sum(stage.seconds for stage in plan.stages),
        "seed": plan.seed,
        "url": shown(plan.url),
        "version": plan.version,
        "calls": list(dict.fromkeys(call.label for call in plan.calls)),
        "sessions": plan.sessions,
        "cancel_share": plan.cancel_share,
        "warm_up": plan.warm_up,
    }
    rows = [
        ResultRow(
            number,
            SCENARIO,
            scheme,
            plan.era,
            server,
            stage["at"],
            part["metrics"],
            part["latency"],
            part["generator"],
        )
        for stage in result["stages"]
        for number, part in enumerate(stage["slices"], 1)
    ]
    failures = [
        JobFailure(SCENARIO, scheme, plan.era, server, f"{kind}, {found['count']}: {found['example']}")
        for kind, found in result["failures"].items()
    ]
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() - seconds))
    details = {name: value for name, value in result.items() if name != "stages"}
    details["stages"] = [
        {name: value for name, value in stage.items() if name != "slices"}
        | {"began": [part["began"] for part in stage["slices"]]}
        for stage in result["stages"]
    ]
    return Document(
        machine(load),
        versions(),
        "",
        started,
        options,
        seconds,
        rows,
        failures,
        _warnings(plan, result),
        details,
    )


def knee(details: dict[str, Any]) -> float | None:
    """Returns the highest rate of a ramp up to which each was held; 0 if none was, and ``None`` without a ramp.

    A rate that the load itself has missed, each time that it tried, is not judged.
    """
    stages = details["stages"]
    if not details["ramp"]:
        return None
    found = 0.0
    for stage in stages:
        if stage.get("missed"):
            continue
        if not stage["held"]:
            break
        found = float(stage["at"]["arrivals_per_second"])
    return found


def figures(details: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of a run by name, latencies in seconds. Those of a ramp are of its knee, or first rate."""
    stages = details["stages"]
    at_knee = knee(details)
    stage = stages[0]
    for each in stages if at_knee else ():
        if each["at"].get("arrivals_per_second") == at_knee:
            stage = each
    latencies = {name: value for name, value in stage["total"].items() if name != "count"}
    calls = details["total"]["count"] + details["failed"]
    found = latencies | {
        "throughput": stage["per_second"],
        "errors": float(details["failed"]),
        "errors%": 100.0 * details["failed"] / calls if calls else 0.0,
    }
    return found if at_knee is None else found | {"knee": at_knee}


def _warnings(plan: LoadPlan, result: dict[str, Any]) -> list[str]:
    found = []
    sessions = result["sessions"]
    parts = [part for stage in result["stages"] for part in stage["slices"]]
    busiest = max((part["generator"] or 0.0 for part in parts), default=0.0)
    if busiest > BUSY_SHARE:
        found.append(
            f"the load itself was at {busiest:.0%} of a processor: the server can do more than is shown here"
        )
    held = [part for stage in result["stages"] if stage["held"] for part in stage["slices"]]
    late = max((part["metrics"].get("late_p99_us", 0.0) for part in held), default=0.0)
    if late > LATE_US:
        found.append(
            f"the load itself sent up to {late / 1000:.1f} ms late, which is in the latencies: they count from when a "
            "call was meant to be sent"
        )
    found += [
        f"{stage['at']['arrivals_per_second']:,} calls/s were missed by the load itself, {stage['repeats'] + 1} times: "
        "this rate is not judged"
        for stage in result["stages"]
        if stage.get("missed")
    ]
    found += [
        f"{stage['at']['arrivals_per_second']} calls/s were not reached: {stage['unsent']} calls were never sent, and "
        "the latencies are lower bounds"
        for stage in result["stages"]
        if stage["unsent"] and not stage.get("missed")
    ]
    if sessions["opened"] < sessions["wanted"]:
        found.append(
            f"{sessions['opened']} of {sessions['wanted']} sessions could be opened: {sessions.get('reason', '')}"
        )
    if sessions["lost"]:
        found.append(f"{sessions['lost']} sessions were lost and opened again: {sessions.get('reason', '')}")
    if plan.through_client:
        found.append(
            "this URL has no raw load: the work of this package's own client is part of the latencies"
        )
    if result["interrupted"]:
        found.append("it was ended early")
    return found


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _transport(plan: LoadPlan) -> ClientTransport | None:
    """Returns the transport's client where it needs more than a URL can say."""
    if not plan.through_client:
        return None
    options: dict[str, Any] = {"headers": plan.headers} if plan.headers else {}
    if plan.url.partition(":")[0].lower() == "stdio":
        options = {"stderr": None, "env": "inherit"}
    elif plan.login:
        auth = trio.run(importlib.import_module("mcp_actors.cli.login").stored_auth, plan.url)
        options["auth"] = auth
    return client_transport(plan.url, **options)


def main() -> int:
    """Runs the load. The exit code is 1 without a result; the last line then says why."""
    raise_limit()
    load = RunningLoad(LoadPlan.from_json(sys.stdin.readline()), _write)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: load.stop())
    try:
        _write({"result": run_load(load, _transport(load.plan))})
    except BrokenPipeError:
        # The process that waited for the figures is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (LoadError, McpError) as error:
        _write({"failure": str(error) or type(error).__name__})
        return 1
    except BaseExceptionGroup as group:
        found = group.subgroup((LoadError, McpError))
        if found is None:
            raise
        leaf: BaseException = found
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        _write({"failure": str(leaf) or type(leaf).__name__})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
