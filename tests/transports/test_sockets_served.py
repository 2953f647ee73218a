"""``mcp-actors serve`` on sockets, as a person starts it: processes, their standard error, their deaths."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from .lines import call

SECONDS = 30
SERVER = """
from mcp_actors import Server
server = Server("small")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
DESCRIPTORS = 32


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(SERVER)
    return path


def command(program: Path, url: str) -> list[str]:
    return [sys.executable, "-m", "mcp_actors", "serve", str(program), "--listen", url]


@contextmanager
def serving(words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the URL that it says it serves."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(2 * SECONDS, process.kill)  # whoever waits for a line waits no longer
        watchdog.start()
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("serving "), line
            yield process, line.split()[-1]
        finally:
            watchdog.cancel()
            process.kill()


def connected(place: str) -> socket.socket:
    if place.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(SECONDS)
        stream.connect(place.removeprefix("unix://"))
        return stream
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def everything_from(stream: socket.socket) -> bytes:
    data = b""
    while piece := stream.recv(65536):
        data += piece
    return data


def total(stream: socket.socket) -> int:
    """One call on a connection."""
    stream.sendall(call(1, "add", a=1, b=2))
    with stream.makefile("rb") as lines:
        answer = json.loads(lines.readline())
    found: int = answer["result"]["structuredContent"]
    return found


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix://{folder}/s"])
def test_bytes_from_a_shell_get_their_answers(program: Path, tmp_path: Path, url: str) -> None:
    with serving(command(program, url.format(folder=tmp_path))) as (process, place):
        with closing(connected(place)) as stream:
            stream.sendall(call(1, "add", a=1, b=2) + call(2, "add", a=2, b=2).rstrip(b"\n"))
            stream.shutdown(socket.SHUT_WR)
            answers = [json.loads(line) for line in everything_from(stream).splitlines()]
        assert {each["id"]: each["result"]["structuredContent"] for each in answers} == {1: 3, 2: 4}
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert not (tmp_path / "s").exists()


def test_a_killed_server_leaves_a_socket_that_the_next_one_replaces(program: Path, tmp_path: Path) -> None:
    words = command(program, f"unix://{tmp_path}/s")
    with serving(words) as (process, _):
        process.kill()
        process.wait(SECONDS)
    assert (tmp_path / "s").is_socket()
    with serving(words) as (_, place), closing(connected(place)) as stream:
        assert total(stream) == 3


def test_a_second_server_is_refused_and_the_first_goes_on(program: Path, tmp_path: Path) -> None:
    unix = f"unix://{tmp_path}/s"
    with serving(command(program, unix)) as (_, place):
        second = subprocess.run(
            command(program, unix), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert second.returncode == 1
        assert f"cannot listen on {tmp_path}/s: a server is there already" in second.stderr
        assert "Traceback" not in second.stderr
        with closing(connected(place)) as stream:
            assert total(stream) == 3


@pytest.mark.parametrize(
    ("url", "complaint", "code"),
    [
        ("pigeon://loft", "no transport is installed for 'pigeon'", 2),
        ("tcp://127.0.0.1", "says no port", 2),
        ("unix://{folder}/small.py", "there is something that is no socket", 1),
        ("unix://{folder}/nowhere/s", "No such file or directory", 1),
        ("unix://{folder}/" + "x" * 108, "a Unix socket's path has 1 to 107 bytes", 2),
    ],
)
def test_what_cannot_be_served_is_told(
    program: Path, tmp_path: Path, url: str, complaint: str, code: int
) -> None:
    ran = subprocess.run(
        command(program, url.format(folder=tmp_path)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == code
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr
    assert program.read_text() == SERVER


def test_a_server_without_descriptors_waits_for_some(program: Path, tmp_path: Path) -> None:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh"]
    with serving([*limited, *command(program, f"unix://{tmp_path}/s")]) as (process, place):
        many = [connected(place) for _ in range(2 * DESCRIPTORS)]
        assert total(many[0]) == 3
        assert process.stderr is not None
        # It says so when it cannot accept; then some leave, and those who waited get their turn.
        assert "cannot accept connections for now: Too many open files" in process.stderr.readline()
        for stream in many[:-1]:
            stream.close()
        assert total(many[-1]) == 3
        many[-1].close()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in said
