"""What a program prints when it cannot connect: the line of the program, the reason, what to do, and little more."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

pytestmark = pytest.mark.slow

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
POOLS = {
    "trio pool": TRIO.replace("async with Client({target}) as client:", "async with ClientPool() as pool:")
    .replace("print(client)", "await pool.open(Client({target}))")
    .replace("import Client", "import Client, ClientPool"),
    "asyncio pool": ASYNCIO.replace(
        "async with Client({target}) as client:", "async with ClientPool() as pool:"
    )
    .replace("print(client)", "await pool.open(Client({target}))")
    .replace("import Client", "import Client, ClientPool"),
    "sync pool": SYNC.replace("with Client({target}) as client:", "with ClientPool() as pool:")
    .replace("print(client)", "pool.open(Client({target}))")
    .replace("import Client", "import Client, ClientPool"),
}
# With the lines that the loop itself adds between the program and us.
LINES_OF_LOOP = {"trio": 3, "asyncio": 9, "sync": 0}
PROGRAMS = {"trio": TRIO, "asyncio": ASYNCIO, "sync": SYNC}
TARGETS = {
    "refused": ("'http://127.0.0.1:9/mcp'", "Connection refused; is the server running there?"),
    "refused over TCP": (
        "'tcp://127.0.0.1:9'",
        "cannot connect to tcp://127.0.0.1:9: Connection refused; is the server running there?",
    ),
    "refused over WebSocket": (
        "'ws://127.0.0.1:9/mcp'",
        "Connection refused; is the server running there?",
    ),
    "no such socket": ("'unix:///no/such/socket'", "No such file or directory; is the server running there?"),
    "no such command": ("['nosuch']", "there is no command 'nosuch'"),
    "no such binding": ("'gopher://127.0.0.1'", "no transport is installed for 'gopher'"),
    "crashed": ("['sh', '-c', 'echo no config >&2; exit 3']", "it exited with code 3"),
    "crashed with many lines": ("['sh', '-c', 'seq 40 >&2; exit 3']", "\n  36\n  37\n  38\n  39\n  40\n"),
    "silent child": (
        "['sleep', '60'], timeout=0.2, probe_timeout=0.2",
        "is it an MCP server that starts in that",
    ),
    "no such name": (
        "'http://nobody.invalid/mcp'",
        "cannot connect to http://nobody.invalid/mcp: Name or service not known; is the name right",
    ),
    "no such name over WebSocket": ("'ws://nobody.invalid/mcp'", "; is the name right"),
    "wrong path": ("'http://127.0.0.1:{plain}/wrong'", "answered with HTTP 404: not found (check the path"),
    "wrong path over WebSocket": (
        "'ws://127.0.0.1:{plain}/wrong'",
        "(is it a WebSocket server, at this path?)",
    ),
    "unknown authority": ("'https://127.0.0.1:{secure}/mcp'", "SSL_CERT_FILE=authority.pem"),
    "unknown authority over WebSocket": ("'wss://127.0.0.1:{secure}/mcp'", "SSL_CERT_FILE=authority.pem"),
    "no TLS": ("'https://127.0.0.1:{plain}/mcp'", "it speaks no TLS: is its URL one with http:"),
    "no TLS over WebSocket": ("'wss://127.0.0.1:{plain}/mcp'", "it speaks no TLS: is its URL one with http:"),
    "silent": (
        "'tcp://127.0.0.1:{silent}', timeout=0.2, probe_timeout=0.2",
        "no answer from tcp://127.0.0.1:",
    ),
    "silent over HTTP": (
        "'http://127.0.0.1:{silent}/mcp', timeout=0.2, probe_timeout=0.2",
        "no answer from http://127.0.0.1:",
    ),
}
# Beside that of `Client`: the frame of the program, the reason, and five lines of a child.
MOST_LINES = 12


class NotHere(BaseHTTPRequestHandler):
    """Answers everything with 404."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(404)
        self.send_header("content-length", "9")
        self.end_headers()
        self.wfile.write(b"not found")

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NotHere)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """Of servers that know nothing of MCP: one of HTTP, one of HTTPS, one that never says a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with ExitStack() as stack:
        plain, secure = stack.enter_context(listening(None)), stack.enter_context(listening(context))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield {"plain": plain, "secure": secure, "silent": silent.getsockname()[1]}


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
    kind: str, target: str, reason: str, tmp_path: Path, ports: dict[str, int]
) -> None:
    target = target.format(**ports)
    check_lines(kind, PROGRAMS[kind].format(target=target), target, reason, tmp_path)


@pytest.mark.parametrize("kind", POOLS)
def test_a_failed_connection_of_a_pool_is_told_in_a_few_lines(kind: str, tmp_path: Path) -> None:
    target, reason = TARGETS["refused"]
    check_lines(kind.split()[0], POOLS[kind].format(target=target), target, reason, tmp_path)


def check_lines(kind: str, program: str, target: str, reason: str, tmp_path: Path) -> None:
    text = printed(program, tmp_path)
    lines = text[text.index("Traceback") :].splitlines()
    assert len(lines) - LINES_OF_LOOP[kind] <= MOST_LINES, text
    assert reason in text
    assert f"Client({target})" in text
    assert "During handling" not in text
    assert "direct cause" not in text
    assert not [line for line in lines if "/mcp_actors/" in line or "/mcp_transports/" in line], text


# What was given, and what is said of it.
WRONG_ARGUMENTS = {
    "on_log": (
        "on_log=lambda message: 0",
        "on_log is a function on_log(level, data, logger), called with 3 arg",
    ),
    "elicitation": ("elicitation=lambda: 0", "elicitation is a function elicitation(params)"),
    "timeout": ("timeout=-1", "timeout is a number of seconds above 0"),
}


@pytest.mark.parametrize(("argument", "reason"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS.keys())
@pytest.mark.parametrize("of", ["client", "group"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_wrong_argument_is_told_in_a_few_lines(
    kind: str, of: str, argument: str, reason: str, tmp_path: Path
) -> None:
    program = PROGRAMS[kind].format(target=f"'http://127.0.0.1:9/mcp', {argument}")
    if of == "group":
        program = program.replace("Client(", "ClientGroup(").replace("import Client", "import ClientGroup")
        program = program.replace("'http://127.0.0.1:9/mcp'", "{'a': 'http://127.0.0.1:9/mcp'}")
    text = printed(program, tmp_path)
    lines = text.splitlines()
    assert len(lines) - LINES_OF_LOOP[kind] <= 7, text
    assert reason in lines[-1]
    assert argument in text


SLOWLY = """
import time
from mcp_actors.supervision import logging

write = logging._write
logging._write = lambda line: (time.sleep(0.01), write(line))
"""


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_a_child_has_written_comes_before_the_error(kind: str, tmp_path: Path) -> None:
    """However late the thread is that writes it."""
    target, _ = TARGETS["crashed with many lines"]
    program = SLOWLY + PROGRAMS[kind].format(target=target.replace("40", "9"))
    before, _, _ = printed(program, tmp_path).partition("Traceback")
    assert before.split() == [str(number) for number in range(1, 10)]


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
