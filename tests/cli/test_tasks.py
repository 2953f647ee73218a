"""Tasks on the command line: they are started, left running, and come back to."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import LIMIT, Ran, Started
from .test_terminal import CTRL_C, Terminal
from .test_terminal import terminal as terminal

SERVED = Path(__file__).with_name("tasks_served.py")


@pytest.fixture
def address(started: Started, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that outlives the commands."""
    path = tmp_path / "socket"
    with started("serve", str(SERVED), "--listen", f"unix://{path}"):
        end = time.monotonic() + LIMIT
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        yield f"unix://{path}"


def id_in(text: str) -> str:
    found = re.search(r"^.*?task (\S{16,})", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_task_is_started_and_waited_for(
    mcp: Callable[..., Ran], address: str, tmp_path: Path, era: str
) -> None:
    released = tmp_path / "released"
    released.touch()
    ran = mcp("call", "--task", "--era", era, address, "until", f"released={released}")
    assert (ran.returncode, ran.stdout) == (0, "released\n")
    assert id_in(ran.stderr)


def test_a_tool_without_tasks_is_just_called(mcp: Callable[..., Ran], address: str) -> None:
    ran = mcp("call", "--task", address, "plain")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "at once\n", "")


def test_ctrl_c_leaves_a_task_running_and_says_how_to_go_on(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    session = terminal("call", "--task", address, "until", f"released={released}")
    session.until(lambda: "halfway" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    id = id_in(session.text)
    assert f"mcp-actors tasks {address} result {id}" in session.text
    seen = mcp("tasks", address, "get", id, "--json")
    assert json.loads(seen.stdout)["status"] == "working"
    released.touch()
    ran = mcp("tasks", address, "result", id)
    assert (ran.returncode, ran.stdout) == (0, "released\n")


def test_ctrl_c_cancels_a_task_that_a_plain_call_became(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str
) -> None:
    session = terminal("call", address, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert "mcp-actors: cancelled; the server was told" in session.text


def test_result_asks_the_person_what_the_task_asks(terminal: Callable[..., Terminal], address: str) -> None:
    session = terminal("call", "--task", address, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    later = terminal("tasks", address, "result", id_in(session.text))
    later.until(lambda: "answer?" in later.text)
    later.type(b"y\n")
    later.until(lambda: "name" in later.text)
    later.type(b"Ada\n")
    assert later.wait() == 0
    assert "accept {'name': 'Ada'}" in later.text


def test_a_task_is_cancelled(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str
) -> None:
    session = terminal("call", "--task", address, "until", "released=/nowhere/at/all")
    session.until(lambda: "halfway" in session.text)
    session.type(CTRL_C)
    session.wait()
    id = id_in(session.text)
    assert mcp("tasks", address, "cancel", id).returncode == 0
    ran = mcp("tasks", address, "result", id)
    assert ran.returncode == 1
    assert "was cancelled" in ran.stderr


def test_what_is_wrong_is_said(mcp: Callable[..., Ran], address: str) -> None:
    unknown = mcp("tasks", address, "get", "no-such-task")
    assert (unknown.returncode, "no such task" in unknown.stderr) == (1, True)
    assert mcp("tasks", address, "get").returncode == 2
