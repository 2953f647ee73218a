"""The official TypeScript clients see the last report of every call, on every binding that they have.

They lose a report that they read together with the answer. ``MCP_ACTORS_CALLS=1000 pytest -m peers
tests/interop/test_last_report.py`` counts a thousand calls of each row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .installation import Peers
from .servers import DRIVERS, PATHS, Launch, Served

CALLS = int(os.environ.get("MCP_ACTORS_CALLS", "60"))
LIMIT = 60 + CALLS * 0.2  # seconds for one row; a call takes some milliseconds
SERVER = [sys.executable, "-m", "mcp_actors", "serve", str(DRIVERS / "reporting_server.py")]
ROWS = [
    ("sdk", "legacy", "stdio"),
    ("client", "legacy", "stdio"),
    ("client", "auto", "stdio"),
    ("sdk", "legacy", "ws"),  # the only one of these that still has WebSocket
    ("sdk", "legacy", "sse"),
    ("client", "legacy", "sse"),
    ("sdk", "legacy", "http"),
    ("client", "legacy", "http"),
    ("client", "auto", "http"),
]


@contextmanager
def address(binding: str) -> Iterator[list[str]]:
    if binding == "stdio":
        yield SERVER
        return
    scheme = "ws" if binding == "ws" else "http"
    listening = f"{scheme}://127.0.0.1:0{PATHS['ws' if binding == 'ws' else 'http']}"
    served = Served(Launch([*SERVER, "--listen", listening], r"^serving .*:(\d+)/(?:mcp|ws)$"))
    try:
        yield [f"{scheme}://127.0.0.1:{served.port()}{PATHS[binding]}"]
    finally:
        served.stop()


@pytest.mark.parametrize(("kind", "mode", "binding"), ROWS, ids=["-".join(row) for row in ROWS])
def test_the_last_report_comes_before_the_answer(peers: Peers, kind: str, mode: str, binding: str) -> None:
    program = [str(peers.node), str(DRIVERS / "typescript_progress.mjs"), str(peers.modules)]
    with address(binding) as server:
        command = [*program, kind, mode, str(CALLS), binding, *server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert (tally["calls"], tally["last"], tally["all"]) == (CALLS, CALLS, CALLS)
