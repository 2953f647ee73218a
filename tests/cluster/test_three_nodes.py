"""Three nodes behind HAProxy without affinity, under the load of all clients, lose nodes and answer rightly.

Each call has a token of its own and each topic a subscriber of its own, so that an answer, a progress report or an
update that reaches the wrong call or the wrong client is seen. While they call, one node is killed, one is cut off and
one is drained.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

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
