"""What a program prints when it cannot connect: the line of the program, the reason, what to do, and little more."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

TRIO = """
import trio
from mcp_actors import Client

async def main():
    async with Client({target}) as client:
        print(client)

trio.run(main)
"""
ASYNCIO = """
import asyncio
from mcp_actors.asyncio import Client

async def main():
    async with Client({target}) as client:
        print(client)

asyncio.run(main())
"""
SYNC = """
from mcp_actors.sync import Client

with Client({target}) as client:
    print(client)
"""
# With the lines that the loop itself adds between the program and us.
PROGRAMS = {"trio": (TRIO, 3), "asyncio": (ASYNCIO, 9), "sync": (SYNC, 0)}
TARGETS = {
    "refused": ("'http://127.0.0.1:9/mcp'", "Connection refused; is the server running there?"),
    "refused over TCP": ("'tcp://127.0.0.1:9'", "cannot connect to tcp://127.0.0.1:9: Connection refused"),
    "refused over WebSocket": ("'ws://127.0.0.1:9/mcp'", "Connection refused"),
    "no such command": ("['nosuch']", "there is no command 'nosuch'"),
    "crashed": ("['sh', '-c', 'echo no config >&2; exit 3']", "it exited with code 3"),
    "no such name": ("'http://nobody.invalid/mcp'", "cannot connect to http://nobody.invalid/mcp"),
}


def printed(program: str, tmp_path: Path, **env: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(program)
    ran = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert ran.returncode == 1
    return ran.stderr


@pytest.mark.parametrize(("target", "reason"), TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_failed_connection_is_told_in_a_few_lines(
    kind: str, target: str, reason: str, tmp_path: Path
) -> None:
    program, lines_of_loop = PROGRAMS[kind]
    text = printed(program.format(target=target), tmp_path)
    lines = text[text.index("Traceback") :].splitlines()
    assert len(lines) - lines_of_loop <= 11, text
    assert reason in text
    assert f"Client({target})" in text
    assert "During handling" not in text
    assert "direct cause" not in text


def test_an_address_that_is_taken_is_told_in_a_few_lines(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        text = printed(f"from mcp_actors import Server\nServer('s').run({url!r})\n", tmp_path)
    assert len(text.splitlines()) <= 10, text
    assert "Address already in use; end what listens there, or take another port" in text


def test_everything_is_there_on_request(tmp_path: Path) -> None:
    text = printed(TRIO.format(target="'http://127.0.0.1:9/mcp'"), tmp_path, MCP_ACTORS_TRACEBACK="full")
    assert "ConnectionRefusedError" in text
    assert "_client/supervisor.py" in text


def test_a_defect_keeps_its_frames(tmp_path: Path) -> None:
    defect = "class Broken:\n    def connect(self):\n        raise ZeroDivisionError('a defect')\n"
    text = printed(defect + TRIO.format(target="Broken()"), tmp_path)
    assert "in connect" in text
    assert "ZeroDivisionError: a defect" in text
