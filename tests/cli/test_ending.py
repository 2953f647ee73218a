"""The end of what serves is the same, with the same options, for ``serve``, its workers, ``gateway`` and ``bridge``."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import messages

from .conftest import LIMIT, Started

pytestmark = pytest.mark.slow

SERVER = """
import pathlib
import trio
from mcp_actors import Server
server = Server("ending")

@server.tool
async def hang() -> str:
    pathlib.Path({begun!r}).touch()
    await trio.sleep_forever()
    return "never"
"""
URL = "http://127.0.0.1:0/mcp"
KINDS = ("serve", "workers", "gateway", "bridge")


def words_of(kind: str, folder: Path) -> list[str]:
    """The command line that serves the server of these tests in one of four ways."""
    file = folder / "ending.py"
    file.write_text(SERVER.format(begun=str(folder / "begun")))
    if kind == "gateway":
        entry = {"command": sys.executable, "args": ["-m", "mcp_actors", "serve", str(file)]}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"one": entry}}))
        return ["gateway", str(folder / "mcp.json"), "--listen", URL]
    if kind == "bridge":
        return ["bridge", f"stdio:{sys.executable} -m mcp_actors serve {file}", URL]
    return ["serve", str(file), "--listen", URL, *(["--workers", "2"] if kind == "workers" else [])]


@contextmanager
def serving(started: Started, words: list[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves, and its port."""
    with started(*words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        while not line.startswith("serving "):
            assert line
            line = process.stderr.readline()
        yield process, int(line.split()[-1].split(":")[2].partition("/")[0])


def ask(port: int, method: str, path: str, message: Any = None, **headers: str) -> Any:
    """An answer: status, headers, and the JSON of the body, of an event if it is a stream."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as connection:
        body = None if message is None else json.dumps(message)
        accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        connection.request(method, path, body, {**accepted, **headers})
        with connection.getresponse() as answer:
            text = answer.read().decode()
            lines = [line for line in text.splitlines() if line.startswith("data: {")]
            return answer.status, answer.headers, json.loads(lines[-1][6:] if lines else text)


def modern(method: str, **params: Any) -> tuple[Any, dict[str, str]]:
    message = messages.request(1, method, {**params, "_meta": messages.modern_meta()})
    headers = {"mcp-protocol-version": messages.MODERN, "mcp-method": method}
    return message, headers | ({"mcp-name": params["name"]} if "name" in params else {})


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_at_sigterm_it_is_unready_and_serves_on_until_the_delay_is_over(
    kind: str, started: Started, tmp_path: Path
) -> None:
    words = [*words_of(kind, tmp_path), "--health", "/health", "--drain-delay", "3600"]
    with serving(started, words) as (process, port):
        assert ask(port, "GET", "/health/ready")[0] == 200
        process.send_signal(signal.SIGTERM)
        until(lambda: ask(port, "GET", "/health/ready")[0] == 503)
        assert ask(port, "GET", "/health/live")[0] == 200
        message, headers = modern("tools/list")
        closes = None
        while closes != "close":
            # The other worker may not have heard of it yet, and keeps its connections until then.
            status, said, answer = ask(port, "POST", "/mcp", message, **headers)
            assert status == 200
            assert [tool["name"] for tool in answer["result"]["tools"]] in (["hang"], ["one_hang"])
            closes = said["connection"]
            assert closes == "close" or kind == "workers"
        # A second signal does not wait.
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_when_the_time_is_over_is_answered_with_what_is_known(
    kind: str, started: Started, tmp_path: Path
) -> None:
    answers: list[Any] = []
    with serving(started, [*words_of(kind, tmp_path), "--drain", "0.2"]) as (process, port):
        message, headers = modern(
            "tools/call", name="one_hang" if kind == "gateway" else "hang", arguments={}
        )
        calling = threading.Thread(
            target=lambda: answers.append(ask(port, "POST", "/mcp", message, **headers)), daemon=True
        )
        calling.start()
        until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        calling.join(LIMIT)
    [(_, _, answer)] = answers
    assert answer["error"]["data"]["reason"] == "server_stopping"
    assert answer["error"]["data"]["begun"] is True
