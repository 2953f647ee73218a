"""``mcp-actors serve`` over WebSocket, as a person starts it."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from mcp_actors import Client

SECONDS = 60
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "mcp_actors", "serve", "mcp_actors.examples.everything"]
    command += ["--listen", "ws://127.0.0.1:0/ws", "--allow-host", "example.org", "--allow-host", "127.0.0.1"]
    command += ["--allow-origin", "https://app.example.org"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"^serving \S+ at ws://\S+:(\d+)/ws$", line)
            assert found is not None, line
            yield int(found[1])
        finally:
            process.kill()


def status(port: int, host: str, origin: str | None = None) -> int:
    headers = {**UPGRADE, "Host": host, **({} if origin is None else {"Origin": origin})}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("GET", "/ws", headers=headers)
        with connection.getresponse() as answer:
            return answer.status


async def test_who_may_call_it_is_said_on_the_command_line(port: int) -> None:
    assert status(port, "example.org") == 101
    assert status(port, "example.org", "https://app.example.org") == 101
    assert status(port, "example.org", "https://evil.example.com") == 403
    assert status(port, "evil.example.com") == 403
    async with Client(f"ws://127.0.0.1:{port}/ws") as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {
            "total": 3,
            "terms": 2,
        }
