"""The client's side against servers that are made of bytes, and what is told when no WebSocket comes about."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
import trustme
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from benchmarks.suite.server import free_port
from mcp_actors import Client, Context, Server
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.auth import ResourceServer
from mcp_actors.errors import ConnectFailed, InsufficientScope
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.client import WebSocketClientTransport, WebSocketRefused
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.http.protected import (
    INVALID,
    ISSUER,
    NO_TOKEN,
    WELL_KNOWN,
    Tokens,
    caller,
    lacking,
    resource_server,
)

from .raw import TEXT, Listening, closing, connected, frame, path_of

Script = Callable[[trio.abc.Stream, bytes], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """A server that reads the request's head and then does what ``script(stream, head)`` does."""

    async def converse(stream: trio.abc.Stream) -> None:
        async with stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await stream.receive_some()
            await script(stream, head)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, converse, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/x?y=1"
        nursery.cancel_scope.cancel()


def accepted(head: bytes, subprotocol: str | None = "mcp") -> bytes:
    """The right answer to an upgrade request."""
    key = re.search(rb"(?i)sec-websocket-key: (\S+)", head)
    assert key is not None
    token = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    chosen = f"Sec-WebSocket-Protocol: {subprotocol}\r\n".encode() if subprotocol else b""
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        + b"Sec-WebSocket-Accept: "
        + token
        + b"\r\n"
        + chosen
        + b"\r\n"
    )


ANSWERS = {
    "401": (
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 3\r\n\r\nwho",
        "401: who",
    ),
    "403, then the end": (b"HTTP/1.1 403 Forbidden\r\n\r\nnot you", "403: not you"),
    "302": (
        b"HTTP/1.1 302 Found\r\nLocation: ws://else.where/\r\nContent-Length: 0\r\n\r\n",
        "ws://else.where/",
    ),
    "200": (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "200 \\(is it a WebSocket server"),
    "nothing": (b"", "hung up without an answer"),
    "half a head": (b"HTTP/1.1 101 Swi", "in the middle of its answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
    "an endless head": (b"HTTP/1.1 101 X\r\n" + b"a: b\r\n" * 9000, "longer than"),
    "a wrong token": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: nonsense\r\n\r\n",
        "opened no WebSocket: its answer breaks the protocol: Bad accept token",
    ),
    "no upgrade": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "opened no WebSocket"),
}


@pytest.mark.parametrize(("answer", "says"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_why_no_websocket_came_about(answer: bytes, says: str) -> None:
    async def script(stream: trio.abc.Stream, head: bytes) -> None:
        await stream.send_all(answer)

    async with scripted(script) as url:
        with pytest.raises(ConnectFailed, match=says) as caught:
            async with WebSocketClientTransport(url).connect():
                pass
    if says.startswith("401"):
        assert isinstance(caught.value, WebSocketRefused)
        assert caught.value.status == 401
        assert caught.value.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("chosen", [None, "soap"])
async def test_a_server_that_chooses_another_subprotocol(chosen: str | None) -> None:
    async def script(stream: trio.abc.Stream, head: bytes) -> None:
        await stream.send_all(accepted(head, chosen))

    async with scripted(script) as url:
        with pytest.raises(ConnectFailed, match="subprotocol"):
            async with WebSocketClientTransport(url).connect():
                pass


async def test_a_silent_server_is_not_waited_for_long(autojump_clock: trio.testing.MockClock) -> None:
    async def script(stream: trio.abc.Stream, head: bytes) -> None:
        await trio.sleep_forever()

    autojump_clock.autojump_threshold = 0.05
    async with scripted(script) as url:
        with pytest.raises(ConnectFailed, match="within 10 s"):
            async with WebSocketClientTransport(url).connect():
                pass


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectFailed, match="refused"):
        async with WebSocketClientTransport(f"ws://127.0.0.1:{free_port()}/").connect():
            pass


async def test_what_a_client_asks_for_and_what_comes_at_once() -> None:
    seen = b""

    async def script(stream: trio.abc.Stream, head: bytes) -> None:
        nonlocal seen
        seen = head
        hello = frame(TEXT, b'{"hello": 1}', masked=False)
        await stream.send_all(accepted(head) + hello + closing(4000, "enough", masked=False))
        while await stream.receive_some():
            pass

    async with scripted(script) as url:
        secret = url.replace("//", "//us%40er:pass@")
        transport = WebSocketClientTransport(secret, headers={"X-Key": "k"})
        assert "pass" not in repr(transport)
        async with transport.connect() as channel:
            assert (await channel.receive()).data == b'{"hello": 1}'
            with pytest.raises(trio.BrokenResourceError, match=r"4000 \(enough\)"):
                await channel.receive()
    lines = seen.decode().lower().split("\r\n")
    assert lines[0] == "get /x?y=1 http/1.1"
    assert "sec-websocket-protocol: mcp" in lines
    assert "x-key: k" in lines
    assert "authorization: basic dxnaqgvyonbhc3m=" not in lines  # the case of base64 matters
    assert b"Basic dXNAZXI6cGFzcw==" in seen
    assert b"extensions" not in seen.lower()


async def test_a_server_that_is_not_ours() -> None:
    async def echo(request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="mcp")
        try:
            while True:
                await connection.send_message(await connection.get_message())
        except ConnectionClosed:
            return

    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, echo, "127.0.0.1", 0, None))
        url = f"ws://127.0.0.1:{server.port}/"
        async with WebSocketClientTransport(url).connect() as channel:
            for text in ("{}", '"€"', '"' + "x" * 70_000 + '"'):
                await channel.send(Frame(text.encode()))
                assert (await channel.receive()).data == text.encode()
            await channel.send_many([Frame(b"%d" % n) for n in range(300)])
            assert [(await channel.receive()).data for _ in range(300)] == [b"%d" % n for n in range(300)]
        nursery.cancel_scope.cancel()


