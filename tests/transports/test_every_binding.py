"""Sessions and connections that have ended are freed by reference counts, with Python's collector switched off."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Context, Limits, Server
from mcp_actors.client import Progress
from mcp_actors.errors import ConnectFailed, RpcError, ToolError
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.sockets import TcpTransport, UnixTransport
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.test_every_task import OnlyHttpSse
from tests.transports.http.raw import eventually
from tests.transports.websocket.raw import TEXT, frame, raw_peer

pytestmark = pytest.mark.slow

# -- A call that says nothing is reported for on every binding, in each era that the binding has ---------

SERVER = """
import trio

from mcp_actors import Limits, Server

server = Server("silent", limits=Limits(beat=0.02))
let_go = trio.Event()

@server.tool
async def hold() -> str:
    await let_go.wait()
    return "held"

@server.tool
async def release() -> None:
    let_go.set()
"""
ROWS = [
    (binding, era)
    for binding in ("memory", "stdio", "tcp", "unix", "ws", "http")
    for era in ("legacy", "modern")
] + [("sse", "legacy")]
WANTED = 3


def made_server() -> Server:
    namespace: dict[str, Any] = {}
    exec(SERVER, namespace)
    server: Server = namespace["server"]
    assert server.limits == Limits(beat=0.02)
    return server


async def beaten(client: Client) -> list[Progress]:
    """The progress of a call that ends when enough was told."""
    told: list[Progress] = []

    async def note(progress: Progress) -> None:
        told.append(progress)
        if len(told) == WANTED:
            await client.call_tool("release")

    result = await client.call_tool("hold", on_progress=note)
    assert result.content[0].text == "held"
    return told


@pytest.mark.parametrize(("binding", "era"), ROWS)
async def test_a_silent_call_is_reported_for(binding: str, era: str, tmp_path: Path) -> None:
    urls = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/s",
        "ws": "ws://127.0.0.1:0/ws",
        "http": "http://127.0.0.1:0/mcp",
        "sse": "http://127.0.0.1:0/mcp",
    }
    with trio.fail_after(60):
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            target: Any
            if binding == "stdio":
                target = StdioClientTransport([sys.executable, "-c", f"{SERVER}\nserver.run()"])
            elif binding == "memory":
                target = made_server()
            else:
                (target,) = await nursery.start(made_server().serve, urls[binding])
            if binding == "sse":
                # As an old server, whose refusal of a POST there is no JSON-RPC.
                only_sse = await stack.enter_async_context(httpx2.AsyncClient(transport=OnlyHttpSse()))
                target = HttpClientTransport(target.removesuffix("/mcp") + "/sse", client=only_sse)
            async with Client(target, era=era) as client:
                told = await beaten(client)
            nursery.cancel_scope.cancel()
    values = [each.progress for each in told]
    assert len(values) >= WANTED
    assert 0 < values[0] < 1e-6
    assert all(a < b for a, b in pairwise(values))


# -- Messages that have come in part are limited by peer and in all, on every binding that frames them itself ---

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
    with trio.fail_after(60):
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
    # A peer that is pinged before the others have come would take that for its close.
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", held_bytes=2 * SHARE, ping_interval=600)
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
async def test_one_address_leaves_connections_of_sockets_to_others(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who was silent for a second makes room, and a busy machine may need that long for all of them to connect.
    monkeypatch.setattr("mcp_transports.sockets.transport._SILENT_TIME", 600)
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
        with trio.fail_after(60):
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


# -- Sessions and connections that have ended are freed by reference counts, with Python's collector off ---

# Clients that come and go before the measure, when caches are filled, and in it.
FIRST, MEASURED = 2, 10
# Objects in cycles, of all measured clients together: one cycle for each client would be more.
ALLOWED = MEASURED // 2

BINDINGS = ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0", "unix:{}/freed", "memory"]
ERAS = ["legacy", "modern"]


def make_server() -> Server:
    server = Server("freed")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def fails() -> str:
        raise ToolError("on purpose")

    @server.tool
    async def hangs(ctx: Context) -> str:
        await ctx.progress(1)
        await trio.sleep_forever()
        return ""

    @server.resource("memo:one")
    async def memo() -> str:
        return "memo"

    return server


@asynccontextmanager
async def served(server: Server, binding: str, tmp_path: Any) -> AsyncIterator[Any]:
    if binding == "memory":
        yield server
        return
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, binding.format(tmp_path))
        yield where
        nursery.cancel_scope.cancel()


async def calls(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client:
        await client.call_tool("echo", {"text": "x"})


async def fails(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client:
        await client.call_tool("fails")
        with pytest.raises(RpcError):
            await client.read_resource("memo:none")


async def listens(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client, client.listen(uris=["memo:one"]) as events:
        server.resource_updated("memo:one")
        await anext(events)


async def leaves_a_call(where: Any, server: Server, era: str) -> None:
    with trio.CancelScope() as scope:

        async def reported(progress: Any) -> None:
            scope.cancel()

        async with Client(where, era=era) as client:
            await client.call_tool("hangs", on_progress=reported)


async def garbage(use: Callable[[], Awaitable[None]]) -> int:
    """Returns how many objects of the measured clients only the collector can free."""
    for _ in range(FIRST):
        await use()
    await settled()
    gc.collect()
    for _ in range(MEASURED):
        await use()
    await settled()
    return gc.collect()


async def settled() -> None:
    """Waits until the tasks of connections that have ended are done, which takes no time that could be known."""
    tasks = -1
    for _ in range(100):
        await trio.sleep(0.05)
        if tasks == (tasks := trio.lowlevel.current_statistics().tasks_living):
            return


@pytest.mark.usefixtures("collector_rests")
@pytest.mark.parametrize("use", [calls, fails, listens, leaves_a_call], ids=lambda use: use.__name__)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_client_that_has_left_is_freed(binding: str, era: str, use: Any, tmp_path: Any) -> None:
    server = make_server()
    async with served(server, binding, tmp_path) as where:
        assert await garbage(lambda: use(where, server, era)) < ALLOWED
