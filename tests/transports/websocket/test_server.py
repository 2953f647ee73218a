"""The server's side over real sockets: who gets in, and what siblings notice of those who misbehave."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from benchmarks.suite.server import free_port
from mcp_actors import Client, Server
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.connection import Connection
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server import HttpServerTransport, Refusal
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.opening import accept
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.lines import PATIENCE, until

from .raw import BINARY, KEY, TEXT, Listening, RawPeer, connected, frame, path_of, raw_peer


async def echo(channel: FrameChannel) -> None:
    try:
        while True:
            await channel.send_many(await channel.receive_many())
    except (trio.EndOfChannel, trio.BrokenResourceError):
        return


@asynccontextmanager
async def serving(
    transport: WebSocketServerTransport, handler: Any = None
) -> AsyncIterator[tuple[str, Listening]]:
    listening = Listening(handler or echo)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(transport.serve, listening)
        yield url, listening
        nursery.cancel_scope.cancel()


REFUSED: dict[str, tuple[str, Mapping[str, str | None], int, str]] = {
    "another path": ("/other", {}, 404, "path"),
    "a foreign host": ("/", {"Host": "evil.example"}, 403, "allowed_hosts"),
    "a foreign origin": ("/", {"Origin": "http://evil.example"}, 403, "allowed_origins"),
    "no upgrade": ("/", {"Upgrade": None}, 426, "WebSocket endpoint"),
    "an upgrade to something else": ("/", {"Upgrade": "h2c"}, 426, "WebSocket endpoint"),
    "no connection header": ("/", {"Connection": "keep-alive"}, 426, "WebSocket endpoint"),
    "no key": ("/", {"Sec_WebSocket_Key": None}, 400, "sec-websocket-key"),
    "a key that is none": ("/", {"Sec_WebSocket_Key": "short"}, 400, "sec-websocket-key"),
    "a key that is no ASCII": ("/", {"Sec_WebSocket_Key": "\xff" * 24}, 400, "sec-websocket-key"),
    "an old version": ("/", {"Sec_WebSocket_Version": "8"}, 426, "version 13"),
    "no version": ("/", {"Sec_WebSocket_Version": None}, 400, "sec-websocket-version"),
    "a body": ("/", {"Content_Length": "2"}, 400, "body"),
    "a host that no name can be": ("/", {"Host": "\xff"}, 400, "host"),
}


@pytest.mark.parametrize(("path", "changes", "status", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_no_upgrade_for_us_is_refused_in_words(
    path: str, changes: Mapping[str, str | None], status: int, says: str
) -> None:
    async with serving(WebSocketServerTransport("ws://127.0.0.1:0/")) as (url, listening):
        async with connected(url) as peer:
            await peer.upgrade(path, **changes)
            if "Content_Length" in changes:
                await peer.send(b"{}")
            found, headers, body = await peer.answer()
            assert found == status
            assert says in body.decode()
            if status == 426:
                assert headers["upgrade"] == "websocket"
            if says == "version 13":
                assert headers["sec-websocket-version"] == "13"
        assert listening.principals == []


@pytest.mark.parametrize(
    ("offered", "chosen"), [("mcp", "mcp"), ("soap, mcp", "mcp"), ("soap", None), (None, None)]
)
async def test_the_subprotocol_is_confirmed_to_who_offers_it(offered: str | None, chosen: str | None) -> None:
    async with (
        serving(WebSocketServerTransport("ws://127.0.0.1:0/")) as (url, _),
        connected(url) as peer,
    ):
        await peer.upgrade(
            Sec_WebSocket_Protocol=offered,
            Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
        )
        status, headers = await peer.head()
        assert status == 101
        assert headers.get("sec-websocket-protocol") == chosen
        assert "sec-websocket-extensions" not in headers
        assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


async def test_a_subprotocol_can_be_asked_for() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", require_subprotocol=True)
    async with serving(transport) as (url, _):
        async with connected(url) as peer:
            await peer.upgrade(Sec_WebSocket_Protocol="soap")
            status, _, body = await peer.answer()
            assert status == 400
            assert b"require_subprotocol" in body
        async with WebSocketClientTransport(url).connect() as channel:
            await channel.send(Frame(b"{}"))
            assert (await channel.receive()).data == b"{}"
    assert transport.statistics().refused == 1


async def test_who_a_peer_is_is_asked_before_the_upgrade() -> None:
    async def authenticate(request: Any) -> str | Refusal:
        await trio.lowlevel.checkpoint()
        if request.headers.get("authorization") == "Bearer good":
            return "alice"
        return Refusal(401, "who are you?", headers=(("www-authenticate", "Bearer"),))

    transport = WebSocketServerTransport("ws://127.0.0.1:0/", authenticate=authenticate)
    async with serving(transport) as (url, listening):
        async with connected(url) as peer:
            await peer.upgrade()
            status, headers, body = await peer.answer()
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert b"who are you?" in body
        assert listening.principals == []
        good = WebSocketClientTransport(url, headers={"Authorization": "Bearer good"})
        async with good.connect() as channel:
            await channel.send(Frame(b"{}"))
            await channel.receive()
        assert listening.principals == [Principal("alice")]


async def test_bytes_before_the_answer_are_no_websocket() -> None:
    async with (
        serving(WebSocketServerTransport("ws://127.0.0.1:0/")) as (url, listening),
        connected(url) as peer,
    ):
        headers = (
            "Host: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        )
        head = f"GET / HTTP/1.1\r\n{headers}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        await peer.send(head + frame(TEXT, b"{}"))
        assert (await peer.answer())[0] == 400
        assert listening.principals == []


async def test_siblings_notice_nothing_of_who_breaks_the_rules() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", max_message_bytes=10_000)
    async with serving(transport) as (url, _), WebSocketClientTransport(url).connect() as sibling:
        for bad in (frame(BINARY, b"{}"), frame(TEXT, b"x" * 10_001), frame(TEXT, b"\xff"), b"\xff" * 50):
            async with raw_peer(url) as peer:
                await peer.send(bad)
                code, _ = await peer.closed_with()
                assert code in (1002, 1003, 1007, 1009)
                assert await peer.ended()
            async with raw_peer(url) as peer:
                await peer.send(frame(TEXT, b"half", length=100))
            await sibling.send(Frame(b"{}"))
            assert (await sibling.receive()).data == b"{}"
        await until(lambda: transport.statistics().connections == 1)


async def test_more_connections_than_allowed_are_turned_away() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", max_connections=1)
    async with serving(transport) as (url, _), raw_peer(url) as first:
        with pytest.raises(ConnectFailed, match="503"):
            async with WebSocketClientTransport(url).connect():
                pass
        await first.send(frame(TEXT, b"{}"))
        assert await first.frame() == (TEXT, b"{}")


async def test_a_cancelled_server_sends_close_frames_and_leaves_nothing(collector_rests: None) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    before = len(os.listdir("/proc/self/fd"))
    async with trio.open_nursery() as clients:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(transport.serve, Listening(echo))
            for _ in range(3):
                await clients.start(receives_a_close_frame, url)
            nursery.cancel_scope.cancel()
    assert transport.statistics().connections == 0
    assert len(os.listdir("/proc/self/fd")) == before


async def receives_a_close_frame(url: str, task_status: trio.TaskStatus[None]) -> None:
    async with WebSocketClientTransport(url).connect() as channel:
        await channel.send(Frame(b"{}"))
        await channel.receive()
        task_status.started()
        with pytest.raises(trio.EndOfChannel):
            await channel.receive()
        assert channel.loss_report()["close_code"] == 1001


async def test_it_is_served_once_at_a_time() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    async with serving(transport):
        with pytest.raises(LocalProtocolError):
            await transport.serve(Listening(echo))
    async with serving(transport) as (url, _):
        assert path_of(url) == "/"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:0/", "wss://127.0.0.1:0/", "ws://", "ws://u@127.0.0.1/", "ws:127.0.0.1"]
)
def test_urls_that_cannot_be_served(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|ssl_context"):
        WebSocketServerTransport(url)


# -- one port for both ------------------------------------------------------------------------------------------------


def site() -> Server:
    server = Server("both")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


@pytest.mark.parametrize("websocket_first", [False, True])
@pytest.mark.parametrize("path", ["/ws", "/mcp"])
async def test_http_and_websocket_share_a_port(websocket_first: bool, path: str) -> None:
    port = free_port()
    one = HttpServerTransport(f"http://127.0.0.1:{port}/mcp")
    two = WebSocketServerTransport(f"ws://127.0.0.1:{port}{path}")
    server = site()
    async with trio.open_nursery() as nursery:
        for transport in (two, one) if websocket_first else (one, two):
            await nursery.start(server.serve, transport)
        for url in (f"http://127.0.0.1:{port}/mcp", f"ws://127.0.0.1:{port}{path}"):
            for era in ("legacy", "modern"):
                async with Client(url, era=era) as client:
                    answer = await client.call_tool("add", {"a": 1, "b": 2})
                    assert answer.content[0].text == "3"
        async with connected(f"ws://127.0.0.1:{port}/") as peer:
            await peer.upgrade("/nowhere")
            assert (await peer.answer())[0] == 404
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, two)  # the address is free again
        nursery.cancel_scope.cancel()


async def test_a_port_that_the_system_chose_is_shared_too() -> None:
    server = site()
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp"))
        websocket = url.replace("http:", "ws:").replace("/mcp", "/ws")
        assert await nursery.start(server.serve, WebSocketServerTransport(websocket)) == (websocket,)
        for each in (url, websocket):
            async with Client(each) as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
        nursery.cancel_scope.cancel()


async def test_two_of_a_kind_do_not_share() -> None:
    port = free_port()
    server = site()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, WebSocketServerTransport(f"ws://127.0.0.1:{port}/"))
        with pytest.raises(ConnectFailed):
            await server.serve(WebSocketServerTransport(f"ws://127.0.0.1:{port}/"))
        nursery.cancel_scope.cancel()


async def test_an_open_websocket_has_let_go_of_its_http_connection(collector_rests: None) -> None:
    def of_http() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, Connection)]

    server = Server("idle")
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(server.serve, "ws://127.0.0.1:0/ws")
        async with Client(url) as client:
            await client.ping()
            assert of_http() == []
        nursery.cancel_scope.cancel()


# -- The server's side of the opening: trio-websocket reads the head that arrived, byte for byte ---------

HEAD = (
    "GET /?a=%20b HTTP/1.1\r\nHOST: 127.0.0.1\r\nX-Odd:\t two  blanks \r\nUpgrade: WebSocket\r\n"
    f"Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: soap\r\nSec-WebSocket-Protocol: mcp\r\n\r\n"
).encode()
SPLITS: dict[str, Sequence[bytes]] = {
    "in one piece": [HEAD],
    "in two": [HEAD[:100], HEAD[100:]],
    "byte by byte": [HEAD[at : at + 1] for at in range(len(HEAD))],
    "behind an empty line": [b"\r\n", HEAD],
}


@pytest.mark.parametrize("pieces", SPLITS.values(), ids=SPLITS.keys())
async def test_trio_websocket_reads_the_head_that_arrived(
    pieces: Sequence[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[bytes] = []

    async def accept_it(stream: trio.abc.Stream, head: bytes, subprotocol: str | None) -> None:
        shown.append(head)
        await accept(stream, head, subprotocol)

    monkeypatch.setattr("mcp_transports.websocket.server.accept", accept_it)
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(transport.serve, Listening(echo))
            async with connected(url) as peer:
                for piece in pieces:
                    await peer.send(piece)
                    await trio.testing.wait_all_tasks_blocked()
                status, headers = await peer.head()
                assert (status, headers["sec-websocket-protocol"]) == (101, "mcp")
                await peer.send(frame(TEXT, b"{}"))
                assert await peer.frame() == (TEXT, b"{}")
            nursery.cancel_scope.cancel()
    assert [each.lstrip(b"\r\n") for each in shown] == [HEAD]


async def test_a_request_that_follows_another_one_in_the_same_read_is_no_opening() -> None:
    requests: list[Request] = []

    def authenticate(request: Request) -> None:
        requests.append(request)

    transport = WebSocketServerTransport("ws://127.0.0.1:0/", authenticate=authenticate)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(transport.serve, Listening(echo))
            async with connected(url) as peer:
                await peer.send(b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HEAD)
                assert (await peer.answer())[0] == 404
                status, _, body = await peer.answer()
                assert (status, b"travels alone" in body) == (400, True)
                await peer.send(HEAD)
                assert (await peer.head())[0] == 101
            nursery.cancel_scope.cancel()
    assert [each.head for each in requests] == [HEAD]


async def test_a_head_that_trio_websocket_refuses_is_answered_and_ends_the_opening() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    bad = HEAD.replace(b"Version: 13", b"Version: 12")
    with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError, match="not completed"):
        await accept(ours, bad, None)
    assert (await RawPeer(theirs).head())[0] == 426


@pytest.mark.parametrize("left", ["closed", "broken"])
async def test_a_peer_that_left_before_the_answer(left: str) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    if left == "closed":
        await theirs.aclose()
    else:

        async def break_it() -> None:
            raise trio.BrokenResourceError

        ours.send_stream.send_all_hook = break_it
    with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError, match="not completed"):
        await accept(ours, HEAD, "mcp")
