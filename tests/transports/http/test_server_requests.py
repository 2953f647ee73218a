"""What the server understands, and how it answers."""

from __future__ import annotations

import gc
import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from mcp_transports.http.h1.byte_stream import WrappedByteStream
from mcp_transports.http.h1.connection import Connection, ServerState
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.parser import ParserPool, RequestParser
from mcp_transports.http.h1.request import MalformedRequest, Request
from mcp_transports.http.h1.response import Response
from tests.transports.http.test_whole_server import (
    SiteWholeServer,
    begin,
    legacy,
    modern_whole_server,
    site_whole_server,
)

from .raw import GET, HOST, RawPeer, Slow, echo, eventually, post, serving


async def ask(peer: RawPeer, data: bytes) -> tuple[int, bytes]:
    await peer.send(data)
    answer = await peer.answer()
    return answer.status, answer.body


async def test_one_connection_serves_many_requests() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        assert await ask(peer, GET) == (200, b"GET / ")
        assert await ask(peer, post(b"abc", path=b"/x?y=%20")) == (200, b"POST /x?y=%20 abc")
        assert served.server.statistics().connections == 1
        assert served.server.statistics().requests == 2


async def test_a_request_as_the_application_sees_it() -> None:
    seen: list[Request] = []

    def app(request: Request, response: Response) -> None:
        seen.append(request)
        response.answer(204)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(
            b"PUT /a%20b?c?d HTTP/1.1\r\nHOST: x:1\r\nX-One:  a\xe9 \t\r\nAccept: a\r\nAccept: b\r\n"
            b"Cookie: c=1\r\nCookie: d=2\r\nX-Empty:\r\n\r\n"
        )
        answer = await peer.answer()
        local = await trio.to_thread.run_sync(lambda: peer.stream.socket.getsockname())  # type: ignore[attr-defined]
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    [request] = seen
    assert (request.method, request.target, request.path, request.query) == (
        "PUT",
        "/a%20b?c?d",
        "/a%20b",
        "c?d",
    )
    assert request.headers == {
        "host": "x:1",
        "x-one": "a\xe9",
        "accept": "a, b",
        "cookie": "c=1; d=2",
        "x-empty": "",
    }
    assert (request.body, request.version, request.secure) == (b"", "1.1", False)
    assert request.peer == f"127.0.0.1:{local[1]}"


@pytest.mark.parametrize(
    ("line", "target"),
    [
        (b"GET http://y/p?q HTTP/1.1", "/p q y"),
        (b"GET http://y:8?q HTTP/1.1", "/ q y:8"),
        (b"GET HTTPS://y HTTP/1.1", "/  y"),
        (b"OPTIONS * HTTP/1.1", "*  x"),
        (b"GET //p HTTP/1.1", "//p  x"),
    ],
)
async def test_other_forms_of_targets(line: bytes, target: str) -> None:
    def app(request: Request, response: Response) -> None:
        response.answer(200, f"{request.path} {request.query} {request.headers['host']}".encode())

    async with serving(app) as served:
        peer = await served.connect()
        assert await ask(peer, line + b"\r\n" + HOST + b"\r\n") == (200, target.encode())


async def test_pipelined_requests_are_answered_in_order() -> None:
    waiting: list[Response] = []

    def app(request: Request, response: Response) -> None:
        if request.path == "/wait":
            waiting.append(response)
        else:
            response.answer(200, request.path.encode())

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(
            b"".join(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % each for each in (b"/1", b"/wait", b"/2", b"/3"))
        )
        assert (await peer.answer()).body == b"/1"
        await eventually(lambda: bool(waiting))
        assert served.server.statistics().requests == 2
        waiting[0].answer(200, b"at last")
        assert [(await peer.answer()).body for _ in range(3)] == [b"at last", b"/2", b"/3"]


async def test_a_request_split_anywhere_is_the_same_request() -> None:
    data = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nX-Y: z\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;e=f\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    ) + post(b"fgh")
    for cut in range(1, len(data)):
        parser = RequestParser(HttpLimits())
        parser.feed(data[:cut])
        parser.feed(memoryview(data)[cut:])
        assert [(each.method, each.body) for each in parser.ready if isinstance(each, Request)] == [
            ("POST", b"abcde"),
            ("POST", b"fgh"),
        ]
        assert parser.state == "between"


