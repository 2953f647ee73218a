"""Servers of others that need long to start, behind one gateway of ours that an official client lists once.

Hosts list once: what is missing then is missing until they are told that the list has changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .installation import Peers, install_separately
from .servers import DRIVERS

pytestmark = pytest.mark.frameworks

LIMIT = 300.0  # seconds for one client; the longest waits for 45
LATE = ("north", "east", "south", "west")
SECONDS = "15"
GREETINGS = [f"{name}_greet" for name in LATE]
DATABASES = {"sqlite_read_query", "sqlite_list_tables", "duckdb_query"}
CLIENTS = ("python", "python_v1", "typescript")
CALLS = [
    ["sqlite_read_query", {"query": "select 6 * 7 as it"}],
    ["duckdb_query", {"query": "select 6 * 7 as it"}],
    *([f"{name}_greet", {}] for name in LATE),
]

Report = dict[str, Any]


def configuration(peers: Peers, folder: Path, when: str) -> Path:
    """Writes what a host has: two servers with databases, and four that answer nothing before it is time."""
    programs = install_separately("databases").parent
    late = str(DRIVERS / "late_server.py")
    servers = {
        "sqlite": {
            "command": str(programs / "mcp-server-sqlite"),
            "args": ["--db-path", str(folder / "items.sqlite")],
        },
        "duckdb": {
            "command": str(programs / "mcp-server-duckdb"),
            "args": ["--db-path", str(folder / "items.duckdb")],
        },
        **{name: {"command": str(peers.python), "args": [late, name, when]} for name in LATE},
    }
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def run(peers: Peers, client: str, folder: Path, when: str | None) -> Report:
    """Runs a client, which starts a gateway with all of its servers for itself."""
    folder.mkdir()
    listed = str(folder / "listed")
    if client == "typescript":
        command = [str(peers.node), str(DRIVERS / "listing_client.mjs"), str(peers.modules)]
    else:
        python = peers.python if client == "python" else peers.python_v1
        command = [str(python), str(DRIVERS / "listing_client.py")]
    gateway = [
        sys.executable,
        "-m",
        "mcp_actors",
        "gateway",
        str(configuration(peers, folder, when or listed)),
    ]
    command += [listed, json.dumps(CALLS), *gateway]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    report: Report = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def late(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """One client after the other: a busy machine needs longer to start what takes its time anyway."""
    folder = tmp_path_factory.mktemp("late")
    return {client: run(peers, client, folder / client, SECONDS) for client in CLIENTS}


@pytest.fixture(scope="module")
def too_late(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """Servers that start when the client has its first list: a gateway has waited for them as long as it does."""
    folder = tmp_path_factory.mktemp("too_late")
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda client: run(peers, client, folder / client, None), CLIENTS)
        return dict(zip(CLIENTS, found, strict=True))


def check_calls(report: Report) -> None:
    sqlite, duckdb, *greetings = report["texts"]
    assert "42" in sqlite[0]
    assert "42" in duckdb[0]
    assert greetings == [[f"hello from {name}"] for name in LATE]


@pytest.mark.parametrize("client", CLIENTS)
def test_servers_that_need_fifteen_seconds_are_in_the_first_list(
    late: dict[str, Report], client: str
) -> None:
    report = late[client]
    [tools] = report["lists"]
    assert set(tools) >= DATABASES
    assert [each for each in tools if each.endswith("_greet")] == GREETINGS
    check_calls(report)
    assert not [each for each in report["logs"] if "not complete" in str(each)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_told_what_its_list_lacks_and_when_it_is_there(
    too_late: dict[str, Report], client: str
) -> None:
    report = too_late[client]
    first, *_, last = report["lists"]
    assert not [each for each in first if each.endswith("_greet")]
    told = [str(each) for each in report["logs"] if "the list of tools is not complete" in str(each)]
    assert all(name in told[0] for name in LATE)
    assert DATABASES | set(GREETINGS) <= set(last)
    check_calls(report)
