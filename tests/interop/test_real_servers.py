"""Eight servers of others behind a gateway whose processes are killed: `benchmarks.real_servers` in small.

``MCP_REAL_SERVER_CALLS`` makes it as large as wanted.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.real_servers import (
    SPARE_DESCRIPTORS,
    SPARE_KIB,
    SPARE_TASKS,
    Levels,
    all_gone,
    children_of,
    configuration,
    processes_in,
)
from mcp_actors.gateway.server_entries import read_server_entries

from .installation import Peers

ROOT = Path(__file__).parent.parent.parent
CALLS = int(os.environ.get("MCP_REAL_SERVER_CALLS", "150"))
SMALL = ["--calls", str(CALLS), "--legacy", "0", "--modern", "1", "--points", "2", "--calls-of-a-kill", "25"]
WARM = Levels(tasks=100, descriptors=70, children=13, kib=60_000)
SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.mark.long
def test_each_call_is_answered_or_fails_with_a_reason_while_servers_are_killed(peers: Peers) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.real_servers", *SMALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300 + CALLS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    outcomes = ast.literal_eval(done.stdout.splitlines()[-1].partition("}")[0] + "}")
    assert outcomes["answered"] > CALLS // 2
    assert outcomes["UpstreamUnavailable"] > 0


def test_the_configuration_has_eight_servers_that_a_gateway_can_read(tmp_path: Path) -> None:
    found = {
        "modules": "/there",
        "node": "/there/node",
        "environment": "/there/python",
        "sqlite": "/sql/python",
    }
    entries = list(read_server_entries(configuration(found, tmp_path)))
    assert len(entries) == 8
    assert not [entry for entry in entries if entry.unknown]
    assert {entry.cwd for entry in entries} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("name", "spare"),
    [("tasks", SPARE_TASKS), ("descriptors", SPARE_DESCRIPTORS), ("children", 0), ("kib", SPARE_KIB)],
)
def test_what_grows_beyond_what_is_spared_is_noticed(name: str, spare: int) -> None:
    assert replace(WARM, **{name: getattr(WARM, name) + spare}).is_no_more_than(WARM)
    assert not replace(WARM, **{name: getattr(WARM, name) + spare + 1}).is_no_more_than(WARM)


def test_a_process_that_is_left_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.real_servers.GONE_WITHIN", 0.1)
    with subprocess.Popen(SLEEPING, cwd=tmp_path) as process:
        assert process.pid in children_of(os.getpid())
        assert len(processes_in(tmp_path)) == 1
        with pytest.raises(AssertionError, match="processes are left"):
            all_gone(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
    all_gone(tmp_path)
    assert process.pid not in children_of(os.getpid())
