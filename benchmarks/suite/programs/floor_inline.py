"""The smallest server of all, which answers in the reader and so cannot cancel a call: ``floor_inline URL``."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
import trio
import trio_websocket

from benchmarks.suite.programs.answers import (
    ACCEPTED,
    ANSWERS,
    HEAD,
    NO_STREAM,
    UNKNOWN_METHOD,
    encode,
    sum_result,
)

READ_BYTES = 65_536


class InlineParams(msgspec.Struct):
    arguments: dict[str, int] = {}


class InlineRequest(msgspec.Struct):
    method: str
    id: int | str | None = None
    params: InlineParams | None = None


read = msgspec.json.Decoder(InlineRequest).decode


def answer(data: bytes | str) -> bytes | None:
    """Nothing for a notification."""
    request = read(data)
    if request.id is None:
        return None
    if request.method == "tools/call" and request.params is not None:
        result: dict[str, Any] | None = sum_result(**request.params.arguments)
    else:
        result = ANSWERS.get(request.method)
    outcome = {"error": UNKNOWN_METHOD} if result is None else {"result": result}
    return encode({"jsonrpc": "2.0", "id": request.id, **outcome})


async def serve_stdio() -> None:
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    rest = b""
    while True:
        await trio.lowlevel.wait_readable(0)
        chunk = os.read(0, READ_BYTES)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        view = memoryview(b"".join([each + b"\n" for line in lines if (each := answer(line)) is not None]))
        while view:
            try:
                view = view[os.write(1, view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(1)


class InlineHttpConnection:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ready: list[bytes] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        if not self.pieces:
            self.ready.append(NO_STREAM if self.parser.get_method() == b"GET" else ACCEPTED)
            return
        body = answer(b"".join(self.pieces))
        self.ready.append(HEAD % len(body) + body if body is not None else ACCEPTED)
        self.pieces.clear()


async def serve_http(stream: trio.SocketStream) -> None:
    connection = InlineHttpConnection()
    feed = connection.parser.feed_data
    receive, send = stream.socket.recv, stream.send_all
    try:
        while data := await receive(READ_BYTES):
            feed(data)
            await send(b"".join(connection.ready))
            connection.ready.clear()
    except (OSError, trio.BrokenResourceError):
        return


async def serve_web_socket(request: trio_websocket.WebSocketRequest) -> None:
    connection = await request.accept(subprotocol="mcp")
    try:
        while True:
            answered = answer(await connection.get_message())
            if answered is not None:
                await connection.send_message(answered.decode())
    except trio_websocket.ConnectionClosed:
        return


async def main(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "stdio":
        await serve_stdio()
    elif parts.scheme == "http":
        await trio.serve_tcp(serve_http, parts.port or 0, host="127.0.0.1", handler_nursery=None)
    else:
        serve = trio_websocket.serve_websocket
        await serve(serve_web_socket, "127.0.0.1", parts.port or 0, ssl_context=None)


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
