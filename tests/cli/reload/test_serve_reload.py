"""``mcp-actors serve --reload`` as a process, over stdio."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LIMIT, Ran, Started

SERVER = """
import sys
from contextlib import asynccontextmanager
from mcp_actors import Server

print("printed at the import of VERSION")

@asynccontextmanager
async def lifespan(server):
    yield "VERSION"
    print("the end of VERSION", file=sys.stderr)

server = Server("reloaded", version="VERSION", lifespan=lifespan)

@server.tool
def VERSION() -> str:
    print("printed by the tool of VERSION")
    return "VERSION"
"""


def test_a_session_over_stdio_outlives_its_code_and_nothing_else_reaches_the_wire(
    started: Started, tmp_path: Path
) -> None:
    target = tmp_path / "target.py"
    target.write_text(SERVER.replace("VERSION", "first"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("serve", "target.py", "--reload", cwd=tmp_path, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None

        def send(**message: Any) -> None:
            assert process.stdin is not None
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)

        def receive() -> dict[str, Any]:
            assert process.stdout is not None
            message: dict[str, Any] = json.loads(process.stdout.readline())
            return message

        client = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        }
        send(id=1, method="initialize", params=client)
        assert receive()["result"]["serverInfo"]["version"] == "first"
        send(method="notifications/initialized")
        send(id=2, method="tools/call", params={"name": "first"})
        assert receive()["result"]["content"][0]["text"] == "first"
        target.write_text(SERVER.replace("VERSION", "second"))
        assert receive()["method"] == "notifications/tools/list_changed"
        send(id=3, method="tools/call", params={"name": "second"})
        assert receive()["result"]["content"][0]["text"] == "second"
        told = ""
        while "reloaded in" not in told:
            told += process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        assert process.stdout.read() == ""
        told += process.stderr.read()
    for each in (
        "printed at the import of first",
        "printed by the tool of second",
        "the end of first",
        "the end of second",
        ": reloaded second: 1 tool",
    ):
        assert each in told
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--reload", "--workers", "2", "--listen", "http://127.0.0.1:0/mcp"], "--reload is for one process"),
        (["--reload-dir", "."], "--reload-dir needs --reload"),
        (["--reload", "--reload-dir", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_words_that_do_not_fit_together(mcp: Callable[..., Ran], words: list[str], says: str) -> None:
    result = mcp("serve", "target.py", *words)
    assert result.returncode == 2
    assert says in result.stderr


def test_a_target_that_is_broken_from_the_start_ends_the_command(
    mcp: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "target.py").write_text("1 / 0\n")
    result = mcp("serve", "target.py", "--reload")
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr
