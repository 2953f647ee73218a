"""What a child writes to stderr reaches whoever started it, and no message about a child repeats its arguments."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import ConnectFailed, ConnectionLost
from mcp_transports.stdio import StdioClientTransport

TIMEOUT = 30
SPEAKS = "import sys; sys.stderr.write('opening\\n' + 'x' * 5000 + '\\nno newline'); sys.exit(3)"
# Connects to SPEAKS with the default of `stderr`, and says what the error says.
PROGRAM = f"""
import sys, trio
from mcp_actors import Client
from mcp_actors.errors import ConnectionLost
async def main():
    try:
        async with Client([sys.executable, "-c", {SPEAKS!r}], era="legacy"):
            pass
    except ConnectionLost as error:
        print(error.exit_code, error.stderr[0], len(error.stderr), flush=True)
trio.run(main)
"""


async def lines_with(stderr: Any, code: str = SPEAKS) -> tuple[str, ...]:
    """Runs a child to its end; returns the lines that were kept of it."""
    with trio.fail_after(TIMEOUT):
        async with StdioClientTransport([sys.executable, "-c", code], stderr=stderr).connect() as channel:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    kept: tuple[str, ...] = channel.loss_report()["stderr"]
    return kept


def run(shell: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", shell, sys.executable, PROGRAM]
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=True)


def test_a_childs_stderr_is_inherited() -> None:
    ran = run('exec "$0" -c "$1"')
    assert ran.stderr.splitlines() == ["opening", "x" * 5000, "no newline"]
    assert ran.stdout == "3 opening 3\n"


@pytest.mark.parametrize("unusable", ["2>&-", "2>/dev/full"])
def test_where_nothing_can_be_inherited_the_lines_are_only_kept(unusable: str) -> None:
    ran = run(f'exec "$0" -c "$1" {unusable}')
    assert ran.stdout == "3 opening 3\n"


async def test_a_callable_gets_whole_lines_and_the_tail_is_kept() -> None:
    heard: list[str] = []
    kept = await lines_with(heard.append)
    assert heard == ["opening", "x" * 5000, "no newline"]
    assert kept == ("opening", "x" * 2048, "no newline")


async def test_a_file_gets_the_lines() -> None:
    file = io.StringIO()
    kept = await lines_with(file)
    assert file.getvalue() == f"opening\n{'x' * 5000}\nno newline\n"
    assert len(kept) == 3


async def test_none_only_keeps_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert (await lines_with(None))[0] == "opening"
    assert capfd.readouterr().err == ""


async def test_a_line_without_an_end_is_cut() -> None:
    heard: list[str] = []
    await lines_with(heard.append, "import os\nfor _ in range(200): os.write(2, b'y' * 65536)")
    assert [len(line) for line in heard] == [32 * 1024]


async def test_a_flood_passes_whole() -> None:
    heard: list[str] = []
    kept = await lines_with(heard.append, "import sys\nfor n in range(20000): print(n, file=sys.stderr)")
    assert heard == [str(number) for number in range(20_000)]
    assert kept == tuple(heard[-50:])


@pytest.mark.parametrize("wrong", [3, "stdout", b"x", -1])
def test_what_takes_no_lines_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(
        TypeError, match="stderr is 'inherit', a callable that takes a line, a text file or None"
    ):
        StdioClientTransport(["true"], stderr=wrong)


@pytest.mark.parametrize(
    "command",
    [["true", "--token=hush"], ["/no/such/place/program", "--token=hush"], [sys.executable, "-c", "hush"]],
)
async def test_no_message_repeats_the_arguments(command: list[str]) -> None:
    transport = StdioClientTransport(command, stderr=None)
    with trio.fail_after(TIMEOUT), pytest.raises((ConnectionLost, ConnectFailed)) as caught:
        async with Client(transport):
            pass
    said = (*caught.value.args, repr(transport))
    assert command[0].rpartition("/")[2] in said[0]
    assert not [text for text in said if "hush" in str(text)]
