"""The programs of the page on authorization, with an authorization server of others in place of the example."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_readme import environment, folder

from interop.servers import free_port
from interop.user import LIMIT

from .programs import Issuer

__all__ = ["environment", "folder"]

PORT = "127.0.0.1:8000"
EXAMPLE_ISSUER = "http://127.0.0.1:9000"
BROWSER = """
import sys, urllib.request
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
browser.open(sys.argv[1]).read()  # follows the redirections, and so agrees to everything
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
def served(issuer: Issuer, folder: Path, place: str, settings: dict[str, str]) -> Iterator[None]:
    program = folder / "notes.py"
    assert EXAMPLE_ISSUER in program.read_text()
    program.write_text(program.read_text().replace(EXAMPLE_ISSUER, issuer.url))
    process = subprocess.Popen([sys.executable, str(program)], env=settings)
    try:
        wait_until_it_listens(place, process)
        yield
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0


def wait_until_it_listens(place: str, process: subprocess.Popen[bytes]) -> None:
    """A program of the README says nothing while all is well: it is asked until it answers."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{place}/.well-known/oauth-protected-resource/mcp").close()
        except OSError:
            continue
        return
    pytest.fail(f"notes.py ended with {process.returncode}")


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


def test_a_person_logs_in_once(issuer: Issuer, served: None, folder: Path, settings: dict[str, str]) -> None:
    before = issuer.count("authorized")
    assert on_a_terminal(folder / "login.py", settings) == "1 noted, the last for alice\n"
    logins = issuer.count("authorized", before + 1) - before
    assert on_a_terminal(folder / "login.py", settings) == "2 noted, the last for alice\n"
    assert issuer.count("authorized") - before == logins


def test_a_program_has_access_of_its_own(served: None, folder: Path, settings: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(folder / "machine.py")],
        env=settings,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("1 noted, the last for machine\n", 0), done.stderr
