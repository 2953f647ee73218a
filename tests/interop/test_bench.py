"""``mcp-actors bench`` puts its load on servers of other SDKs, some calls each."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from benchmarks.suite.peers import PROGRAMS
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.bench.results import Document
from mcp_actors.cli.inspect.conversation import Bounds
from mcp_actors.cli.inspect.inspection import ServerReport, inspect_server

from .installation import Peers
from .servers import Endpoint

LIMIT = 150
BRIEF = ("--window", "8", "--calls", "60", "--duration", "100", "--warm-up", "0.1", "-q")
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
    assert Document.read(tmp_path / "run.json").details["total"]["count"] >= 60
    assert (tmp_path / "run.html").read_text().count("<svg") == 5


def test_a_fastmcp_server(peers: Peers, tmp_path: Path) -> None:
    program = [str(peers.fastmcp), str(PROGRAMS / "official.py"), "stdio:", "fastmcp"]
    target = f"stdio:{shlex.join(program)}"
    done = bench(tmp_path, target, "--fail-if", "throughput<1000000", "--cancel", "0.1")
    assert done.returncode == 6, done.stderr
    assert "crossed: throughput<1000000: throughput is" in done.stderr
    assert "0 failed" in done.stdout


# -- What ``mcp-actors inspect`` finds at official servers. Each finding was checked by hand, in the specification ---
#
# - The revision 2025-03-26 is agreed on, and its batches are not received (MCP 2025-03-26, Overview, Batching).
# - The TypeScript server over stdio serves requests in any version once it has served one (MCP 2026-07-28, Versioning
# and Compatibility, Protocol Version Negotiation: "the server accepts or rejects each request independently").
# - Servers that run on loopback answer pages of any origin, unless their author adds a check.

BOTH, LEGACY = ["modern", "legacy"], ["legacy"]
SECONDS = 170
# What these servers say nothing to, they say nothing to in a second either.
BOUNDS = Bounds(raw_time=1.0)
# Of each server its eras, and the rules that it violates (MUST, and those that are notes) with the era.
EXPECTED: dict[tuple[str, str], tuple[list[str], set[tuple[str, str]]]] = {
    ("ours", "sse"): (LEGACY, set()),
    ("python", "stdio"): (BOTH, {("batches", "legacy")}),
    ("python", "http"): (BOTH, {("batches", "legacy")}),
    ("typescript", "stdio"): (BOTH, {("batches", "legacy"), ("unsupported-version", "modern")}),
    ("typescript", "http"): (BOTH, {("foreign-origin", "modern"), ("foreign-origin", "legacy")}),
    ("everything", "http"): (LEGACY, {("foreign-origin", "legacy"), ("ended-session", "legacy")}),
}


async def inspected(target: str, in_flight: int) -> ServerReport:
    options = {"stderr": None} if target.startswith("stdio:") else {}
    with trio.fail_after(SECONDS):
        return await inspect_server(
            client_transport(target, **options), url=target, in_flight=in_flight, bounds=BOUNDS
        )


@pytest.mark.parametrize("target", EXPECTED, ids="-".join, indirect=True)
async def test_official_servers_inspect(target: str, request: pytest.FixtureRequest) -> None:
    server: tuple[str, str] = request.node.callspec.params["target"]
    eras, found = EXPECTED[server]
    report = await inspected(target, in_flight=2)
    assert [each.era for each in report.eras] == eras
    assert {(each.rule, each.era) for each in report.findings if each.severity != "warning"} == found
    assert all(each.lists["tools"].count for each in report.eras)
    assert all(each.failed == 0 for era in report.eras for each in era.latency)
    if server[0] == "ours":
        assert report.findings == ()
    # The server of the tests for TypeScript ends at a message that is no JSON, which it parses itself.
    unchecked = {each.rule for each in report.outcomes if each.result == "not checked"}
    assert unchecked == ({"bad-json"} if server == ("typescript", "http") else set())