@given(st.lists(st.integers(1, 40), max_size=12), st.data())
def test_any_cuts_give_the_same_requests(sizes: list[int], data: st.DataObject) -> None:
    wire = b"".join(post(b"b" * size, path=b"/%d" % size) for size in sizes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parser = RequestParser(HttpLimits())
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        parser.feed(wire[start:end])
    found = [(each.path, len(each.body)) for each in parser.ready if isinstance(each, Request)]
    assert found == [(f"/{size}", size) for size in sizes]


# -- heads that come again -------------------------------------------------------------------------------------------

WHOLE = [
    post(b"{}"),
    post(b"[]"),
    post(b"[1]"),
    post(b""),
    post(b"\r\n\r\n"),
    post(b"{}", b"X-A: 1\r\nX-A: 2"),
    post(b"{}", b"Connection: keep-alive"),
    post(b"{}", b"Connection: close"),
    post(b"{}", b"Expect: 100-continue"),
    post(b"{}", b"Connection: Upgrade\r\nUpgrade: h2c"),
    post(b"{}", path=b"/b?c"),
    post(b"{}").replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(b"{}", b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"\r\n" + post(b"{}"),
    b"\r\n\r\n" + post(b"{}"),
    post(b"{}") + GET,
    post(b"x" * 5000),
    GET,
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{",
    b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    b"",
]


def read(data: bytes, pool: ParserPool | None) -> list[Request | MalformedRequest]:
    """Reads what a connection between two requests receives, with the heads that are known, as a connection does."""
    known = None if pool is None else pool.repeated(memoryview(data))
    if known is not None:
        return [known]
    parser = RequestParser(HttpLimits())
    parser.feed(memoryview(data))
    if pool is not None and parser.ready and parser.state == "between":
        pool.learn(memoryview(data), parser.ready)
    return parser.ready


@given(st.lists(st.sampled_from(WHOLE), max_size=30))
def test_a_request_is_the_same_whether_its_head_is_known_or_not(reads: list[bytes]) -> None:
    pool = ParserPool(HttpLimits())
    for data in reads:
        found = read(data, pool)
        assert found == read(data, None)
        for each in found:
            # What an application does to its request must reach no other one.
            if isinstance(each, Request):
                each.headers["x-a"] = "changed"


def test_each_head_with_a_length_is_known_when_it_comes_again() -> None:
    pool = ParserPool(HttpLimits())
    for data in WHOLE:
        read(data, pool)
    known = [data for data in WHOLE if pool.repeated(data) is not None]
    assert known == [*WHOLE[:7], WHOLE[10], WHOLE[12], WHOLE[13]]
    pool.forget_heads()
    assert not any(pool.repeated(data) for data in WHOLE)


def test_few_heads_are_known_and_no_long_ones() -> None:
    pool = ParserPool(HttpLimits())
    wire = [post(b"{}", b"X-A: %d" % number) for number in range(1000)]
    for data in wire:
        read(data, pool)
    assert sum(pool.repeated(data) is not None for data in wire) == 64
    pool.forget_heads()
    long = post(b"{}", b"X-A: " + b"a" * 5000)
    read(long, pool)
    assert pool.repeated(long) is None


async def test_no_head_is_known_for_longer_than_a_tick(autojump_clock: MockClock) -> None:
    state = ServerState(echo, HttpLimits())
    data = post(b"{}", b"Authorization: Bearer secret")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(state.ticker.run)
        client, server = memory_stream_pair()
        nursery.start_soon(Connection(state, WrappedByteStream(server, "memory", secure=False)).serve)
        await client.send_all(data)
        assert (await client.receive_some()).endswith(b"POST / {}")
        await client.aclose()
        assert state.parsers.repeated(data) is not None
        await trio.sleep(1.1)
        assert state.parsers.repeated(data) is None
        nursery.cancel_scope.cancel()
    read(data, state.parsers)
    state.close()
    assert state.parsers.repeated(data) is None


async def test_connections_share_what_is_known_of_heads() -> None:
    seen: list[Request] = []

    def app(request: Request, response: Response) -> None:
        seen.append(request)
        echo(request, response)

    async with serving(app) as served:
        for _ in range(2):
            peer = await served.connect()
            for body in (b"one", b"two", b"three", b"six"):
                assert await ask(peer, post(body)) == (200, b"POST / " + body)
        assert served.server.statistics().requests == 8
    assert len({id(each.headers) for each in seen}) == len(seen)
    assert len({each.peer for each in seen}) == 2


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_thousands_of_pipelined_requests_are_all_answered(framing: str) -> None:
    number, body = 3000, b"x" * 100
    chunked = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 100
        + b"0\r\n\r\n"
    )
    request = post(body) if framing == "length" else chunked
    async with serving(echo) as served:
        peer = await served.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send, request * number)
            for _ in range(number):
                assert (await peer.answer()).body == b"POST / " + body
        assert served.server.statistics().refused == 0


@pytest.mark.parametrize(
    ("request_bytes", "limits"),
    [(post(b"x" * 50), {"head_bytes": 100}), (post(b"", b"A: " + b"b" * 40), {"head_bytes": 100})],
    ids=["bodies", "heads"],
)
def test_a_read_full_of_requests_counts_for_none_of_them(
    request_bytes: bytes, limits: dict[str, int]
) -> None:
    whole = request_bytes * 100
    for size in range(60, 2000, 7):
        parser = RequestParser(HttpLimits(**limits))  # type: ignore[arg-type]
        for start in range(0, len(whole), size):
            parser.feed(whole[start : start + size])
        assert len(parser.ready) == 100
        assert not parser.finished


@given(st.binary(max_size=300))
def test_rubbish_never_raises(rubbish: bytes) -> None:
    parser = RequestParser(HttpLimits())
    parser.feed(rubbish)
    assert parser.finished == any(isinstance(each, MalformedRequest) for each in parser.ready)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_an_offer_of_another_protocol_is_ignored(framing: bytes, bytewise: bool) -> None:
    data = (
        b"POST /u HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + framing
    ) * 2
    async with serving(echo) as served:
        peer = await served.connect()
        if bytewise:
            for i in range(len(data)):
                await peer.send(data[i : i + 1])
        else:
            await peer.send(data)
        for _ in range(2):
            assert (await peer.answer()).body == b"POST /u abc"
        assert await ask(
            peer, GET.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        ) == (
            200,
            b"GET / ",
        )
        assert await ask(peer, GET) == (200, b"GET / ")


async def test_head_is_answered_without_a_body() -> None:
    def app(request: Request, response: Response) -> None:
        if request.path == "/stream":
            response.start(200, content_type="text/plain")
            response.write(b"abc")
            response.end(b"def")
        else:
            response.answer(200, b"abc", content_type="text/plain")

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        first = await peer.answer(head_only=True)
        assert first.headers["content-length"] == "3"
        second = await peer.answer(head_only=True)
        assert second.headers["transfer-encoding"] == "chunked"
        assert (await peer.answer()).body == b"abc"


@pytest.mark.parametrize(
    ("data", "connection"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "close"),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "keep-alive"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "close"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n", "close"),
        (GET, None),
    ],
)
async def test_who_wants_to_go_on(data: bytes, connection: str | None) -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(data)
        answer = await peer.answer()
        assert answer.headers.get("connection") == connection
        if connection == "close":
            assert await peer.ended()
        else:
            assert (await ask(peer, GET))[0] == 200


