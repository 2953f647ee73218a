"""What a crash in each task of the HTTP server costs: the connection or the answer it belongs to, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import structlog
import trio

from mcp_transports._poller import EpollPoller
from mcp_transports.http.h1.byte_stream import SocketByteStream
from mcp_transports.http.h1.connection import ConnectionResponse
from mcp_transports.http.h1.http_server import HttpListener, open_tcp
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from tests.transports.crashes import Unexpected, stray_cancelled

from .raw import GET, HOST, RawPeer, Served, Slow, echo, eventually, post, serving

KINDS = ["exception", "base exception", "exit", "cancelled", "group"]


@pytest.fixture(params=KINDS)
async def crash(request: pytest.FixtureRequest) -> BaseException:
    if request.param == "cancelled":
        return await stray_cancelled()
    kinds: dict[str, BaseException] = {
        "exception": ZeroDivisionError(),
        "base exception": Unexpected(),
        "exit": SystemExit(3),
        "group": BaseExceptionGroup("several", [ZeroDivisionError(), Unexpected()]),
    }
    return kinds[request.param]


@contextmanager
def logged(event: str, number: int = 1) -> Iterator[None]:
    """Checks the errors that are logged in the block."""
    with structlog.testing.capture_logs() as logs:
        yield
    errors = [each for each in logs if each["log_level"] == "error"]
    assert [each["event"] for each in errors] == [event] * number
    assert all(each["exc_info"] is not None for each in errors)


@asynccontextmanager
async def with_a_bystander(served: Served) -> AsyncIterator[None]:
    """A connection that is served before and after what happens in the block."""
    bystander = await served.connect()
    for happens in (True, False):
        await bystander.send(GET.replace(b"/", b"/bystander", 1))
        assert (await bystander.answer()).body == b"GET /bystander "
        if happens:
            yield
    late = await served.connect()
    await late.send(GET.replace(b"/", b"/bystander", 1))
    assert (await late.answer()).body == b"GET /bystander "
    assert not served.done.is_set()


def beside_echo(app: Callable[[Request, Response], None]) -> Callable[[Request, Response], None]:
    return lambda request, response: (echo if request.path == "/bystander" else app)(request, response)


async def asked(served: Served) -> RawPeer:
    peer = await served.connect()
    await peer.send(GET)
    return peer


async def test_the_application_when_it_is_called(crash: BaseException) -> None:
    def app(request: Request, response: Response) -> None:
        raise crash

    with logged("response failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            peer = await asked(served)
            assert (await peer.answer()).status == 500
            assert await peer.ended()


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer", "in its stream"])
async def test_a_task_of_a_response(crash: BaseException, begun: bool) -> None:
    def app(request: Request, response: Response) -> None:
        async def work() -> None:
            if begun:
                response.start(content_type="text/plain", first=b"abc")
            raise crash

        response.run(work)

    with logged("response failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            peer = await asked(served)
            if begun:
                assert (await peer.rest()).endswith(b"3\r\nabc\r\n")  # cut off, without the last chunk
            else:
                assert (await peer.answer()).status == 500
                assert await peer.ended()


async def test_what_is_called_when_the_peer_is_gone(crash: BaseException) -> None:
    slow = Slow()

    def app(request: Request, response: Response) -> None:
        slow(request, response)

        def on_gone() -> None:
            raise crash

        response.on_gone = on_gone

    with logged("response failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            peer = await asked(served)
            await slow.until_begun()
            await peer.aclose()
            await slow.until_cancelled()


async def test_a_protocol_that_took_over(crash: BaseException) -> None:
    async def successor(stream: trio.abc.Stream) -> None:
        raise crash

    def app(request: Request, response: Response) -> None:
        assert response.upgrade(successor)

    with logged("connection failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            peer = await asked(served)
            assert await peer.ended()


def crash_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, crash: BaseException) -> None:
    """Lets a method raise at its next call."""
    plain = getattr(owner, name)

    def crashing(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, plain)
        raise crash

    monkeypatch.setattr(owner, name, crashing)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("read", "connection failed"),
        ("readable", "poller failed"),
        ("send_now", "poller failed"),
        ("aclose", "connection failed"),
    ],
)
async def test_the_bytes_below_a_connection(
    name: str, event: str, crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged(event):
        async with serving(echo) as served, with_a_bystander(served):
            crash_once(monkeypatch, SocketByteStream, name, crash)
            peer = await asked(served)
            try:
                await peer.stream.send_eof()  # type: ignore[attr-defined]
                await peer.rest()
            except trio.BrokenResourceError:
                pass  # reset: the request was not read


async def test_the_task_that_sends_what_waits(crash: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(request: Request, response: Response) -> None:
        response.answer(200, b"x" * 8_000_000)

    with logged("flush failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            crash_once(monkeypatch, SocketByteStream, "send_some", crash)
            peer = await asked(served)
            try:
                assert len(await peer.rest()) < 8_000_000
            except trio.BrokenResourceError:
                pass


async def test_the_task_that_goes_on_with_pipelined_requests(
    crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses: list[Response] = []

    def app(request: Request, response: Response) -> None:
        responses.append(response)

    with logged("serve pipelined failed"):
        async with serving(beside_echo(app)) as served, with_a_bystander(served):
            peer = await served.connect()
            await peer.send(GET + GET)
            await eventually(lambda: bool(responses))
            monkeypatch.setattr(served.server._state, "app", None)
            crash_once(monkeypatch, ConnectionResponse, "__init__", crash)
            responses[0].answer(200)
            assert (await peer.answer()).status == 200
            assert await peer.ended()
            monkeypatch.undo()


async def test_an_accepted_socket_that_cannot_be_set_up(
    crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged("connection failed"):
        async with serving(echo) as served, with_a_bystander(served):
            crash_once(monkeypatch, SocketByteStream, "__init__", crash)
            peer = await served.connect()
            assert await peer.ended()


async def test_the_task_that_accepts(crash: BaseException) -> None:
    class Crashing(HttpListener):
        crashes = 2

        def accept(self) -> tuple[socket.socket, object]:
            if self.crashes:
                self.crashes -= 1
                raise crash
            return super().accept()

    [opened] = await open_tcp("127.0.0.1", 0)
    with logged("accept failed", 2):
        async with serving(echo, listeners=[Crashing(opened.socket)]) as served, with_a_bystander(served):
            pass


async def test_the_poller(crash: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_ACTORS_WAITING", raising=False)
    plain, failures = trio.lowlevel.wait_readable, [crash]

    async def wait_readable(descriptor: Any) -> None:
        if descriptor == poller._epoll.fileno() and failures:
            raise failures.pop()
        await plain(descriptor)

    with logged("poller failed"):
        async with serving(echo) as served, with_a_bystander(served):
            poller = served.server._state.poller
            assert isinstance(poller, EpollPoller)
            monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
            for _ in range(2):
                peer = await asked(served)
                assert (await peer.answer()).status == 200
    assert failures == []


# -- What is no request, or too much of one: a clear status, then the connection is closed ---------------

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

SMUGGLING = {
    "length and chunked": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "two equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "an overflowing length": POST + b"Content-Length: 18446744073709551619\r\n\r\nabc",
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "bare LFs at the end of the head": b"GET / HTTP/1.1\r\nHost: x\n\n",
    "bare LF for the empty line": b"GET / HTTP/1.1\r\nHost: x\r\n\nX",
    "bare CR after a header": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "bare CR in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
    "doubled CR": b"GET / HTTP/1.1\r\nHost: x\r\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "a folded empty value": b"GET / HTTP/1.1\r\nHost: x\r\nA:\r\n\tc\r\n\r\n",
    "a blank before the first header": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "a blank before the colon": b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
    "a name with a bracket": b"GET / HTTP/1.1\r\nHost: x\r\nA(: b\r\n\r\n",
    "a name beyond ASCII": b"GET / HTTP/1.1\r\nHost: x\r\nA\xe9: b\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
    "a control character in a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x01c\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n",
    "another transfer coding": POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "two transfer codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked in two lines": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "an empty transfer coding": POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF after a chunk size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "bare CR after a chunk size": CHUNKED + b"3\rabc\r\n0\r\n\r\n",
    "bare LF after a chunk": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "bare LF after the last chunk": CHUNKED + b"0\n\n",
    "bare LF in an extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a chunk without its end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "a chunk that is longer than announced": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "no chunk size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a signed chunk size": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a blank after a chunk size": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "an overflowing chunk size": CHUNKED + b"fffffffffffffffff\r\nabc",
    "a length in the trailer": CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n",
    "bare LF in the trailer": CHUNKED + b"0\r\nA: b\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    "a host that is none": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a target with a user": b"GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target of another scheme": b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target without a host": b"GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target that is an authority": b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target that is no path": b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
    "a star for GET": b"GET * HTTP/1.1\r\nHost: a\r\n\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a control character in the target": b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a target beyond ASCII": b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "another protocol": b"GET / FTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "rubbish": b"\xff\x00\xff\x00\xff\x00",
    "two sessions": POST + b"Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\nContent-Length: 0\r\n\r\n",
    "two authorizations": POST + b"Authorization: a\r\nAuthorization: b\r\nContent-Length: 0\r\n\r\n",
    "two origins": POST + b"Origin: a\r\nOrigin: b\r\nContent-Length: 0\r\n\r\n",
    "two content types": POST + b"Content-Type: a\r\nContent-Type: b\r\nContent-Length: 0\r\n\r\n",
}
# What follows must never be taken for a request of its own.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("data", SMUGGLING.values(), ids=SMUGGLING.keys())
@pytest.mark.parametrize("bytewise", [False, True], ids=["at once", "bytewise"])
async def test_what_can_be_understood_in_two_ways_is_refused(data: bytes, bytewise: bool) -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        if bytewise:
            for i in range(len(data)):
                await peer.send(data[i : i + 1])
        await peer.send(SMUGGLED if bytewise else data + SMUGGLED)
        answer = await peer.answer()
        assert answer.status == 400
        assert answer.headers["connection"] == "close"
        assert await peer.ended()
        assert served.server.statistics().requests == 0
        assert served.server.statistics().refused == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"A" * 33 + b" / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (POST + b"Expect: the unexpected\r\nContent-Length: 3\r\n\r\nabc", 417),
        (POST + b"Content-Length: 17\r\n\r\n", 413),
        (CHUNKED + b"11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n", 413),
        (b"GET /" + b"x" * 60 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET /" + b"x" * 60, 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"A%d: b\r\n" % i for i in range(5)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 5 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 200 + b"\r\n\r\n", 431),
        (CHUNKED + b"0\r\n" + b"A: b\r\n" * 6 + b"\r\n", 431),
    ],
)
async def test_too_much_or_not_served(data: bytes, status: int) -> None:
    limits: dict[str, Any] = {"body_bytes": 16, "target_bytes": 50, "headers": 5, "head_bytes": 200}
    async with serving(echo, **limits) as served:
        peer = await served.connect()
        await peer.send(data)
        answer = await peer.answer()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert await peer.ended()
        assert served.server.statistics().requests == 0


async def test_a_length_of_thousands_of_digits() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(POST + b"Content-Length: " + b"0" * 5000 + b"3\r\n\r\nabc")
        assert (await peer.answer()).status == 413
        assert await peer.ended()


async def test_what_just_fits_is_served() -> None:
    async with serving(echo, body_bytes=16, target_bytes=50, headers=5, head_bytes=200) as served:
        peer = await served.connect()
        await peer.send(post(b"x" * 16, b"A: b", b"C: d", b"E: f", path=b"/" + b"y" * 49))
        assert (await peer.answer()).status == 200


@pytest.mark.parametrize(
    "flood",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 200_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(20_000)),
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x" * 200_000,
    ],
    ids=["a value", "lines", "a name"],
)
async def test_a_flood_of_headers_is_cut_short(flood: bytes) -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(flood)
        assert (await peer.answer()).status == 431
        assert await peer.ended()


@pytest.mark.parametrize(
    "flood",
    [b"1;" + b"x" * 400_000, b"0" * 400_000, b"0\r\nA: " + b"x" * 400_000],
    ids=["an extension", "leading zeros", "a trailer"],
)
async def test_a_flood_of_chunk_framing_is_cut_short(flood: bytes) -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(CHUNKED + flood)
        assert (await peer.answer()).status == 400
        assert await peer.ended()


async def test_small_chunks_are_no_flood() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert len((await peer.answer()).body) == len(b"POST / ") + 50_000


async def test_a_refusal_waits_for_the_answers_before_it() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(GET + GET + b"GET / HTTP/1.1\r\n\r\n" + GET)
        assert [(await peer.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await peer.ended()


async def test_a_body_that_is_longer_than_announced_is_the_next_request() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(POST + b"Content-Length: 3\r\n\r\nabcdef")
        assert (await peer.answer()).body == b"POST / abc"
        await peer.send(b" / HTTP/1.1\r\n\r\n")
        assert (await peer.answer()).status == 501
        assert await peer.ended()


async def test_the_answer_to_a_body_that_is_too_long_arrives() -> None:
    async with serving(echo, body_bytes=1000) as served:
        peer = await served.connect()
        # The peer is still sending when it is refused; a reset would take the answer away from it.
        await peer.send(POST + b"Content-Length: 3000000\r\n\r\n")
        answer = await peer.answer()
        await peer.send(b"x" * 3_000_000)
        assert answer.status == 413
        assert await peer.ended()
