"""An official client that leaves its session with a call in flight: its DELETE ends the call, and it leaves quietly."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest

from .installation import Peers
from .servers import DRIVERS, reachable

LIMIT = 120.0  # seconds for one driver; it takes about ten
TIMES = 20


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("sleep", {"seconds": 20, "steps": 1}), ("sleep", {"seconds": 20, "steps": 1000})],
    ids=["not answered", "a stream"],
)
def test_leaving_a_call_in_flight_raises_nothing(peers: Peers, tool: str, arguments: dict[str, int]) -> None:
    with reachable(peers, "ours", "http") as server:
        command = [str(peers.python_v1), str(DRIVERS / "python_v1_leave.py")]
        command += [server.target, str(TIMES), tool, json.dumps(arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert Counter(done.stdout.splitlines()) == {"left": TIMES}
