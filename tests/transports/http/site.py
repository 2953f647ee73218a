"""A real server at a URL, and a client that knows HTTP alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio

from mcp_actors import Context, Limits, Server
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.http.sse import ServerSentEvent, SseDecoder
from tests import messages
from tests.messages import BATCHING as BATCHING
from tests.messages import INITIALIZED as INITIALIZED
from tests.messages import LEGACY as LEGACY
from tests.messages import MODERN as MODERN
from tests.transports.http.raw import RawPeer

BOTH = {"accept": "application/json, text/event-stream"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


class Site:
    """A server at a URL, a client of it that knows HTTP alone, and what its tools went through."""

    def __init__(self, **options: Any) -> None:
        self.server = server = options.pop("make", Server)(
            "site",
            # Calls that a test lets end behind a stop have the time of a busy machine for that.
            limits=Limits(drain_grace=options.pop("drain_grace", 60)),
            shared=options.pop("shared", None),
        )
        self.transport = HttpServerTransport(options.pop("url", "http://127.0.0.1:0/mcp"), **options)
        self.url = ""
        self.go = trio.Event()
        self.called = trio.Event()
        self.ends: list[str] = []
        self.http = httpx2.AsyncClient(timeout=60)

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def wait(ctx: Context) -> str:
            self.called.set()
            await ctx.progress(1)
            try:
                await self.go.wait()
            except trio.Cancelled:
                self.ends.append("cancelled")
                raise
            await ctx.progress(2)
            self.ends.append("finished")
            return "waited"

        @server.tool
        async def silent() -> str:
            self.called.set()
            await self.go.wait()
            return "at last"

        @server.tool
        async def ask(ctx: Context) -> str:
            result = await ctx.elicit("who are you?", SCHEMA)
            return f"hello {(result.content or {})['name']}"

        @server.tool
        async def leave(ctx: Context) -> str:
            ctx.close_stream()
            await self.go.wait()
            return "welcome back"

    async def post(self, message: Any, session: str | None = None, **headers: str) -> httpx2.Response:
        return await self.http.post(self.url, json=message, headers=_headers(session, headers))

    @asynccontextmanager
    async def stream(
        self, method: str, message: Any = None, session: str | None = None, path: str = "/mcp", **headers: str
    ) -> AsyncIterator[Events]:
        """An event stream on a connection of its own, which is closed under it after the block."""
        body = b"" if message is None else json.dumps(message).encode()
        named = {"host": "localhost", "content-type": "application/json", **_headers(session, headers)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        head = f"{method} {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        port = int(self.url.split(":")[2].partition("/")[0])
        peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
        try:
            await peer.send(head.encode() + body)
            yield Events(peer)
        finally:
            await peer.aclose()

    async def open(self, version: str = LEGACY) -> str:
        response = await self.post(initialize(version))
        assert response.json()["result"]["protocolVersion"] == version
        session = response.headers["mcp-session-id"]
        assert (await self.post(INITIALIZED, session)).status_code == 202
        return str(session)


def _headers(session: str | None, more: dict[str, str]) -> dict[str, str]:
    named = {} if session is None else {"mcp-session-id": session}
    return {**BOTH, **named, **more}


class Events:
    """The events of a stream; iterating ends when it was ended properly."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self._decoder = SseDecoder(1_000_000)
        self._waiting: list[ServerSentEvent] = []
        self._begun = False

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> ServerSentEvent:
        if not self._begun:
            head = await self._peer.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: text/event-stream" in head
            self._begun = True
        while not self._waiting:
            chunk = await self._peer.chunk()
            if not chunk:
                raise StopAsyncIteration
            self._waiting += self._decoder.feed(chunk)
        return self._waiting.pop(0)


@asynccontextmanager
async def site(**options: Any) -> AsyncIterator[Site]:
    made = Site(**options)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery, made.http:
            (made.url,) = await nursery.start(made.server.serve, made.transport)
            yield made
            nursery.cancel_scope.cancel()


def call(id: Any, name: str, **arguments: Any) -> dict[str, Any]:
    return messages.call(id, name, token=str(id), **arguments)


def modern(id: Any, name: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    message = call(id, name, **arguments)
    message["params"]["_meta"] |= messages.modern_meta()
    return message, {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}


def initialize(version: str) -> dict[str, Any]:
    return messages.initialize(0, version, {"elicitation": {}})


def text(message: Any) -> str:
    return str(message["result"]["content"][0]["text"])


async def message_of(events: Events) -> Any:
    async for event in events:
        if event.is_message:
            return json.loads(event.data)
    raise AssertionError("the stream ended")


def bare(session: str) -> dict[str, str]:
    """Headers of a request without a message, in a session."""
    return _headers(session, {})


def url_of(at: Site, path: str) -> str:
    """The URL of another path of the same server."""
    return at.url.removesuffix("/mcp") + path
