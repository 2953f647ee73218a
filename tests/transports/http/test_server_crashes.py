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

from .raw import GET, RawPeer, Served, Slow, echo, eventually, serving


async def stray_cancelled() -> trio.Cancelled:
    """A `trio.Cancelled` that was stored, and belongs to no scope any more."""
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    return kept[0]


class Unexpected(BaseException):
    """Something that nobody catches."""


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
