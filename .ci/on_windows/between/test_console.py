"""What a person at a console of Windows types: Ctrl-C, and a login."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
import trio
from conftest import LISTEN, PATIENCE, PROGRAMS, Windows
from console import CTRL_C, terminal
from environment import in_wine

from mcp_actors import Client
from tests.cli.authorization_server import Issued, protected_server


def test_ctrl_c_ends_a_server(windows: Windows) -> None:
    words = ["-m", "mcp_actors", "serve", in_wine(PROGRAMS / "served.py"), *LISTEN]
    with terminal(windows.command(*words), windows.environment.variables(), PATIENCE) as session:
        session.until(lambda: "tcp://127.0.0.1:" in session.text)
        session.type(CTRL_C)
        assert session.wait() == 0


def test_ctrl_c_cancels_a_call_at_its_server(windows: Windows, linux_server: dict[str, str]) -> None:
    async def cancelled() -> int:
        async with Client(linux_server["http"]) as client:
            return await client.call_tool("count_cancelled", returns=int)

    before = trio.run(cancelled)
    words = ["-m", "mcp_actors", "call", linux_server["http"], "forecast", "city=x", "days:=100000"]
    with terminal(windows.command(*words), windows.environment.variables(), PATIENCE) as session:
        session.until(lambda: "asking for day" in session.text)
        session.type(CTRL_C)
        assert session.wait() == 130
    assert trio.run(cancelled) == before


def test_ctrl_break_lets_a_child_end_in_order(windows: Windows) -> None:
    words = windows.command(in_wine(PROGRAMS / "breaking.py"))
    with terminal(words, windows.environment.variables(), PATIENCE) as session:
        assert session.wait() == 0
        assert "console True" in session.text
        assert "ended in order" in session.text


# -- A login ---------------------------------------------------------------------------------------

KEPT = "AppData/Local/mcp-actors"
AUTHORIZE = re.compile(r"http://\S+/authorize\?\S+&scope=[\w%]+")


@pytest.fixture
def issued() -> Iterator[Issued]:
    with protected_server() as servers:
        yield servers


def test_a_login_is_kept_for_other_commands(windows: Windows, issued: Issued) -> None:
    variables = windows.environment.variables()
    # Wine gives each program the folder of local data that is in the profile, whatever LOCALAPPDATA is outside.
    profiles = windows.environment.home / "prefix" / "drive_c" / "users"
    for left in profiles.glob(f"*/{KEPT}"):
        shutil.rmtree(left)
    before = windows.mcp("call", issued.resource, "hello")
    assert before.code == 3, before.output
    with terminal(
        windows.command("-m", "mcp_actors", "login", issued.resource), variables, PATIENCE
    ) as session:
        # There is no browser there, so the URL is shown; who opens it follows the redirections back to the program.
        session.until(lambda: AUTHORIZE.search(session.text) is not None)
        shown = AUTHORIZE.search(session.text)
        assert shown is not None
        urlopen(shown[0], timeout=PATIENCE).close()
        assert session.wait() == 0, session.text
        assert "logged in to" in session.text
    (tokens,) = profiles.glob(f"*/{KEPT}/tokens.json")
    assert tokens.stat().st_size
    called = windows.mcp("call", issued.resource, "hello")
    assert (called.code, called.output.strip()) == (0, "hello")
    assert windows.mcp("whoami", issued.resource).code == 0
    assert windows.mcp("logout", issued.resource).code == 0
    assert windows.mcp("call", issued.resource, "hello").code == 3
