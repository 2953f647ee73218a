"""A server without a network: it answers the HTTP client of a channel by script, in virtual time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import httpx2
import trio

from mcp_actors.abc import Frame
from mcp_transports.http.client import HttpChannel, HttpClientTransport
from mcp_transports.http.client.pool import SocketStream

__all__ = [
    "MODERN",
    "URL",
    "Asked",
    "Script",
    "Stream",
    "connected",
    "handshake",
    "json_answer",
    "request",
    "sse",
    "stream_pair",
]

URL = "http://mcp.test/mcp"
MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "echo"}
LEGACY = {"mcp-protocol-version": "2025-11-25"}


@attrs.define
class Asked:
    """A request that arrived, with the virtual time at which it did."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    at: float


class Stream(httpx2.AsyncByteStream):
    """A body that the test writes; `ended` with an error, it breaks off."""

    def __init__(self, *pieces: bytes, end: bool = False) -> None:
        self._send, self._receive = trio.open_memory_channel[bytes](1000)
        self._error: Exception | None = None
        self.closed = trio.Event()
        for piece in pieces:
            self._send.send_nowait(piece)
        if end:
            self._send.close()

    def write(self, data: bytes) -> None:
        self._send.send_nowait(data)

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._send.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._receive:
            yield piece
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        self.closed.set()
        await trio.lowlevel.checkpoint()


Handler = Callable[[Asked], Awaitable[httpx2.Response]]


class Script(httpx2.AsyncBaseTransport):
    """Answers each request by ``handler``; keeps what was asked, and counts what is under way."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        # Seconds for the upload of a body that holds the key.
        self.uploads: dict[bytes, float] = {}
        self.asked: list[Asked] = []
        self.under_way = 0
        self.most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        body = b""
        stream: Any = aiter(request.stream)
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                body += piece
                await trio.sleep(sum(seconds for key, seconds in self.uploads.items() if key in piece))
        asked = Asked(request.method, str(request.url), dict(request.headers), body, trio.current_time())
        self.asked.append(asked)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self.handler(asked)
        finally:
            self.under_way -= 1

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]


def request(id: int, method: str = "tools/call", *, modern: bool = False, **more: Any) -> Frame:
    metadata = {**MODERN, "mcp-method": method} if modern else more.pop("metadata", None)
    data = b'{"jsonrpc":"2.0","id":%d,"method":"%b"}' % (id, method.encode())
    return Frame(data, method=method, request=id, metadata=metadata, **more)


def json_answer(
    id: int = 1, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % id
    return httpx2.Response(
        status, headers={"content-type": "application/json; charset=utf-8", **(headers or {})}, content=body
    )


def sse(stream: Stream, **headers: str) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream", **headers}, stream=stream)


@asynccontextmanager
async def connected(
    handler: Handler, url: str = URL, **options: Any
) -> AsyncIterator[tuple[HttpChannel, Script]]:
    """A channel to a script."""
    script = Script(handler)
    async with httpx2.AsyncClient(transport=script) as client:
        async with HttpClientTransport(url, client=client, **options).connect() as channel:
            assert isinstance(channel, HttpChannel)
            yield channel, script


async def handshake(channel: HttpChannel) -> None:
    """``initialize`` and ``notifications/initialized``, as the engine does it."""
    await channel.send(request(1, "initialize"))
    await channel.receive()
    channel.settled(1)
    await channel.send(Frame(b"{}", method="notifications/initialized", metadata=LEGACY))


def stream_pair() -> tuple[SocketStream, trio.SocketStream]:
    """A stream of ours and the other end of its socket."""
    near, far = socket.socketpair()
    near.setblocking(False)
    return SocketStream(near), trio.SocketStream(trio.socket.from_stdlib_socket(far))
