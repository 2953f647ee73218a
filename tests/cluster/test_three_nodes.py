"""Three nodes behind HAProxy without affinity, under the load of all clients, lose nodes and answer rightly.

Each call has a token of its own and each topic a subscriber of its own, so that an answer, a progress report or an
update that reaches the wrong call or the wrong client is seen. While they call, one node is killed, one is cut off and
one is drained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from interop.installation import Peers

from .figures import Phase, failures, most_forgotten, table
from .load import Load, Row
from .processes import NODES, Cluster, open_cluster

SESSIONS = int(os.environ.get("MCP_NODES_SESSIONS", "24"))
CALM = float(os.environ.get("MCP_NODES_CALM", "0.5"))  # seconds of each phase without a disturbance
CUT = float(os.environ.get("MCP_NODES_CUT", "3"))  # seconds for which a node is cut off
FIGURES = os.environ.get("MCP_NODES_FIGURES")
"""A file that the figures are written to."""
AFTER = float(os.environ.get("MCP_NODES_AFTER", "0.5"))  # seconds after a disturbance that count as disturbed


class Run:
    """One run, phase after phase."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.phases: list[Phase] = []
        self.drained: tuple[int, float] = (-1, 0.0)

    def phase(self, name: str, seconds: float, act: Callable[[], None] | None = None) -> None:
        """Lets the load run for ``seconds`` after ``act``."""
        began = time.time()
        if act is not None:
            act()
        end = time.time() + seconds
        while time.time() < end:
            time.sleep(0.05)
        self.phases.append(Phase(name, began, time.time(), calm=act is None))

    def replace(self) -> None:
        """Starts a node in the place of the one that was killed, as a supervisor would."""
        self.cluster.start_nodes(NODES[0])

    def drain(self) -> None:
        self.drained = self.cluster.drain(NODES[2])
        self.cluster.start_nodes(NODES[2])

    def everything(self) -> None:
        self.phase("before", CALM)
        self.phase("killed", AFTER, lambda: self.cluster.kill(NODES[0]))
        self.phase("replaced", AFTER, self.replace)
        self.phase("calm again", CALM)
        self.phase("cut off", CUT, lambda: self.cluster.network.cut(NODES[1]))
        self.phase("healed", AFTER, lambda: self.cluster.network.heal(NODES[1]))
        self.phase("once more", CALM)
        self.phase("drained", AFTER, self.drain)
        self.phase("after", CALM)


def report(run: Run, rows: list[Row], times: list[float]) -> str:
    starting, connecting, running, ending = (later - earlier for earlier, later in pairwise(times))
    memory = {node: run.cluster.memory(node) // 1024 for node in NODES}
    text = "\n".join(
        [
            f"in {run.cluster.network.kind}",
            table(rows, run.phases),
            f"seconds to start {starting:.1f}, connect {connecting:.1f}, run {running:.1f}, end {ending:.1f}",
            f"memory in MB: {memory}; drained with code {run.drained[0]} in {run.drained[1]:.1f} s",
        ]
    )
    if FIGURES:
        Path(FIGURES).write_text(text + "\n")
    return text


@pytest.mark.long
def test_every_call_ends_rightly_or_with_a_typed_error(peers: Peers, tmp_path: Path) -> None:
    times = [time.monotonic()]
    with open_cluster(tmp_path) as cluster:
        load = Load(cluster, peers, SESSIONS)
        cluster.start_all()
        times.append(time.monotonic())
        run = Run(cluster)
        load.begin()
        times.append(time.monotonic())
        run.everything()
        times.append(time.monotonic())
        load.end()
        rows = load.rows()
        times.append(time.monotonic())
        text = report(run, rows, times)
    assert failures(rows, run.phases) == [], text
    assert run.drained[0] == 0, text
    assert most_forgotten(rows, next(phase for phase in run.phases if phase.name == "drained")) <= 1, text
    assert {row["client"] for row in rows if row["end"] == "right"} == set(load.started), text


# -- Redis is cut off from three nodes for a while: packets to it vanish, and no connection is refused or reset ---
#
# What needs nothing of the shared state goes on as if nothing were. What needs it is refused within a bound by an error
# that says so, and works again by itself when Redis is back: nothing is started again.

PROGRAM = Path(__file__).parent / "clients" / "partition.py"
CUT_REDIS_AWAY = float(os.environ.get("MCP_NODES_CUT", "4"))  # seconds for which Redis is cut off
FIGURES_REDIS_AWAY = os.environ.get("MCP_NODES_AWAY_FIGURES")
"""A file that the figures are written to."""
AT_ONCE = 1.9  # seconds for an answer that waits for nothing: one that waits for Redis takes the 2 s of such a request
BOUND = 15.0  # seconds for a refusal: twice those 2 s, and a busy machine
BACK = 60.0  # seconds until everything works again
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
        while time.monotonic() - cut < CUT_REDIS_AWAY:
            away.append(ask("ask"))
        cluster.network.heal("redis")
        healed = time.monotonic()
        back = ask("ask")
        while not works(back) and time.monotonic() - healed < BACK:
            time.sleep(0.2)
            back = ask("ask")
        took = time.monotonic() - healed
        told = "\n".join([f"in {cluster.network.kind}; all works again {took:.1f} s later", *ask.told])
    if FIGURES_REDIS_AWAY:
        Path(FIGURES_REDIS_AWAY).write_text(told + "\n")
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
