"""What the checks between Linux and Windows share: programs in Wine, and servers on either side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from environment import Environment, in_wine
from processes import Finished, run

PROGRAMS = Path(__file__).parent.parent / "programs"
# Seconds for a program that takes two or three on a quiet machine.
PATIENCE = 150
PATIENT: dict[str, Any] = {"timeout": PATIENCE, "probe_timeout": PATIENCE}
BINDINGS = ("http", "ws", "tcp")
LISTEN = [
    word
    for url in ("http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0")
    for word in ("--listen", url)
]
_URL = re.compile(r"(?:http|ws|tcp)://127\.0\.0\.1:[1-9]\d*[\w/]*")


class Windows:
    """Starts programs with CPython for Windows."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def command(self, *words: str) -> list[str]:
        return ["wine", str(self.environment.python), *words]

    def run(self, *words: str, limit: float = PATIENCE, **variables: str) -> Finished:
        finished = run(self.command(*words), limit=limit, env=self.environment.variables(**variables))
        assert finished.code is not None, f"longer than {limit} s: {words}\n{finished.output}"
        return finished

    def mcp(self, *words: str, **variables: str) -> Finished:
        """Runs the program ``mcp-actors``."""
        return self.run("-m", "mcp_actors", *words, **variables)


def _urls(lines: list[str]) -> dict[str, str]:
    """Returns the first URL of each scheme that has a port: with port 0 it is what the server was told."""
    found: dict[str, str] = {}
    for url in _URL.findall("".join(lines)):
        found.setdefault(url.partition(":")[0], url)
    return found


@contextmanager
def serving(
    command: list[str], env: dict[str, str] | None = None, *, count: int = 1
) -> Iterator[dict[str, str]]:
    """Runs a server and yields its URLs by their schemes, once it has named so many."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    ready = threading.Event()

    def read(output: Iterator[str]) -> None:
        for line in output:
            lines.append(line)
            if len(_urls(lines)) >= count:
                ready.set()

    reader = threading.Thread(target=read, args=(iter(process.stdout),), daemon=True)
    reader.start()
    try:
        assert ready.wait(PATIENCE), "".join(lines)
        yield _urls(lines)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def windows() -> Windows:
    return Windows(Environment(Path(os.environ["WINDOWS_HOME"])))


@pytest.fixture(scope="module")
def windows_server(windows: Windows) -> Iterator[dict[str, str]]:
    """`served.py` in Wine, over each binding of a network."""
    command = windows.command("-m", "mcp_actors", "serve", in_wine(PROGRAMS / "served.py"), *LISTEN)
    with serving(command, windows.environment.variables(), count=len(BINDINGS)) as urls:
        yield urls


@pytest.fixture(scope="module")
def linux_server() -> Iterator[dict[str, str]]:
    """The same on Linux."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(PROGRAMS / "served.py"), *LISTEN]
    with serving(command, count=len(BINDINGS)) as urls:
        yield urls
