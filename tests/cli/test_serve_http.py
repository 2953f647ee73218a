"""``mcp-actors serve`` over HTTP, as a person starts it: a process, its standard error, a signal."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio

from mcp_actors import Client

SECONDS = 60
SERVER = """
from mcp_actors import Server
server = Server("small")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SERVER)
    return path


@contextmanager
def serving(
    program: Path, *arguments: str, addresses: int = 1
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The process and the ports it says it listens on."""
    command = [sys.executable, "-m", "mcp_actors", "serve", str(program), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stderr is not None
            ports = []
            for _ in range(addresses):
                line = process.stderr.readline()
                found = re.search(r"^serving \S+ at http://\S+:(\d+)/mcp$", line)
                assert found is not None, line
                ports.append(int(found[1]))
            yield process, ports
        finally:
            process.kill()


def status(port: int, host: str, origin: str | None = None) -> int:
    headers = {"Host": host, **({} if origin is None else {"Origin": origin})}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("POST", "/mcp", b"{", headers)
        with connection.getresponse() as answer:
            return answer.status


async def test_one_server_at_two_addresses_ends_on_a_signal(program: Path) -> None:
    listen = ["--listen", "http://127.0.0.1:0/mcp"]
    with serving(program, *listen, *listen, addresses=2) as (process, ports):
        assert len(set(ports)) == 2
        for port in ports:
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        process.send_signal(signal.SIGINT)
        assert await trio.to_thread.run_sync(process.wait, SECONDS) == 0


def test_who_may_call_it_is_said_on_the_command_line(program: Path) -> None:
    arguments = ["--listen", "http://127.0.0.1:0/mcp", "--allow-host", "example.org"]
    with serving(program, *arguments, "--allow-origin", "https://app.example.org") as (_, (port,)):
        # Allowed is as far as it gets: what it sends has no media type.
        assert status(port, "example.org") == 415
        assert status(port, "example.org", "https://app.example.org") == 415
        assert status(port, "example.org", "https://evil.example.com") == 403
        assert status(port, "evil.example.com") == 403


def test_an_address_that_is_taken_is_named(program: Path) -> None:
    with serving(program, "--listen", "http://127.0.0.1:0/mcp") as (_, (port,)):
        url = f"http://127.0.0.1:{port}/mcp"
        command = [sys.executable, "-m", "mcp_actors", "serve", str(program), "--listen", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_anybody_may_ask_how_it_is_where_the_command_line_says(program: Path) -> None:
    with (
        serving(program, "--listen", "http://127.0.0.1:0/mcp", "--health", "/health") as (_, (port,)),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection,
    ):
        connection.request("GET", "/health", headers={"Host": "10.0.0.7"})
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert json.load(answer) == {"live": True, "ready": True, "draining": False}
