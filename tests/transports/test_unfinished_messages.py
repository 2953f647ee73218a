"""Messages that have come in part are limited by peer and in all, on every binding that frames them itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectFailed
from mcp_transports.sockets import TcpTransport, UnixTransport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.http.raw import eventually
from tests.transports.websocket.raw import TEXT, frame, raw_peer

KIB = 1024
HALF = 64 * KIB
SHARE = 4 * HALF
PEERS = [20, 200]


@asynccontextmanager
async def serving(transport: Any) -> AsyncIterator[tuple[Server, str]]:
    server = Server("s")

    @server.tool
    async def length(text: str) -> int:
        return len(text)

    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(server.serve, transport)
        yield server, url
        nursery.cancel_scope.cancel()


async def long_call_is_served(url: str) -> None:
    """A client with a message of its own, which comes in several reads, has room for it."""
    async with Client(url) as client:
        assert (await client.call_tool("length", {"text": "y" * 2 * HALF})).data == 2 * HALF


async def rest(stream: trio.abc.Stream) -> bytes:
    received = b""
    with trio.fail_after(20):
        while data := await stream.receive_some():
            received += data
    return received


@pytest.mark.parametrize("number", PEERS)
async def test_half_sent_lines_of_one_address_are_bounded(number: int) -> None:
    transport = TcpTransport(
        "tcp://127.0.0.1:0", held_bytes=2 * SHARE, max_connections=1000, max_message_bytes=1024 * KIB
    )
    async with serving(transport) as (server, url):
        port = int(url.rpartition(":")[2])

        def state() -> Any:
            return server.tree().transports[0]

        hostile = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(number)]
        for each in hostile:
            await each.send_all(b"x" * HALF)
        await eventually(lambda: state().unfinished.refused == number - 4)
        assert state().unfinished.held == SHARE
        refused = json.loads(await rest(hostile[-1]))
        assert refused["error"]["code"] == 429
        assert str(SHARE) in refused["error"]["message"]
        assert "unfinished messages of this client" in refused["error"]["message"]
        await eventually(lambda: state().connections == 4)
        # A short message needs no room, so that its peer is served all the same.
        async with Client(url) as client:
            assert (await client.call_tool("length", {"text": "y"})).data == 1
        for each in hostile:
            await each.aclose()
        await eventually(lambda: state().unfinished.held == 0)
        await long_call_is_served(url)
        assert state().unfinished.held == 0


@pytest.mark.parametrize("number", PEERS)
async def test_half_sent_websocket_messages_of_one_address_are_bounded(number: int) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", held_bytes=2 * SHARE)
    async with serving(transport) as (_, url):

        def state() -> Any:
            return transport.statistics()

        async with trio.open_nursery() as nursery:
            closed: list[bytes] = []

            async def send_half(task_status: trio.TaskStatus[None]) -> None:
                async with raw_peer(url) as peer:
                    await peer.send(frame(TEXT, b"x" * HALF, length=2 * HALF))
                    task_status.started()
                    _, payload = await peer.frame()
                    closed.append(payload)

            for _ in range(number):
                await nursery.start(send_half)
            await eventually(lambda: state().unfinished.refused == number - 4 and len(closed) == number - 4)
            assert state().unfinished.held == SHARE
            assert {int.from_bytes(each[:2]) for each in closed} == {1013}
            assert b"unfinished messages of this client" in closed[0]
            nursery.cancel_scope.cancel()
        await eventually(lambda: state().unfinished.held == 0)
        await long_call_is_served(url)
        assert state().unfinished.held == 0


async def test_websocket_messages_are_charged_to_the_principal() -> None:
    names = iter(["one", "two", "two"])
    transport = WebSocketServerTransport(
        "ws://127.0.0.1:0/", held_bytes=4 * HALF, authenticate=lambda _: next(names)
    )
    async with serving(transport) as (_, url), raw_peer(url) as one, raw_peer(url) as two:
        for each in (one, two):
            await each.send(frame(TEXT, b"x" * (HALF + KIB), length=4 * HALF))
        await eventually(lambda: transport.statistics().unfinished.holders == 2)
        async with raw_peer(url) as more:
            await more.send(frame(TEXT, b"x" * HALF, length=4 * HALF))
            opcode, payload = await more.frame()
            assert (opcode, int.from_bytes(payload[:2])) == (8, 1013)
        # The others go on.
        await one.send(b"x")
        await eventually(lambda: transport.statistics().connections == 2)
        assert transport.statistics().unfinished.holders == 2


@pytest.mark.parametrize("most", [10, 100])
async def test_one_address_leaves_connections_of_sockets_to_others(most: int) -> None:
    transport = TcpTransport("tcp://127.0.0.1:0", max_connections=most)
    async with serving(transport) as (server, url):
        port = int(url.rpartition(":")[2])
        greedy = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(most)]
        for late in greedy[most // 2 :]:
            assert await rest(late) == b""
        statistics = server.tree().transports[0]
        assert (statistics.connections, statistics.turned_away) == (most // 2, most // 2)
        assert statistics.by_peer.largest == most // 2
        # The whole of 127.0.0.0/8 is this host.
        honest = await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2")
        await honest.send_all(b"no json\n")
        with trio.fail_after(20):
            assert b"error" in await honest.receive_some()
        for each in (honest, *greedy):
            await each.aclose()
        await eventually(lambda: server.tree().transports[0].connections == 0)
        await long_call_is_served(url)


async def test_connections_at_a_unix_socket_have_no_addresses(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    transport = UnixTransport(f"unix://{path}", max_connections=10)
    async with serving(transport) as (server, url):
        opened = [await trio.open_unix_socket(path) for _ in range(9)]
        await long_call_is_served(url)
        assert server.tree().transports[0].turned_away == 0
        for each in opened:
            await each.aclose()


async def test_one_address_leaves_websockets_to_others() -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", max_connections=10, max_connections_per_peer=3)
    async with serving(transport) as (server, url), AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(raw_peer(url))
        with pytest.raises(ConnectFailed, match="503"):
            async with WebSocketClientTransport(url).connect():
                pass
        statistics = server.tree().transports[0]
        assert statistics.connections == 3
        assert (statistics.port.by_address.largest, statistics.port.rejected) == (3, 1)


async def test_the_tree_shows_the_bodies_that_a_listener_holds() -> None:
    async with serving("http://127.0.0.1:0/mcp") as (server, url):
        port = int(url.split(":")[2].partition("/")[0])
        async with await trio.open_tcp_stream("127.0.0.1", port) as half:
            await half.send_all(
                b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n" + b"x" * HALF
            )
            await eventually(lambda: server.tree().transports[0].port.bodies.held == HALF)
            assert server.tree().transports[0].port.by_address.held == 1


@pytest.mark.parametrize("limit", ["held_bytes", "max_connections_per_peer"])
def test_limits_of_a_peer_are_greater_than_zero(limit: str) -> None:
    for make, url in ((TcpTransport, "tcp://127.0.0.1:0"), (WebSocketServerTransport, "ws://127.0.0.1:0/")):
        with pytest.raises(ValueError, match=r"greater than zero|at least 1"):
            make(url, **{limit: 0})
