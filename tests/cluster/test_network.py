"""The networks of these tests themselves: what is cut is silent, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.installation import Peers

from .figures import Phase, failures, most_forgotten
from .load import Row
from .network import PREFIX, Namespaces, Network, Relays, ip, namespaces_work, open_network

PORT = 8000
PLACES = ("near", "far")
SERVE = "import http.server, sys; http.server.test(http.server.BaseHTTPRequestHandler, port=8000, bind=sys.argv[1])"
ASK = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], 8000, timeout=float(sys.argv[2]))
try:
    connection.request("GET", "/")
    print(connection.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""
RUN = """
import subprocess, sys, time
from cluster.network import {kind}, mortal
network = {kind}(["near", "far"]{ports})
network.make()
process = subprocess.Popen(mortal(network.command("near", ["sleep", "60"])))
while open(f"/proc/{{process.pid}}/comm").read() != "sleep\\n":
    time.sleep(0.01)
print(process.pid, *(relay.pid for relay in getattr(network, "_relays", {{}}).values()), flush=True)
time.sleep(60)
"""
PATIENCE = "10"  # seconds for an answer that must come
SILENCE = "1"  # seconds for one that must not


@contextmanager
def served(network: Namespaces | Relays) -> Iterator[Network]:
    try:
        network.make()
        command = [sys.executable, "-u", "-c", SERVE, network.address("far")]
        with subprocess.Popen(
            network.command("far", command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline().startswith(b"Serving")
                yield network
            finally:
                server.kill()
    finally:
        network.remove()


def ask(network: Network, patience: str) -> str:
    command = network.command("near", [sys.executable, "-c", ASK, network.reached("far"), patience])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_is_cut_is_silent_until_it_is_healed(peers: Peers) -> None:
    kinds: list[Namespaces | Relays] = [Relays(PLACES, [PORT])]
    if namespaces_work():
        kinds.append(Namespaces(PLACES))
    for kind in kinds:
        with served(kind) as network:
            assert ask(network, PATIENCE) == "501", network.kind
            network.cut("far")
            assert ask(network, SILENCE) == "TimeoutError", network.kind
            network.heal("far")
            assert ask(network, PATIENCE) == "501", network.kind


def test_what_a_killed_run_has_left_is_removed(peers: Peers) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left = f"{PREFIX}-{ended.pid}-node"
    # Without namespaces nothing can be left behind, and the relays end with the block.
    forgotten = leave(left) if namespaces_work() else None
    with open_network(PLACES, [PORT]) as network:
        assert ask(network, PATIENCE) in {"ConnectionRefusedError", "RemoteDisconnected"}
        if forgotten is not None:
            assert left not in ip("netns", "list")
            assert forgotten.wait(10) == -9


def leave(name: str) -> subprocess.Popen[bytes]:
    ip("netns", "add", name)
    process = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "60"])
    # What has not entered the namespace yet is not found there.
    while not ip("netns", "pids", name).split():
        assert process.poll() is None
    return process


def test_nothing_of_a_run_that_is_killed_goes_on(peers: Peers) -> None:
    kinds = [("Relays", ", [8000]")]
    if namespaces_work():
        kinds.append(("Namespaces", ""))
    for kind, ports in kinds:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN.format(kind=kind, ports=ports)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        with run:
            assert run.stdout is not None
            started = [int(process) for process in run.stdout.readline().split()]
            run.kill()
        own = f"{PREFIX}-{run.pid}-"
        assert started
        assert soon(lambda started=started: not any(map(is_running, started))), kind
        if kind == "Namespaces":
            assert soon(lambda own=own: own not in ip("netns", "list"))


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def soon(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + float(PATIENCE)
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


# -- The judgement of a run itself: it is red for what must not be, and for nothing else -----------------

PHASES = [
    Phase("before", 0, 10, calm=True),
    Phase("killed", 10, 20, calm=False),
    Phase("calm", 20, 30, calm=True),
]
FORGOTTEN = "McpError: Session terminated"
LOST = "HTTPStatusError: Server error '502 Bad Gateway' for url 'http://h:8000/mcp'"


def row(end: str, at: float, took: float = 1.0, client: str = "ours-legacy", error: str = "") -> Row:
    return {
        "client": client,
        "session": 0,
        "kind": "echo",
        "at": at,
        "took": took,
        "end": end,
        "error": error,
    }


@pytest.mark.parametrize(
    ("rows", "fails"),
    [
        ([row("right", 5)], False),
        ([row("wrong", 15)], True),
        ([row("silent", 15)], True),
        ([row("error", 15, error="ConnectionLost")], False),
        ([row("error", 9, took=2, error="ConnectionLost")], False),
        ([row("error", 5, error="ConnectionLost")], True),
        ([row("error", 25, error="ConnectionLost")], True),
        ([row("right", 5), row("error", 25, error=FORGOTTEN)], False),
        ([row("right", 5), row("error", 22, error=FORGOTTEN), row("right", 24)], False),
        ([row("right", 5), row("right", 22), row("error", 25, error=FORGOTTEN)], True),
        ([row("error", 5, error=FORGOTTEN)], True),
        ([row("right", 5), row("error", 25, error=LOST)], False),
        ([row("right", 5), row("right", 22), row("error", 25, error=LOST)], True),
        ([row("unheard", 5, client="python-v1-legacy")], True),
        ([row("unheard", 25, client="python-v1-legacy")], False),
        ([row("unheard", 25)], True),
        ([row("unheard", 15)], False),
    ],
)
def test_a_run_fails_for_what_must_not_be(rows: list[Row], fails: bool) -> None:
    assert bool(failures(rows, PHASES)) == fails


def test_a_client_that_is_told_twice_is_counted() -> None:
    told = [row("error", 12, error=FORGOTTEN), row("error", 15, error=FORGOTTEN)]
    assert most_forgotten(told, PHASES[1]) == 2