async def test_over_tls() -> None:
    async def echo(channel: FrameChannel) -> None:
        try:
            while True:
                await channel.send(await channel.receive())
        except trio.EndOfChannel:
            return

    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    async with trio.open_nursery() as nursery:
        server = WebSocketServerTransport("wss://127.0.0.1:0/", ssl_context=ours)
        url = await nursery.start(server.serve, Listening(echo))
        assert url.startswith("wss://")
        async with WebSocketClientTransport(url, ssl_context=theirs).connect() as channel:
            await channel.send(Frame(b"{}"))
            assert (await channel.receive()).data == b"{}"
        with pytest.raises(ConnectFailed, match="certificate"):
            async with WebSocketClientTransport(url).connect():
                pass
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1/", {}),
        ("ws:///x", {}),
        ("ws://h/#f", {}),
        ("ws://h/ä", {}),
        ("ws://h/", {"Sec-WebSocket-Key": "x"}),
        ("ws://h/", {"X": "a\r\nb: c"}),
    ],
)
def test_what_cannot_be_used(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"URL|header"):
        WebSocketClientTransport(url, headers=headers)


# -- A server that is protected by access tokens, over WebSocket: at the upgrade, and until the access ends ---

LIMIT = 60.0


@asynccontextmanager
async def protected(*transports: Any) -> AsyncIterator[list[str]]:
    """A server behind transports, with a tool that needs a scope; yields the URLs."""
    server = Server("protected")

    @server.tool
    async def sees(ctx: Context) -> str:
        assert ctx.request is not None
        assert ctx.principal is not None
        return json.dumps([ctx.principal.subject, sorted(ctx.request.headers)])

    @server.tool(scopes=["files:write"])
    async def store() -> str:
        return "stored"

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            yield list(await nursery.start(server.serve, *transports))
            nursery.cancel_scope.cancel()


def over_websocket(url: str, token: str) -> WebSocketClientTransport:
    return WebSocketClientTransport(url, headers={"Authorization": f"Bearer {token}"})


