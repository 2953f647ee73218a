"""A call that says nothing for 320 seconds, through nginx and HAProxy with Debian's settings, in both eras.

nginx gives up a silent upstream after 60 seconds and HAProxy after 50; Node's fetch and the official Python client give
up after 300. All calls run side by side, so that the module takes as long as one of them. What takes no time, because
it is virtual, is in ``tests/transports/http/test_silent_requests.py`` and ``tests/actors/test_beats.py``.

The options that the clients need: the official Python client none; the official TypeScript client
``resetTimeoutOnProgress`` with an ``onprogress``, since its clock of 60 seconds for a request runs on without; ours
``cap=math.inf``, since a call of more than 300 seconds is ended by its cap.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.installation import Peers
from tests.interop.proxies.programs import PROXIES, proxied
from tests.interop.servers import DRIVERS, Launch, Served

SECONDS = 320.0
LIMIT = SECONDS + 120.0  # seconds for everything
# Seconds between two beats, and what each may be late on a busy machine.
BEAT, LATE = 15.0, 1.0
VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
CLIENTS = ("python", "typescript", "ours")
ROWS = [(proxy, client, era) for proxy in PROXIES for client in CLIENTS for era in VERSIONS]
TOOL = "say_nothing"
SERVER = Path(__file__).parent / "silent_server.py"

Row = tuple[str, str, str]


def command(peers: Peers, client: str, era: str, url: str) -> list[str]:
    call = [url, TOOL, str(SECONDS)]
    mode = "legacy" if era == "legacy" else "auto"
    if client == "python":
        return [str(peers.python), str(DRIVERS / "silent_call.py"), mode, *call]
    if client == "typescript":
        return [str(peers.node), str(DRIVERS / "silent_call.mjs"), str(peers.modules), mode, *call]
    return [sys.executable, str(Path(__file__).parent / "our_call.py"), era, *call]


@pytest.fixture(scope="module")
def reports(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Row, Any]]:
    """What each client printed, and what it wrote if it failed. All of them run at the same time."""
    folder = tmp_path_factory.mktemp("proxies")
    with ExitStack() as stack:
        served = Served(
            Launch(
                [
                    sys.executable,
                    "-m",
                    "mcp_actors",
                    "serve",
                    str(SERVER),
                    "--listen",
                    "http://127.0.0.1:0/mcp",
                ],
                r"^serving .*:(\d+)/mcp$",
            )
        )
        stack.callback(served.stop)
        upstream = f"127.0.0.1:{served.port()}"
        urls = {
            name: f"http://{stack.enter_context(proxied(name, folder / name, upstream))}/mcp"
            for name in PROXIES
        }
        running: dict[Row, subprocess.Popen[str]] = {}
        for proxy, client, era in ROWS:
            process = subprocess.Popen(
                command(peers, client, era, urls[proxy]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            running[proxy, client, era] = process
        yield {row: report_of(process) for row, process in running.items()}
        assert served.process.poll() is None


def report_of(process: subprocess.Popen[str]) -> Any:
    try:
        printed, written = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"it did not end within {LIMIT:g} s"
    if process.returncode != 0:
        return f"it ended with {process.returncode}: {written[-4000:]}"
    return json.loads(printed)


@pytest.mark.long
@pytest.mark.parametrize(("proxy", "client", "era"), ROWS)
def test_a_silent_call_is_answered_through_a_proxy(
    reports: dict[Row, Any], proxy: str, client: str, era: str
) -> None:
    report = reports[proxy, client, era]
    assert not isinstance(report, str), report
    assert report["version"] == VERSIONS[era]
    assert report["text"] == f"slept {SECONDS:g} s"
    assert report["took"] >= SECONDS
    if client != "python":
        # It was asked for progress: a beat in every quarter of a minute, each larger than the one before.
        told = report["progress"]
        assert SECONDS // (BEAT + LATE) <= len(told) <= SECONDS // BEAT
        assert sorted(set(told)) == told
