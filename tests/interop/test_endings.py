"""The official TypeScript clients see the last report of every call, on every binding that they have.

They lose a report that they read together with the answer. ``MCP_ACTORS_CALLS=1000 pytest -m peers
tests/interop/test_endings.py`` counts a thousand calls of each row.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from mcp_actors import Client, ConnectionLost
from mcp_actors.errors import ConnectFailed
from tests.pages import PAGES

from .installation import Peers
from .servers import DRIVERS, PATHS, Launch, Served, reachable
from .user import LIMIT, text_of

# -- Official clients close a server of ours over stdio while a call is in flight: the lifespan's cleanup has run ---

TIMES, TOGETHER = 25, 3
# Seconds after which each client kills its server.
SIGKILL_AFTER = 4.0
# A machine that stands still for so long says nothing about the server: all closes are tried again.
ATTEMPTS = 3
LIMIT_CLOSING_CLIENTS = 140.0  # seconds for all closes of one client; it takes about twenty
SERVER = [sys.executable, str(DRIVERS / "hanging_server.py")]


def python(interpreter: Path) -> list[str]:
    return [str(interpreter), str(DRIVERS / "closing_client.py")]


def typescript(peers: Peers, kind: str) -> list[str]:
    return [str(peers.node), str(DRIVERS / "closing_client.mjs"), str(peers.modules), kind]


CLIENTS: dict[str, Callable[[Peers], list[str]]] = {
    "python-1": lambda peers: python(peers.python_v1),
    "python-2": lambda peers: python(peers.python),
    "typescript-1": lambda peers: typescript(peers, "sdk"),
    "typescript-2": lambda peers: typescript(peers, "client"),
}
PYTHON_PATIENCE = {
    "python-1": (lambda peers: peers.python_v1, "stdio/__init__.py"),
    "python-2": (lambda peers: peers.python, "stdio.py"),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_cleanup_of_the_lifespan_has_run(peers: Peers, client: str, tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        cleaned = tmp_path / f"cleaned {attempt}"
        cleaned.touch()
        command = [*CLIENTS[client](peers), str(TIMES), str(TOGETHER), *SERVER, str(cleaned)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_CLOSING_CLIENTS, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        slowest = float(done.stdout)
        if slowest < SIGKILL_AFTER:
            break
    assert slowest < SIGKILL_AFTER
    assert cleaned.read_text() == "cleaned up\n" * TIMES


def patience(page: str) -> dict[str, tuple[str, str]]:
    """The seconds until SIGTERM and from there to SIGKILL of each official client, as the page says."""
    rows = re.findall(r"^\| official (\w+) SDK (\d)\.\S* \| (\d+) s \| (\d+) s \|", page, re.MULTILINE)
    return {f"{name.lower()}-{generation}": (term, kill) for name, generation, term, kill in rows}


def test_the_page_says_what_the_installed_clients_do(peers: Peers) -> None:
    said = patience(PAGES["why/endings.md"])
    assert set(said) == set(CLIENTS)
    for client, (find, file) in PYTHON_PATIENCE.items():
        [source] = find(peers).parent.parent.glob(f"lib/python*/site-packages/mcp/client/{file}")
        text = source.read_text()
        [waited] = re.findall(r"^PROCESS_TERMINATION_TIMEOUT = (\d+)\.0$", text, re.MULTILINE)
        kill = re.findall(
            r"^FORCE_KILL_TIMEOUT = (\d+)\.0$|timeout_seconds: float = (\d+)\.0", text, re.MULTILINE
        )
        assert said[client] == (waited, next(filter(None, kill[0])))
    for client, file in {
        "typescript-1": "sdk/dist/esm/client/stdio.js",
        "typescript-2": "client/dist/stdio.mjs",
    }.items():
        text = peers.package(f"@modelcontextprotocol/{file}").read_text().rpartition("async close()")[2]
        waits = [str(round(float(each)) // 1000) for each in re.findall(r"resolve, (2000|\d+e3)\)", text)]
        assert said[client] == tuple(waits)


# -- An official client that leaves its session with a call in flight ------------------------------------
#
# Its DELETE ends the call, and it leaves quietly.

LIMIT_SESSION_ENDINGS = 200.0  # seconds for one driver; it takes about ten
TIMES_SESSION_ENDINGS = 20


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("sleep", {"seconds": 20, "steps": 1}), ("sleep", {"seconds": 20, "steps": 1000})],
    ids=["not answered", "a stream"],
)
def test_leaving_a_call_in_flight_raises_nothing(peers: Peers, tool: str, arguments: dict[str, int]) -> None:
    with reachable(peers, "ours", "http") as server:
        command = [str(peers.python_v1), str(DRIVERS / "python_v1_leave.py")]
        command += [server.target, str(TIMES_SESSION_ENDINGS), tool, json.dumps(arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_SESSION_ENDINGS, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert Counter(done.stdout.splitlines()) == {"left": TIMES_SESSION_ENDINGS}


# -- What WebSocket is asked to bear between our client and the official SDK's server --------------------
#
# Length, and ends of all kinds.

LINE = "gruß 🐍 "  # 11 bytes


async def test_long_messages(peers: Peers) -> None:
    """Either side takes 16 MiB. The server sends back twice what it got: as text and as structured content."""
    with trio.fail_after(LIMIT), reachable(peers, "python", "ws") as server:
        async with Client(server.target, era="legacy") as client:
            fits = LINE * 700_000
            result = await client.call_tool("echo", {"message": fits})
            assert text_of(result.content) == fits
            with pytest.raises(ConnectionLost, match="1009"):
                await client.call_tool("echo", {"message": LINE * 800_000})


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda served: served.process.terminate(), id="asked-to-end"),
        pytest.param(lambda served: served.process.kill(), id="killed"),
    ],
)
async def test_a_server_that_goes_away(peers: Peers, end: Callable[[Served], None]) -> None:
    with trio.fail_after(LIMIT), reachable(peers, "python", "ws") as server:
        served = server.process
        assert served is not None
        async with Client(server.target, era="legacy") as client:
            with pytest.raises(ConnectionLost):
                await client.call_tool(
                    "sleep", {"seconds": 60, "steps": 1000}, on_progress=lambda progress: end(served)
                )
        await trio.to_thread.run_sync(served.stop)
        with pytest.raises(ConnectFailed):
            async with Client(server.target, era="legacy"):
                pass


# -- The official TypeScript clients see the last report of every call, on every binding that they have ---

CALLS = int(os.environ.get("MCP_ACTORS_CALLS", "60"))
LIMIT_LAST_REPORT = 150 + CALLS * 0.2  # seconds for one row; a call takes some milliseconds
SERVER_LAST_REPORT = [sys.executable, "-m", "mcp_actors", "serve", str(DRIVERS / "reporting_server.py")]
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
        yield SERVER_LAST_REPORT
        return
    scheme = "ws" if binding == "ws" else "http"
    listening = f"{scheme}://127.0.0.1:0{PATHS['ws' if binding == 'ws' else 'http']}"
    served = Served(Launch([*SERVER_LAST_REPORT, "--listen", listening], r"^serving .*:(\d+)/(?:mcp|ws)$"))
    try:
        yield [f"{scheme}://127.0.0.1:{served.port()}{PATHS[binding]}"]
    finally:
        served.stop()


@pytest.mark.parametrize(("kind", "mode", "binding"), ROWS, ids=["-".join(row) for row in ROWS])
def test_the_last_report_comes_before_the_answer(peers: Peers, kind: str, mode: str, binding: str) -> None:
    program = [str(peers.node), str(DRIVERS / "typescript_progress.mjs"), str(peers.modules)]
    with address(binding) as server:
        command = [*program, kind, mode, str(CALLS), binding, *server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_LAST_REPORT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert (tally["calls"], tally["last"], tally["all"]) == (CALLS, CALLS, CALLS)
