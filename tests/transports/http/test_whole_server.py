"""A real server over real sockets, used by many peers at once, good and bad ones: what is left when they are gone."""

from __future__ import annotations

import gc
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Context, Limits, Server
from mcp_transports.http.server import HttpLimits, HttpServerTransport
from tests.messages import LEGACY, MODERN, modern_meta, modern_request

from .raw import RawPeer, eventually

MIXED = int(os.environ.get("MCP_MIXED_REQUESTS", "10000"))
PEERS = 40
STREAMS = 1_000
LINES_OF_FLOOD = 200
LONG = "x" * 100_000


class Site:
    """A server, where it is, and what it has noticed."""

    def __init__(self, limits: HttpLimits) -> None:
        self.server = server = Server("site", limits=Limits(drain_grace=5))
        self.transport = HttpServerTransport("http://127.0.0.1:0/mcp", limits=limits, max_sessions=5_000)
        self.port = 0
        self.running = 0
        self.cancelled = 0
        self.nursery: Any = None

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def hold(ctx: Context) -> None:
            self.running += 1
            try:
                await ctx.progress(1)
                await trio.sleep_forever()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1

        @server.tool
        async def flood(lines: int, ctx: Context) -> str:
            for line in range(1, lines + 1):
                await ctx.progress(line, message=LONG)
            return "all told"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def peer(self) -> RawPeer:
        return RawPeer(await trio.open_tcp_stream("127.0.0.1", self.port))

    @asynccontextmanager
    async def peers(self) -> AsyncIterator[RawPeer]:
        peer = await self.peer()
        try:
            yield peer
        finally:
            with trio.CancelScope(shield=True):
                await peer.aclose()


@asynccontextmanager
async def site(limits: HttpLimits | None = None) -> AsyncIterator[Site]:
    each = Site(limits or HttpLimits())
    async with trio.open_nursery() as nursery:
        each.nursery = nursery
        (url,) = await nursery.start(each.server.serve, each.transport)
        each.port = int(url.rpartition(":")[2].partition("/")[0])
        yield each
        nursery.cancel_scope.cancel()


def http(body: Any, *headers: str, method: str = "POST") -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} /mcp HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def modern(
    tool: str, arguments: Any, token: Any = None, *, method: str = "tools/call", version: str = MODERN
) -> bytes:
    meta = modern_meta(version=version, **({} if token is None else {"progressToken": token}))
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http(body, f"MCP-Protocol-Version: {version}", f"Mcp-Method: {method}", f"Mcp-Name: {tool}")


def legacy(method: str, session: str | None = None, id: Any = 1, **params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    named = [] if session is None else [f"Mcp-Session-Id: {session}", f"MCP-Protocol-Version: {LEGACY}"]
    return http(body, *named)


INITIALIZE = legacy(
    "initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": "t", "version": "1"}
)