async def test_bytes_behind_a_request_that_closes_are_no_request() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)
        assert (await peer.answer()).body == b"GET /last "
        assert await peer.ended()
        assert served.server.statistics().requests == 1


async def test_expect_continue() -> None:
    async with serving(echo, body_bytes=10) as served:
        peer = await served.connect()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        await peer.send(head % 3)
        assert await peer.exactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await ask(peer, b"abc") == (200, b"POST / abc")
        # Whoever does not wait for it is not told.
        assert await ask(peer, head % 3 + b"def") == (200, b"POST / def")
        # Nothing to continue with.
        assert await ask(peer, head % 0) == (200, b"POST / ")
        # It waits for its turn.
        await peer.send(GET + head % 3)
        assert (await peer.answer()).body == b"GET / "
        assert await peer.exactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert await ask(peer, b"ghi") == (200, b"POST / ghi")
        # The limits come first.
        await peer.send(head % 11)
        assert (await peer.answer()).status == 413
        assert await peer.ended()


async def test_a_stream() -> None:
    pieces = [b"one", b"two" * 1000, b"\r\n"]

    def app(request: Request, response: Response) -> None:
        async def stream() -> None:
            response.start(
                200, content_type="text/event-stream", headers=[("Mcp-Session-Id", "s")], first=b"zero"
            )
            assert response.started
            for piece in pieces:
                response.write(piece)
                response.write(b"")
                await response.drained()
            response.end()
            assert response.ended

        response.run(stream)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        answer = await peer.answer()
        assert answer.headers["Mcp-Session-Id"] == "s"
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.body == b"zero" + b"".join(pieces)
        await peer.send(b"GET / HTTP/1.0\r\n\r\n")
        answer = await peer.answer()
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.body == b"zero" + b"".join(pieces)


