"""Servers that are batch files, as npx and uvx are: what reaches the program behind them, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
from running import PATIENCE, PROGRAMS, connected

from mcp_actors.errors import ConnectFailed
from mcp_transports.stdio import StdioClientTransport

HARMLESS = [
    "",
    "a b",
    "x&y",
    "!z^",
    "(a|b)",
    "<in >out",
    "C:\\dir\\",
    "https://x/?a=1&b=2",
    "PATH",
    "'",
    "ä",
    "a=b;c,d",
]


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """A batch file, in a folder with a blank in its name, that hands its arguments on to the server of these checks."""
    folder = tmp_path / "my servers"
    folder.mkdir()
    path = folder / "serve-it.cmd"
    path.write_text(f'@"{sys.executable}" "{PROGRAMS / "served.py"}" "{tmp_path / "end"}" %*\n')
    return path


async def test_arguments_arrive_as_they_are(batch: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with connected(StdioClientTransport([str(batch), *HARMLESS])) as client:
            arguments = await client.call_tool("arguments", returns=list[str])
    assert arguments[2:] == HARMLESS
    end = batch.parent.parent / "end"
    assert arguments[1] == str(end)
    assert end.read_text() == "ended in order"


async def test_it_is_found_by_its_name_alone(batch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(batch.parent), prepend=";")
    with trio.fail_after(PATIENCE):
        async with connected(StdioClientTransport(["serve-it", "x"])) as client:
            assert (await client.call_tool("arguments", returns=list[str]))[2:] == ["x"]


@pytest.mark.parametrize(
    "argument", ["100%", "%PATH%", 'say "hi"', '" & calc & "', "a\nb", "a\rb"], ids=ascii
)
async def test_what_could_run_another_command_is_refused(batch: Path, argument: str) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(ConnectFailed, match="it is a batch file, and no argument"):
        async with StdioClientTransport([str(batch), argument]).connect():
            pass
