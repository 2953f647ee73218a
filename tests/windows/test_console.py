"""Reading a secret line from the console of Windows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from mcp_actors.errors import LoginFailed, LoginRequired
from mcp_transports.auth.terminal import MAX_LINE, Console

from .system import FakeConsole, fake_msvcrt


@pytest.fixture
def device(tmp_path: Path) -> str:
    (tmp_path / "console").touch()
    return str(tmp_path / "console")


def type_keys(patch: pytest.MonkeyPatch, keys: str) -> None:
    patch.setitem(sys.modules, "msvcrt", fake_msvcrt(FakeConsole(keys)))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("http://x/?code=1\r", "http://x/?code=1"),
        ("abc\b\x7fd\n", "ad"),
        ("\b\bx\r", "x"),
        ("a\xe0Kb\x00;c\r", "abc"),  # an arrow and a function key
        ("ü€\r", "ü€"),
    ],
)
async def test_a_line_is_read_up_to_enter(
    keys: str, line: str, device: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    type_keys(monkeypatch, keys)
    with Console(device) as console:
        assert await console.read_line() == line


@pytest.mark.parametrize(
    "keys", ["abc\x1a", "\x04", "x" * (MAX_LINE + 1) + "\r"], ids=["Ctrl-Z", "Ctrl-D", "long"]
)
async def test_input_that_is_no_answer_ends_the_login(
    keys: str, device: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    type_keys(monkeypatch, keys)
    with Console(device) as console, pytest.raises(LoginFailed, match="given up"):
        await console.read_line()


async def test_ctrl_c_interrupts(
    device: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    type_keys(monkeypatch, "abc\x03")
    with Console(device) as console, pytest.raises(KeyboardInterrupt):
        await console.read_line()


async def test_waiting_for_keys_can_be_cancelled(
    device: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    type_keys(monkeypatch, "abc")
    with Console(device) as console, trio.move_on_after(60) as scope:
        await console.read_line()
    assert scope.cancelled_caught


def test_without_a_console_a_person_is_told_what_to_do() -> None:
    with (
        pytest.raises(LoginRequired, match="no console at CONIN\\$: run 'mcp-actors login'"),
        Console("CONIN$"),
    ):
        pass
