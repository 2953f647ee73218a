"""The programs of the README: a protected server, a person who logs in, and a program with access of its own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_readme import environment, folder

from interop.servers import Launch, Served, free_port
from interop.user import LIMIT

from .programs import Issuer

__all__ = ["environment", "folder"]

PORT = "127.0.0.1:8000"
BROWSER = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1]).read()  # follows the redirections, and so agrees to everything
"""


@pytest.fixture
def place(folder: Path) -> str:
    """The address that the programs use in this test."""
    place = f"127.0.0.1:{free_port()}"
    for name in ("notes.py", "login.py", "machine.py"):
        text = (folder / name).read_text()
        assert PORT in text
        (folder / name).write_text(text.replace(PORT, place))
    (folder / "browser.py").write_text(BROWSER)
    return place


@pytest.fixture
def settings(environment: dict[str, str], folder: Path) -> dict[str, str]:
    return {
        **environment,
        "BROWSER": f"{sys.executable} {folder / 'browser.py'} %s",
        "XDG_STATE_HOME": str(folder / "state"),
        "MACHINE_SECRET": "machine-secret",
    }


@pytest.fixture
def served(issuer: Issuer, folder: Path, place: str, settings: dict[str, str]) -> Iterator[Served]:
    command = [sys.executable, str(folder / "notes.py"), issuer.url]
    server = Served(Launch(command, rf"^(?:.*)http://{re.escape(place)}/mcp", settings))
    try:
        server.port()
        yield server
    finally:
        server.stop()


def on_a_terminal(program: Path, settings: dict[str, str]) -> str:
    """What a program prints whose input and errors are a terminal."""
    screen, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, str(program)],
            env=settings,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, os.read(screen, 100_000).decode()
        return done.stdout
    finally:
        os.close(screen)
        os.close(terminal)


def test_a_person_logs_in_once(
    issuer: Issuer, served: Served, folder: Path, settings: dict[str, str]
) -> None:
    before = issuer.count("authorize")
    assert on_a_terminal(folder / "login.py", settings) == "1 noted, the last for alice\n"
    logins = issuer.count("authorize") - before
    assert on_a_terminal(folder / "login.py", settings) == "2 noted, the last for alice\n"
    assert issuer.count("authorize") - before == logins


def test_a_program_has_access_of_its_own(served: Served, folder: Path, settings: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(folder / "machine.py")],
        env=settings,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("1 noted, the last for machine\n", 0), done.stderr
