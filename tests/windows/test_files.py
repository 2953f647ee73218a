"""The file of tokens with the branches for Windows: locks of msvcrt, files that others have open, and its place."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors.errors import LoginFailed, LoginRequired
from mcp_transports.auth.terminal import MAX_LINE, Console

from .pretended import run_in_windows
from .system import FakeConsole, fake_msvcrt

PROGRAM = """
import json, os, sys
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(everything=True, kernel32=lambda: None, msvcrt=fake_msvcrt())
import trio, trio.testing
from mcp_actors.errors import TokenStoreFailed
from mcp_transports.auth import file_store
from mcp_transports.auth.browsers import PastedAnswer
from mcp_transports.auth.file_store import FileLock
from mcp_transports.auth.file_store import FileTokenStore, default_token_file
folder, said = sys.argv[1], {}

def refusing(real, times):
    # A file that another process has open can be neither replaced nor opened by some.
    left = [times]
    def attempt(*arguments, **options):
        if left[0]:
            left[0] -= 1
            raise PermissionError(13, "Access is denied")
        return real(*arguments, **options)
    return attempt

async def swaps():
    store, other = FileTokenStore(folder + "/new/tokens.json"), FileTokenStore(folder + "/new/tokens.json")
    said["first"] = [await store.swap("key", None, {"token": "secret"}), await other.swap("key", None, {})]
    real = os.replace
    os.replace = refusing(real, 3)
    said["second"] = await store.swap("key", (await other.load("key")).generation, {"token": "next"})
    os.replace = refusing(real, 10**6)
    file_store.PATIENCE = 0.05
    try:
        await store.swap("other", None, {})
    except TokenStoreFailed as error:
        said["refused"] = str(error)
    os.replace = real
    said["token"] = (await other.load("key")).value
    said["files"] = sorted(os.listdir(folder + "/new"))

async def locks():
    one, two = FileLock(folder + "/lock"), FileLock(folder + "/lock")
    order = []
    async def wait():
        await two.acquire()
        order.append("second")
        two.release()
    await one.acquire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked(0.005)
        order.append("first ends")
        one.release()
    said["order"] = order

async def failing():
    import errno, msvcrt
    before, real = len(os.listdir("/proc/self/fd")), msvcrt.locking
    def refuse(descriptor, mode, length):
        raise OSError(errno.EINVAL if mode == msvcrt.LK_NBLCK else errno.EACCES, "no locks here")
    msvcrt.locking = refuse
    try:
        await FileLock(folder + "/lock").acquire()
    except OSError as error:
        said["failed"] = [error.errno, len(os.listdir("/proc/self/fd")) - before]
    msvcrt.locking = real

trio.run(swaps)
trio.run(locks)
trio.run(failing)
said["default"] = str(default_token_file())
del os.environ["LOCALAPPDATA"]
said["without"] = str(default_token_file())
said["terminal"] = repr(PastedAnswer())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALAPPDATA", "/profile/Local")
        patch.setenv("HOME", "/profile")
        found: dict[str, Any] = json.loads(run_in_windows(PROGRAM, str(tmp_path_factory.mktemp("tokens"))))
    return found


@pytest.mark.slow
def test_a_swap_is_made_once(said: dict[str, Any]) -> None:
    assert said["first"] == [True, False]
    assert said["files"] == ["tokens.json", "tokens.json.lock"]


def test_a_file_that_others_have_open_is_tried_again(said: dict[str, Any]) -> None:
    assert said["second"] is True
    assert said["token"] == {"token": "next"}


def test_a_file_that_stays_open_is_left_as_it_is(said: dict[str, Any]) -> None:
    assert "cannot be used (Access is denied)" in said["refused"]


def test_a_lock_is_held_by_one(said: dict[str, Any]) -> None:
    assert said["order"] == ["first ends", "second"]


def test_a_lock_that_fails_says_why_and_keeps_nothing_open(said: dict[str, Any]) -> None:
    assert said["failed"] == [errno.EINVAL, 0]


def test_the_file_is_in_the_profile(said: dict[str, Any]) -> None:
    assert Path(said["default"]) == Path("/profile/Local/mcp-actors/tokens.json")
    assert Path(said["without"]) == Path("/profile/AppData/Local/mcp-actors/tokens.json")


def test_answers_are_pasted_at_the_console(said: dict[str, Any]) -> None:
    assert said["terminal"] == "<PastedAnswer at CONIN$>"


# -- Reading a secret line from the console of Windows ---------------------------------------------------


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
