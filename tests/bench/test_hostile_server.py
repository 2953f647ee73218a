"""A server that breaks the protocol costs its own figures: the load ends in time, with a sentence."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from mcp_actors.cli.bench import streams
from mcp_actors.cli.bench.field import Field, run_blocking
from mcp_actors.cli.bench.http import MOST_BYTES, ResponseReader
from mcp_actors.cli.bench.load import RunningLoad
from mcp_actors.cli.bench.plan import (
    LoadError,
    LoadPlan,
    Message,
    Stage,
    tool_call,
)
from mcp_actors.cli.bench.streams import Ends, Lines, StreamField
from mcp_actors.cli.bench.targets import raw_field

HTTP = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: %s\r\ncontent-length: %d\r\n\r\n%s"
)


class HttpServer:
    """Answers every request over one connection at a time, the handshake with ``handshake``."""

    def __init__(self, handshake: Any, session: bytes) -> None:
        self.heads: list[bytes] = []
        self._handshake = handshake
        self._session = session
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                while head := self._head(file):
                    self.heads.append(head)
                    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                    body = json.loads(file.read(length) or b"{}")
                    result = self._handshake if body.get("method") == "initialize" else {"content": []}
                    answer = {"jsonrpc": "2.0", "id": body.get("id"), "result": result}
                    data = json.dumps(answer).encode()
                    connection.sendall(HTTP % (self._session, len(data), data))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _head(self, file: Any) -> bytes:
        lines = list(iter(file.readline, b"\r\n")) if file.peek(1) else []
        return b"".join(lines)


@contextmanager
def serving(handshake: Any, session: bytes = b"s") -> Iterator[HttpServer]:
    server = HttpServer(handshake, session)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)


def loaded_hostile_servers(url: str) -> dict[str, Any]:
    plan = LoadPlan(url, "legacy", "", [tool_call("x", {})], [Stage(5, window=1, calls=5)], seed=1, timeout=2)

    async def run() -> dict[str, Any]:
        field: Field = raw_field(url, "legacy", {}, None)
        async with field:
            return await RunningLoad(plan, lambda _: None).run(field)

    return run_blocking(run())


def test_percent_signs_in_a_path_and_in_the_id_of_a_session_are_sent_as_they_are() -> None:
    with serving({"protocolVersion": "2025-11-25"}, b"a%sb%d%") as server:
        result = loaded_hostile_servers(f"http://127.0.0.1:{server.port}/a%20b/mc%73")
        assert result["total"]["count"] == 5
    calls = [each for each in server.heads if b"mcp-session-id: a%sb%d%" in each]
    assert len(calls) >= 5
    assert all(b" /a%20b/mc%73 HTTP/1.1" in each for each in server.heads)


@pytest.mark.parametrize(
    "handshake",
    [[], {"protocolVersion": 5}, {"protocolVersion": ""}, {"protocolVersion": "1\r\nx-evil: 1"}],
    ids=str,
)
def test_a_handshake_without_a_revision_is_refused_and_is_no_header(handshake: Any) -> None:
    with serving(handshake) as server:
        with pytest.raises(LoadError, match="names no revision"):
            loaded_hostile_servers(f"http://127.0.0.1:{server.port}/mcp")
    assert not any(b"x-evil" in each for each in server.heads)


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 10_000 + b"\r\n"),
        (CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
        (CHUNKED + b"fffffffff\r\n", b"x"),
        (CHUNKED, b"zz\r\n"),
        (CHUNKED, b"-5\r\n12345\r\n"),
        (CHUNKED, b"\r\n"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n" % (b"9" * 5000), b"x"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"x" * 6),
    ],
    ids=["head", "text", "chunk", "no number", "negative", "nothing", "digits", "longer"],
)
def test_an_answer_without_an_end_or_without_sense_ends_the_connection(head: bytes, again: bytes) -> None:
    reader = ResponseReader()

    def feed() -> None:
        reader.feed(head)
        for _ in range(2 * MOST_BYTES // len(again) + 1 if len(again) > 100 else 1):
            reader.feed(again)

    with pytest.raises(LoadError):
        feed()


def test_what_a_server_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else answers to its questions would pile up for as long as the load goes on."""
    monkeypatch.setattr(streams, "MOST_BYTES", 2**20)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ends = Ends(ours.fileno(), ours.fileno(), ours.close)

    async def run() -> None:
        async with StreamField("legacy", lambda: ends, Lines) as field:
            field.troubles = []
            lane = await field.connect()
            for _ in range(100):
                field.post(lane, Message(b"x" * 2**18))
                await field.arrivals(0.0)

    with theirs, pytest.raises(LoadError, match="has not read"):
        run_blocking(run())
