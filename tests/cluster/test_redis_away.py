"""Redis is cut off from three nodes for a while: packets to it vanish, and no connection is refused or reset.

What needs nothing of the shared state goes on as if nothing were. What needs it is refused within a bound by an error
that says so, and works again by itself when Redis is back: nothing is started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.installation import Peers

from .processes import NODES, Cluster, open_cluster

PROGRAM = Path(__file__).parent / "clients" / "partition.py"
CUT = float(os.environ.get("MCP_NODES_CUT", "4"))  # seconds for which Redis is cut off
FIGURES = os.environ.get("MCP_NODES_AWAY_FIGURES")
"""A file that the figures are written to."""
AT_ONCE = 1.0  # seconds for an answer that waits for nothing, on a busy machine
BOUND = (
    6.0  # seconds for a refusal: twice the timeout of a request to Redis, which is 2 s, and a busy machine
)
BACK = 20.0  # seconds until everything works again
INDEPENDENT = ("stateless here", "stateless there", "publish", "session at its node")
NEEDED = {"session at another node": {"sessions", "bus"}, "new session": {"sessions"}, "new task": {"tasks"}}
"""What each of these needs of the shared state: one of these, the first that is missed."""

Asked = dict[str, dict[str, Any]]


class Asking:
    """The program that asks, which is told by its standard input when to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []

    def __call__(self, word: str) -> Asked:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        answers: Asked = json.loads(self.process.stdout.readline())
        for name, asked in answers.items():
            self.told.append(f"{asked['status']} in {asked['took']:6.3f} s  {name}: {shown(asked['answer'])}")
        self.told.append("")
        return answers


def shown(answer: Any) -> str:
    return json.dumps(answer.get("error", "a result") if isinstance(answer, dict) else answer)[:200]


@contextmanager
def asking(cluster: Cluster) -> Iterator[Asking]:
    command = [sys.executable, str(PROGRAM), *map(cluster.node_url, NODES)]
    process = subprocess.Popen(
        cluster.network.command("clients", command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield Asking(process)
        finally:
            process.kill()


def works(answers: Asked) -> bool:
    return all("result" in asked["answer"] for asked in answers.values())


def test_what_needs_redis_is_refused_while_it_is_away_and_the_rest_goes_on(
    peers: Peers, tmp_path: Path
) -> None:
    with open_cluster(tmp_path) as cluster, asking(cluster) as ask:
        cluster.start_all()
        assert works(ask("begin"))
        assert works(ask("ask")), ask.told
        cluster.network.cut("redis")
        cut = time.monotonic()
        away = [ask("ask")]  # while the nodes have yet to notice
        while time.monotonic() - cut < CUT:
            away.append(ask("ask"))
        cluster.network.heal("redis")
        healed = time.monotonic()
        back = ask("ask")
        while not works(back) and time.monotonic() - healed < BACK:
            time.sleep(0.2)
            back = ask("ask")
        took = time.monotonic() - healed
        told = "\n".join([f"in {cluster.network.kind}; all works again {took:.1f} s later", *ask.told])
    if FIGURES:
        Path(FIGURES).write_text(told + "\n")
    assert works(back), told
    for answers in away:
        for name in INDEPENDENT:
            assert "result" in answers[name]["answer"], (name, told)
            assert answers[name]["took"] < AT_ONCE, (name, told)
        assert "result" in answers["stream at its node"]["answer"], told
        assert answers["stream at its node"]["took"] < BOUND, told
        for name, roles in NEEDED.items():
            error = answers[name]["answer"]["error"]
            assert error["code"] == 503, (name, told)
            assert error["data"]["reason"] == "shared_state_unavailable", (name, told)
            assert error["data"]["role"] in roles, (name, told)
            assert answers[name]["took"] < BOUND, (name, told)
