"""A Jupyter kernel that runs a notebook, cell after cell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from interop.installation import Peers

from .conftest import PROGRAMS

PATIENCE = 120  # seconds; it takes about five


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def run_notebook() -> None: ...


def test_a_notebook(peers: Peers, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [str(peers.worlds), str(PROGRAMS / "notebook.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    state = json.loads(shown.pop("state"))
    kernel = int(shown.pop("left in flight"))
    assert shown == {
        "opens": "'tools'",
        "calls": "3\n",
        "progress": "1\n2\n3\n",
        "elicitation": "accept {'name': 'Ada'}\n",
        "interrupted: raised": "CancelledError",
        "interrupted": "begins\n",
        "without await": "7\n",
        "interrupted without await: raised": "KeyboardInterrupt",
        "interrupted without await": "begins\n",
    }
    # The call of the cell that was interrupted is cancelled at the server, and the client goes on.
    assert (state["running"], state["cancelled"]) == (1, 1)
    assert not is_alive(state["pid"]), "the kernel left a child behind"
    assert not is_alive(kernel)
