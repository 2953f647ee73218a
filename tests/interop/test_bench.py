"""``mcp-actors bench`` puts its load on servers of other SDKs, for half a second each."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.suite.peers import PROGRAMS
from mcp_actors.cli.bench.results import Document

from .installation import Peers
from .servers import Endpoint

LIMIT = 60
BRIEF = ("--window", "8", "--duration", "0.4", "--warm-up", "0.1", "-q")
ARGUMENTS = ("add", "a=2", "b=3")
TABLE = [
    ("python", "stdio", "modern"),
    ("python", "http", "legacy"),
    ("python", "http", "modern"),
    ("typescript", "stdio", "modern"),
    ("typescript", "http", "legacy"),
    ("typescript", "http", "modern"),
]


def bench(folder: Path, target: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcp_actors", "bench", target, *ARGUMENTS, *BRIEF, *words]
    return subprocess.run(
        command, cwd=folder, env={**os.environ}, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.mark.parametrize(("server", "binding", "era"), TABLE)
def test_official_servers(
    reached: Callable[[str, str], Endpoint], tmp_path: Path, server: str, binding: str, era: str
) -> None:
    target = reached(server, binding).target
    files = "--json", "run.json", "--html", "run.html"
    limits = "--fail-if", "errors>0", "--fail-if", "p50>1us"
    done = bench(tmp_path, target, "--era", era, "--sessions", "2", *files, *limits)
    assert done.returncode == 6, done.stderr + done.stdout
    assert re.search(rf"^official-{server} .*\({era}, .* answered [\d,]+ calls/s of add", done.stdout)
    (crossed,) = [line for line in done.stderr.splitlines() if line.startswith("crossed: ")]
    assert crossed.startswith("crossed: p50>1us: p50 is ")
    assert Document.read(tmp_path / "run.json").details["total"]["count"] > 5
    assert (tmp_path / "run.html").read_text().count("<svg") == 3


def test_a_fastmcp_server(peers: Peers, tmp_path: Path) -> None:
    program = [str(peers.fastmcp), str(PROGRAMS / "official.py"), "stdio:", "fastmcp"]
    target = f"stdio:{shlex.join(program)}"
    done = bench(tmp_path, target, "--fail-if", "throughput<1000000", "--cancel", "0.1")
    assert done.returncode == 6, done.stderr
    assert "crossed: throughput<1000000: throughput is" in done.stderr
    assert "0 failed" in done.stdout