async def begin(peer: RawPeer) -> str:
    await peer.send(INITIALIZE)
    answer = await peer.answer()
    assert answer.status == 200
    return answer.headers["mcp-session-id"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- kinds of peers, each worth some requests --------------------------------------------------------------------------


async def good(peer: RawPeer, _: random.Random) -> int:
    await peer.send(modern("add", {"a": 1, "b": 2}) * 32)
    for _each in range(32):
        answer = await peer.answer()
        assert json.loads(answer.body)["result"]["structuredContent"] == 3
    return 32


async def good_session(peer: RawPeer, _: random.Random) -> int:
    session = await begin(peer)
    calls = [legacy("tools/call", session, id, name="add", arguments={"a": id, "b": 2}) for id in range(32)]
    await peer.send(b"".join(calls))
    for id in range(32):
        assert json.loads((await peer.answer()).body)["id"] == id
    await peer.send(http(None, f"Mcp-Session-Id: {session}", method="DELETE"))
    assert (await peer.answer()).status == 200
    return 34


REFUSED = [
    (http(b"{"), 400),
    (http(b"\xff\xfe"), 400),
    (http([]), 400),
    (http({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}), 400),
    (legacy("tools/list", "no-such-session"), 404),
    (http(None, "Mcp-Session-Id: nobody", method="DELETE"), 404),
    (http(b"", method="PUT"), 405),
    (modern("add", {"a": 1, "b": 2}).replace(b"Host: localhost", b"Host: evil.example.com"), 403),
    (modern("add", {"a": 1, "b": 2}).replace(b"Mcp-Name: add", b"Mcp-Name: ad"), 400),
    (modern("add", {"a": 1, "b": 2}, version="v999.0.0"), 400),
    (modern("add", {"a": 1, "b": 2}, method="tools/none"), 404),
    (modern("add", {"a": 1}), 200),
]


async def refused(peer: RawPeer, _: random.Random) -> int:
    await peer.send(b"".join(request for request, _status in REFUSED))
    for request, status in REFUSED:
        assert (await peer.answer()).status == status, request
    return len(REFUSED)


async def leaves(peer: RawPeer, chance: random.Random) -> int:
    """Leaves in the middle: of a head, of a body, of its call, of a stream."""
    request = modern("hold", {}, token=1 if chance.random() < 0.5 else None)
    cut = chance.choice([5, len(request) - 5, len(request)])
    await peer.send(request[:cut])
    if cut == len(request) and chance.random() < 0.5:
        await peer.stream.receive_some(
            10
        ) if b"progressToken" in request else await trio.lowlevel.checkpoint()
    return 1


async def leaves_session(peer: RawPeer, _: random.Random) -> int:
    """Opens a session and its stream, begins a call, is never seen again; somebody else ends the session."""
    session = await begin(peer)
    await peer.send(legacy("tools/call", session, 5, name="hold", arguments={}, _meta={"progressToken": 1}))
    await peer.until(b"notifications/progress")
    return 2


KINDS: list[Callable[[RawPeer, random.Random], Awaitable[int]]] = [
    *[good] * 8,
    *[good_session] * 8,
    *[refused] * 4,
    *[leaves] * 4,
]


@pytest.mark.long
async def test_thousands_of_mixed_requests_leave_nothing() -> None:
    chance = random.Random(7)
    async with site() as each:
        done = 0

        async def work() -> None:
            nonlocal done
            while done < MIXED:
                async with each.peers() as peer:
                    made = await chance.choice(KINDS)(peer, chance)
                done += made

        async with each.peers() as peer:  # whatever is made once is made
            await good(peer, chance)
        before = trio.lowlevel.current_statistics().tasks_living, descriptors()
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                for _ in range(PEERS):
                    nursery.start_soon(work)
        assert done >= MIXED
        # The tasks that calls ran in wait for others: no more of them than ran at once.
        spare = 2 * PEERS
        await eventually(lambda: trio.lowlevel.current_statistics().tasks_living <= before[0] + spare)
        await eventually(lambda: descriptors() <= before[1])
        assert each.running == 0
        tree = each.server.tree()
        assert (tree.sessions, tree.exchanges, tree.limiter.inside) == ((), (), 0)
        gc.collect()
        statistics = each.transport.statistics()
        assert statistics.event_streams == 0


async def test_sessions_left_behind_end_with_the_server_and_their_calls_with_them() -> None:
    async with site() as each:
        for _ in range(20):
            async with each.peers() as peer:
                await leaves_session(peer, random.Random(0))
        assert each.running == 20  # that the stream went is no reason to end the call
        assert len(each.server.tree().sessions) == 20
    assert (each.running, each.cancelled) == (0, 20)


async def test_a_stalled_reader_holds_nobody_but_itself() -> None:
    """One stops reading a stream that is far longer than any buffer; a thousand others go on."""
    limits = HttpLimits(write_buffer=64 * 1024, max_buffered=1024 * 1024)
    async with site(limits) as each, each.peers() as stalled:
        await stalled.send(modern("flood", {"lines": LINES_OF_FLOOD}, token=1))
        await eventually(lambda: len(each.server.tree().exchanges) == 1)
        live = [await each.peer() for _ in range(STREAMS)]
        try:
            with trio.fail_after(60):
                for _ in range(3):
                    for peer in live:
                        await peer.send(modern("add", {"a": 1, "b": 2}))
                    for peer in live:
                        assert (await peer.answer()).status == 200
            # It is still there, waited for and bounded: the call makes no more than the buffers take.
            assert len(each.server.tree().exchanges) == 1
            told = await stalled.answer()
            assert told.body.count(b"notifications/progress") >= LINES_OF_FLOOD - 1
            assert b"all told" in told.body
        finally:
            for peer in live:
                await peer.aclose()


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_thousand_open_streams_are_no_reason_not_to_end(how: str) -> None:
    async with site() as each:
        before = descriptors()
        peers = [await each.peer() for _ in range(STREAMS)]
        for number, peer in enumerate(peers):
            if number % 2:
                session = await begin(peer)
                await peer.send(http(None, f"Mcp-Session-Id: {session}", method="GET"))
            else:
                params = {"notifications": {"toolsListChanged": True}}
                body = modern_request(1, "subscriptions/listen", params)
                mirrored = [f"MCP-Protocol-Version: {MODERN}", "Mcp-Method: subscriptions/listen"]
                await peer.send(http(body, *mirrored))
        for peer in peers:
            await peer.until(b"text/event-stream")
        assert each.transport.statistics().event_streams == STREAMS
        # Far below what a drain may take: nothing here is worth waiting for.
        with trio.fail_after(each.server.limits.drain_grace):
            if how == "stopped":
                each.server.stop()
            else:
                each.nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                endings = [await peer.rest() for peer in peers]
        if how == "stopped":
            # A subscription ends with the result that says so; the chunked bodies of both kinds are complete.
            assert sum(b"subscriptionId" in each and b'"result"' in each for each in endings) == STREAMS / 2
            assert all(each.endswith(b"0\r\n\r\n") for each in endings)
        for peer in peers:
            with trio.CancelScope(shield=True):
                await peer.aclose()
        with trio.CancelScope(shield=True):
            await eventually(lambda: descriptors() <= before)
