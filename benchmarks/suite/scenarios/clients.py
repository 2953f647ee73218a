"""Measures clients: calls of a typed tool in a closed loop, each client in a process of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.suite.endpoints import transport
from benchmarks.suite.job import BenchmarkJob, Point
from benchmarks.suite.peers import OURS, client_command, server_command
from benchmarks.suite.scenarios.solo import Start
from benchmarks.suite.server import ROOT, ServerProcess, free_port
from mcp_actors.cli.bench.plan import LoadError

__all__ = ["client_calls"]

CLIENT_WITHIN_SECONDS = 120.0
WARM_UP_SECONDS = 0.3
INLINE = "benchmarks.suite.programs.floor_inline"
# Below it a client with several calls in flight may have waited for the server.
BUSY_SHARE = 0.75


@contextmanager
def _served(job: BenchmarkJob) -> Iterator[str]:
    """Runs the server for the clients: one fast server for all of them, and in memory the one of their SDK."""
    here = transport(job.transport)
    if here.drive == "memory":
        yield "memory:"
        return
    if here.drive == "pipe":
        yield "stdio:" + shlex.join([sys.executable, "-m", INLINE, "stdio:"])
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="mcp-") as directory:
        url = here.address(port, directory)
        command = server_command(OURS, {"python": sys.executable}, url, job.loads)
        with ServerProcess(command, url, port, Path(directory), streams=False) as server:
            if here.drive != "channel":
                server.wait_until_open()
            yield url


async def client_calls(job: BenchmarkJob, start: Start) -> list[Point]:
    """Calls a second, the wait for each, and the client's processor time a call, in memory with the server's."""
    with _served(job) as url:
        work = {
            "url": url,
            "era": job.era,
            "windows": job.parameters["windows"],
            "seconds": job.seconds,
            "warm_up": min(WARM_UP_SECONDS, job.seconds),
            "loads": list(job.loads),
        }
        answers = _call([*job.prefix, *client_command(job.peer, job.prepared, json.dumps(work))])
    return [_point(each, alone=url == "memory:") for each in answers]


def _call(command: list[str]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=CLIENT_WITHIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadError(f"the client: {error}") from error
    if done.returncode:
        raise LoadError(f"the client: {' / '.join(done.stderr.strip().splitlines()[-2:])}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _point(answer: dict[str, Any], *, alone: bool) -> Point:
    window, calls, seconds, cpu = (answer[name] for name in ("in_flight", "calls", "seconds", "cpu"))
    if not calls:
        raise LoadError("nothing was answered")
    point = Point(
        {"in_flight": window},
        {
            "per_second": calls / seconds,
            "call_us": cpu / calls * 1e6,
            "each_us": window * seconds / calls * 1e6,
        },
    )
    if window > 1 and not alone and cpu / seconds < BUSY_SHARE:
        point.note = (
            f"the client was at {cpu / seconds:.0%} of a processor: it may have waited for the server"
        )
    return point
