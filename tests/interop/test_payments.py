"""The official clients at a server that uses effects once, keys and approvals: nothing breaks, and this is their gain.

They know nothing of keys, but each can send one in ``_meta``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .installation import Peers
from .servers import DRIVERS, Launch, Served
from .test_gateways import CLIENTS, TALK_LIMIT

SERVER = Path(__file__).parent / "payment_server.py"
Reports = dict[str, Any]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVER), "--listen", "http://127.0.0.1:0/mcp"]
    served = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield f"http://127.0.0.1:{served.port()}/mcp"
    finally:
        code = served.stop()
    assert (code, "Traceback" in served.output) == (0, False), served.output[-6000:]


@pytest.fixture(scope="module")
def reports(peers: Peers, url: str) -> Reports:
    programs = {
        "python": [str(peers.python), str(DRIVERS / "planned_client.py")],
        "fastmcp": [str(peers.fastmcp), str(DRIVERS / "planned_client.py")],
        "typescript": [str(peers.node), str(DRIVERS / "planned_client.mjs"), str(peers.modules)],
    }

    def run(program: str) -> Reports:
        names = [client for client in CLIENTS if CLIENTS[client][0] == program]
        connections = [
            {"kind": CLIENTS[name][1], "mode": CLIENTS[name][2], "url": url, "plan": plan_of(name)}
            for name in names
        ]
        given = json.dumps(connections)
        done = subprocess.run(
            programs[program], input=given, capture_output=True, text=True, timeout=TALK_LIMIT, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr[-6000:]}"
        return dict(zip(names, json.loads(done.stdout), strict=True))

    with ThreadPoolExecutor() as threads:
        return {name: report for each in threads.map(run, programs) for name, report in each.items()}


def plan_of(client: str) -> list[Any]:
    payment = {"cents": 5, "to": client}
    return [
        ["buy", "call", "buy", {"book": client}],
        ["plain", "call", "pay", payment],
        ["first", "keyed", "pay", payment, f"order-{client}"],
        ["again", "keyed", "pay", payment, f"order-{client}"],
        ["other", "keyed", "pay", {**payment, "cents": 6}, f"order-{client}"],
        ["deleted", "keyed", "delete", {"path": client}, f"delete-{client}"],
        ["deleted again", "keyed", "delete", {"path": client}, f"delete-{client}"],
    ]


def text_of(result: Any) -> str:
    assert "error" not in result, result
    return str(result["content"][0]["text"])


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def report(reports: Reports, client: str) -> Any:
    return reports[client]


def test_effects_between_questions_happen_once(report: Any) -> None:
    # The function runs three times for a stateless client.
    assert text_of(report["steps"]["buy"]) == "1 1 my name my name"


def test_a_key_in_the_meta_of_any_client_counts(report: Any) -> None:
    steps = report["steps"]
    assert text_of(steps["plain"]) == "1"
    assert text_of(steps["first"]) == text_of(steps["again"]) == "2"
    assert steps["other"]["error"]["code"] == 409


def test_a_person_is_asked_once_for_a_call_with_a_key(report: Any, client: str) -> None:
    steps = report["steps"]
    for step in ("deleted", "deleted again"):
        assert text_of(steps[step]) == f"deleted {client} for the 1. time"
    # Two questions of the first tool, and one approval.
    assert report["asked"] == ["elicitation/create"] * 3


def test_each_client_speaks_its_revision(report: Any, client: str) -> None:
    assert report["version"] == CLIENTS[client][3]
