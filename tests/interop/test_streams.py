"""Parts of a result at the official Python clients, which know nothing of them: each is a report at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .installation import Peers
from .servers import DRIVERS
from .user import LIMIT

SERVER = Path(__file__).parent / "stream_server.py"


@pytest.mark.parametrize(
    ("generation", "mode"), [("python_v1", "legacy"), ("python", "legacy"), ("python", "auto")]
)
def test_each_part_is_a_report_before_the_next_one_is_made(peers: Peers, generation: str, mode: str) -> None:
    driver = [str(getattr(peers, generation)), str(DRIVERS / "stream_client.py"), mode]
    done = subprocess.run(
        [*driver, sys.executable, str(SERVER)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"messages": ["once ", "upon ", "a time"], "text": "once upon a time"}