async def test_the_upgrade_is_refused_as_any_request() -> None:
    tokens = Tokens(remembered_for=0)
    async with protected(WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server(tokens))) as (
        url,
    ):

        async def refused(authorization: str | None) -> tuple[int, str | None, str]:
            async with connected(url) as peer:
                await peer.upgrade(path_of(url), Authorization=authorization)
                status, headers, body = await peer.answer()
                assert headers["content-type"] == "application/json"
                return status, headers.get("www-authenticate"), json.loads(body)["error"]

        assert await refused(None) == (401, NO_TOKEN, "unauthorized")
        assert await refused("Bearer nobody") == (401, INVALID, "invalid_token")
        assert await refused("Bearer ann-useless") == (403, lacking("mcp:use"), "insufficient_scope")
        tokens.down = True
        assert await refused("Bearer ann") == (503, None, "temporarily_unavailable")


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_connection_has_the_scopes_of_its_upgrade_and_no_token(era: str) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server())
    async with protected(transport) as (url,):
        async with Client(over_websocket(url, "ann"), era=era) as client:
            subject, headers = json.loads((await client.call_tool("sees")).text)
            assert subject == "ann"
            assert {"authorization", "dpop"} & set(headers) == set()
            with pytest.raises(InsufficientScope) as refusal:
                await client.call_tool("store")
            assert refusal.value.data["scopes"] == ["files:write"]
        async with Client(over_websocket(url, "ann-more"), era=era) as client:
            assert (await client.call_tool("store")).text == "stored"


async def test_a_name_of_a_check_of_ones_own_has_no_scopes() -> None:
    async with protected(
        WebSocketServerTransport("ws://127.0.0.1:0/mcp", authenticate=lambda request: "ann")
    ) as (url,):
        async with Client(WebSocketClientTransport(url)) as client:
            with pytest.raises(InsufficientScope):
                await client.call_tool("store")


async def test_a_connection_ends_some_time_after_its_access(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # Real sockets have to be waited for before the time jumps.
    autojump_clock.autojump_threshold = 0.05
    tokens = Tokens()
    tokens.principals = {"ann": caller("ann", lasts=100), "bob": Principal("bob", ISSUER, scopes=["mcp:use"])}
    server = Server("protected")
    transport = WebSocketServerTransport("ws://127.0.0.1:0/mcp", auth=resource_server(tokens))
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, transport)
        began = trio.current_time()
        for token in ("bob", "ann"):
            peer = over_websocket(url, token)
            nursery.start_soon(_stay, peer, ended := trio.Event())
        await ended.wait()
        assert 100 + STREAM_GRACE - 5 <= trio.current_time() - began <= 100 + STREAM_GRACE + 5
        assert transport.statistics().connections == 1
        nursery.cancel_scope.cancel()


async def _stay(transport: WebSocketClientTransport, ended: trio.Event) -> None:
    async with transport.connect() as channel:
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
            await channel.receive()
    ended.set()


# -- the metadata ----------------------------------------------------------------------------------------------------


def resource(path: str) -> ResourceServer:
    return resource_server(resource=f"https://mcp.example.org{path}")


async def read(url: str, path: str) -> tuple[int, str | None]:
    async with httpx2.AsyncClient() as http:
        found = await http.get(f"http://{url.split('/')[2]}{path}")
        return found.status_code, found.json().get("resource")


async def test_a_websocket_alone_shows_its_metadata() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/ws", auth=resource("/ws"))
    async with protected(transport) as (url,):
        for path in (WELL_KNOWN, WELL_KNOWN + "/ws"):
            assert await read(url, path) == (200, "https://mcp.example.org/ws")


async def test_two_transports_at_one_port_show_their_metadata() -> None:
    server = Server("both")
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            http = HttpServerTransport("http://127.0.0.1:0/mcp", auth=resource("/mcp"))
            (url,) = await nursery.start(server.serve, http)
            port = url.split(":")[2].partition("/")[0]
            for path in ("/ws", "/other"):
                beside = WebSocketServerTransport(f"ws://127.0.0.1:{port}{path}", auth=resource(path))
                await nursery.start(Server(path).serve, beside)
            for path in ("/mcp", "/ws", "/other"):
                assert await read(url, WELL_KNOWN + path) == (200, f"https://mcp.example.org{path}")
            # Who came first owns the origin.
            assert await read(url, WELL_KNOWN) == (200, "https://mcp.example.org/mcp")
            assert await read(url, WELL_KNOWN + "/more") == (404, None)
            async with Client(over_websocket(f"ws://127.0.0.1:{port}/ws", "ann")):
                pass
            nursery.cancel_scope.cancel()
