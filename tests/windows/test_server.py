"""The stdio server with the branches for Windows: threads read and write, and nobody else gets the protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .pretended import ROOT

TIMEOUT = 30
SERVER = """
import os, subprocess, sys
from tests.windows.pretended import pretend
from tests.windows.system import FakeLibrary, fake_msvcrt
pretend(kernel32=FakeLibrary, msvcrt=fake_msvcrt())
import trio
from mcp_actors import Server
from mcp_actors.errors import McpError
server = Server("on windows", version="1")

@server.tool
def noise(text: str) -> str:
    print("from print")
    os.write(1, b"from os.write\\\\n")
    subprocess.run([sys.executable, "-c", "print('from a child', input() if 0 else '')"], check=True)
    return f"{text} {os.read(0, 10)!r}"

try:
    server.run()
except McpError as error:
    os.write(2, f"{type(error).__name__}: {error}\\\\n".encode())
os.write(2, b"ended\\\\n")
os.write(1, b"after\\\\n")
""".replace("\\\\", "\\")
INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


def call(number: int, text: str) -> dict[str, object]:
    params = {"name": "noise", "arguments": {"text": text}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@contextmanager
def served(**options: object) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


def exchange(process: subprocess.Popen[bytes], *messages: dict[str, object]) -> list[dict[str, object]]:
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for message in messages:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        if "id" in message:
            answers.append(json.loads(process.stdout.readline()))
    return answers


def test_only_the_protocol_goes_through_the_pipes() -> None:
    with served() as process:
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answers = exchange(process, INITIALIZE, ready, call(2, "x"), call(3, "y" * 200_000))
        output, errors = process.communicate(timeout=TIMEOUT)

    texts = [answer["result"]["content"][0]["text"] for answer in answers[1:]]  # type: ignore[index]
    assert texts == ["x b''", "y" * 200_000 + " b''"]
    # Descriptor 1 is the peer's again at the end, and not before.
    assert output == b"after\n"
    assert (
        errors.count(b"from print\n")
        == errors.count(b"from os.write\n")
        == errors.count(b"from a child")
        == 2
    )
    assert errors.endswith(b"ended\n")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.Signals(21)], ids=["INT", "TERM", "BREAK"]
)
def test_a_signal_ends_a_server_whose_thread_reads(number: signal.Signals) -> None:
    with served(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
        exchange(process, INITIALIZE)
        process.send_signal(number)
        # Its input is open, and nothing on Linux can end the thread's call: it is left to the end of the process.
        assert process.wait(TIMEOUT) == 0


def test_a_file_is_served_to_its_end(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "input")
    with open(path, "wb") as file:
        file.write(json.dumps(INITIALIZE).encode())
    with open(path, "rb") as file, served(stdin=file) as process:
        output, _ = process.communicate(timeout=TIMEOUT)

    first, _, rest = output.partition(b"\n")
    assert json.loads(first)["result"]["serverInfo"]["name"] == "on windows"
    assert rest == b"after\n"


def test_a_closed_standard_output_is_said() -> None:
    with served(preexec_fn=lambda: os.close(1), stdout=None) as process:
        _, errors = process.communicate(b"", timeout=TIMEOUT)

    assert b"ConnectFailed: standard output is closed" in errors