# -- The bytes of request bodies are limited by address and in all, from their first byte until their answer ---

KIB = 1024
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("count", [20, 200])
async def test_half_sent_bodies_of_one_address_are_bounded(count: int) -> None:
    half, share = 64 * KIB, 4 * 64 * KIB
    async with serving(echo, held_bytes=2 * share, held_bytes_per_address=share) as served:
        statistics = served.server.statistics
        hostile = [await served.connect() for _ in range(count)]
        for peer in hostile:
            await peer.send(POST % (2 * half) + b"x" * half)
        await eventually(lambda: statistics().refused == count - 4)
        assert statistics().bodies.held <= share
        answer = await hostile[-1].answer()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/json"
        assert str(share) in json.loads(answer.body)["error"]["message"]
        # Requests that fit into one read are served to everybody all the same.
        honest = await served.connect()
        await honest.send(post(b"y" * KIB))
        assert (await honest.answer()).status == 200
        for peer in hostile:
            await peer.aclose()
        await eventually(lambda: statistics().bodies.held == 0)
        await honest.send(post(b"y" * share))
        assert (await honest.answer()).status == 200


async def test_bodies_of_all_addresses_are_bounded_together() -> None:
    async with serving(echo, memory=True, held_bytes=300 * KIB, held_bytes_per_address=200 * KIB) as served:
        statistics = served.server.statistics
        async with trio.open_nursery() as nursery:
            for number in range(1, 4):
                mine, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(served.server.serve_stream, theirs, f"[2001:db8:{number}::7]:1")
                peer = served.add(mine)
                await peer.send(POST % (500 * KIB) + b"x" * 130 * KIB)
                expected = min(number, 2) * 130 * KIB
                await eventually(lambda: statistics().bodies.held >= expected)  # noqa: B023
            await eventually(lambda: statistics().refused == 1)
            assert statistics().bodies.held <= 300 * KIB
            answer = await peer.answer()
            assert answer.status == 503
            assert str(300 * KIB).encode() in answer.body
            nursery.cancel_scope.cancel()
        await served.settled()
        assert statistics().bodies.held == 0


async def test_a_body_counts_until_its_request_is_answered() -> None:
    app = Slow()
    async with serving(app, held_bytes=400 * KIB, held_bytes_per_address=300 * KIB) as served:
        statistics = served.server.statistics
        first = await served.connect()
        await first.send(post(b"x" * 250 * KIB))
        await app.until_begun()
        assert 180 * KIB < statistics().bodies.held <= 250 * KIB
        second = await served.connect()
        await second.send(post(b"x" * 250 * KIB))
        assert (await second.answer()).status == 503
        app.go.set()
        assert (await first.answer()).status == 200
        assert statistics().bodies.held == 0
        # The same connection may use it all again.
        for _ in range(3):
            await first.send(post(b"x" * 250 * KIB))
            assert (await first.answer()).status == 200
        assert statistics().bodies.held == 0


# -- What a request was made of is gone with its answer: nothing is left to the garbage collector --------

REQUESTS = 50
# Of the rig itself, and of what is made once.
SLACK = 100


async def exchange(each: SiteWholeServer, request: bytes) -> None:
    async with each.peers() as peer:
        for _ in range(REQUESTS):
            await peer.send(request)
            assert (await peer.answer()).status == 200


@pytest.mark.parametrize("kind", ["json", "events"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_an_answered_request_leaves_no_cycles(era: str, kind: str, collector_rests: None) -> None:
    async with site_whole_server() as each:
        tool, arguments = ("add", {"a": 1, "b": 2}) if kind == "json" else ("flood", {"lines": 2})
        async with each.peers() as peer:
            session = await begin(peer)
        call = legacy("tools/call", session, 1, name=tool, arguments=arguments, _meta={"progressToken": 1})
        request = modern_whole_server(tool, arguments, token=1) if era == "modern" else call
        await exchange(each, request)
        gc.collect()
        await exchange(each, request)
        assert gc.collect() < REQUESTS + SLACK
