from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forking import ForkingServer

ROOT = Path(__file__).parents[2]
SERVED = Path(__file__).with_name("served.py")
LIMIT = 60  # seconds: nothing here takes a tenth of it

Ran = subprocess.CompletedProcess[str]
Started = Callable[..., AbstractContextManager[subprocess.Popen[str]]]


def checkout_environment() -> dict[str, str]:
    """That of the tests, with the checkout importable and without colours forced on or off."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    path = [str(ROOT), str(ROOT / "transports"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path), "TERM": "xterm-256color", "COLUMNS": "120"}


@pytest.fixture
def environment() -> dict[str, str]:
    return checkout_environment()


@pytest.fixture(scope="session")
def forking_server() -> Iterator[ForkingServer]:
    server = ForkingServer(checkout_environment())
    yield server
    server.close()


@pytest.fixture
def mcp(forking_server: ForkingServer, environment: dict[str, str], tmp_path: Path) -> Callable[..., Ran]:
    """Runs ``mcp-actors`` with words, without a terminal, in an empty directory."""

    def run(*words: str, text: str = "") -> Ran:
        return forking_server.run(list(words), text, tmp_path, environment, LIMIT)

    return run


@pytest.fixture
def started(environment: dict[str, str]) -> Started:
    """Starts ``mcp-actors`` with words for the length of a block, whose end it does not survive, nor ``limit``."""

    @contextmanager
    def start(*words: str, limit: float = LIMIT, **options: Any) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "mcp_actors", *words]
        with subprocess.Popen(command, text=True, env=environment, **options) as process:
            watchdog = threading.Timer(limit, process.kill)  # whoever waits for a line of it waits no longer
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                process.kill()

    return start


@pytest.fixture(scope="session")
def socket_url() -> Iterator[str]:
    """The URL of one process with the server of ``served.py``, for tests that are about what is said and shown."""
    with tempfile.TemporaryDirectory() as folder:
        at = f"unix://{folder}/served"
        command = [sys.executable, "-m", "mcp_actors", "serve", str(SERVED), "--listen", at]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=checkout_environment()
        ) as process:
            assert process.stderr is not None
            assert at in process.stderr.readline()
            yield at
            process.kill()


@pytest.fixture
def url() -> str:
    """A URL that starts the server of ``served.py``."""
    return "stdio:" + shlex.join([sys.executable, "-m", "mcp_actors", "serve", str(SERVED)])
