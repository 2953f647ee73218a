"""Official clients close a server of ours over stdio while a call is in flight: the lifespan's cleanup has run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_readme import PAGES

from .installation import Peers
from .servers import DRIVERS

TIMES, TOGETHER = 25, 3
LIMIT = 120.0  # seconds for all closes of one client; it takes about twenty
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
    cleaned = tmp_path / "cleaned"
    cleaned.touch()
    command = [*CLIENTS[client](peers), str(TIMES), str(TOGETHER), *SERVER, str(cleaned)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert cleaned.read_text() == "cleaned up\n" * TIMES
    # SIGKILL would come after four.
    assert float(done.stdout) < 4


def patience(page: str) -> dict[str, tuple[str, str]]:
    """The seconds until SIGTERM and from there to SIGKILL of each official client, as the page says."""
    rows = re.findall(r"^\| official (\w+) SDK (\d)\.\S* \| (\d+) s \| (\d+) s \|", page, re.MULTILINE)
    return {f"{name.lower()}-{generation}": (term, kill) for name, generation, term, kill in rows}


def test_the_page_says_what_the_installed_clients_do(peers: Peers) -> None:
    said = patience(PAGES["endings.md"])
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
