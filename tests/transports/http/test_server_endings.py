"""Peers that leave, applications that fail, servers that stop: nothing is left behind."""

from __future__ import annotations

import gc
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from mcp_transports._sockets import retire
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response, ResponseStateError
from tests.transports.lines import open_descriptors, reset

from .raw import GET, RawPeer, Slow, echo, eventually, post, serving


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_a_peer_that_leaves_takes_its_work_with_it(how: str) -> None:
    app = Slow()
    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await app.until_begun()
        if how == "reset":
            reset(peer.stream.socket)  # type: ignore[attr-defined]
        elif how == "close":
            await peer.aclose()
        else:
            await peer.stream.send_eof()  # type: ignore[attr-defined]
        await app.until_cancelled()
        assert app.gone == ["/"]
        await served.settled()
        assert served.server.statistics().lost == 1


async def test_pipelined_bytes_are_no_disconnect() -> None:
    app = Slow()
    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await app.until_begun()
        await peer.send(GET + b"GET /half")
        await eventually(lambda: "1 waiting" in served.connection())
        assert app.gone == []
        app.go.set()
        assert [(await peer.answer()).status for _ in range(2)] == [200, 200]


async def test_requests_that_were_answered_long_ago_are_no_pipeline() -> None:
    responses: list[Response] = []
    gone = trio.Event()

    def app(request: Request, response: Response) -> None:
        response.on_gone = gone.set
        responses.append(response)

    async with serving(app, pipelined_bytes=10 * len(GET)) as served:
        peer = await served.connect()
        for number in range(1, 11):
            await peer.send(GET)
            await eventually(lambda number=number: len(responses) == number)
            responses[-1].answer(200)
            assert (await peer.answer()).status == 200
        await peer.send(GET)
        await eventually(lambda: len(responses) == 11)
        await peer.aclose()
        with trio.fail_after(60):
            await gone.wait()


async def test_a_half_close_after_the_answer_was_made_loses_nothing() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(post(b"x" * 4_000_000))
        await peer.stream.send_eof()  # type: ignore[attr-defined]
        assert len((await peer.answer()).body) > 4_000_000
        assert await peer.ended()


async def test_a_body_that_is_cut_off() -> None:
    async with serving(echo) as served:
        peer = await served.connect()
        await peer.send(post(b"abc")[:-1])
        await peer.stream.send_eof()  # type: ignore[attr-defined]
        assert await peer.ended()
        assert served.server.statistics().requests == 0


@pytest.mark.parametrize("limit", ["requests", "bytes"])
async def test_pipelining_is_bounded(limit: str, autojump_clock: trio.testing.MockClock) -> None:
    app = Slow()
    limits: dict[str, Any] = (
        {"pipelined_requests": 10} if limit == "requests" else {"pipelined_bytes": 100_000}
    )
    async with serving(app, memory=True, **limits) as served:
        ours, theirs = trio.testing.lockstep_stream_pair()
        served.nursery.start_soon(served.server.serve_stream, theirs)
        peer = served.add(ours)
        request = GET if limit == "requests" else post(b"x" * 10_000)
        sent = 0
        with trio.move_on_after(1000):
            while True:
                await peer.send(request)
                sent += 1
        assert sent == (12 if limit == "requests" else 10)
        assert served.server.statistics().requests == 1
        app.go.set()
        for _ in range(sent + 1):  # the stream kept what was being sent when we gave up
            assert (await peer.answer()).status == 200
        await peer.send(request)
        assert (await peer.answer()).status == 200


async def test_pipelined_answers_are_bounded_too() -> None:
    big = b"x" * 100_000

    def app(request: Request, response: Response) -> None:
        response.answer(200, big)

    async with serving(app, write_buffer=200_000) as served:
        peer = await served.connect()
        await peer.send(GET * 500)
        await eventually(lambda: served.server.statistics().unsent > 200_000)
        assert served.server.statistics().unsent < 500_000
        for _ in range(500):
            assert len((await peer.answer()).body) == len(big)


async def test_a_peer_that_never_reads_is_dropped_at_the_hard_bound() -> None:
    pieces = 0

    def app(request: Request, response: Response) -> None:
        async def work() -> None:
            nonlocal pieces
            response.start(content_type="text/event-stream")
            while not response.gone:
                pieces += 1
                response.write(b"x" * 10_000)

        response.run(work)

    async with serving(app, max_buffered=1_000_000) as served:
        peer = await served.connect()
        await peer.send(GET)
        await served.settled()
    # The kernel took some megabytes, we never more than one.
    assert 100 <= pieces < 2000


async def test_a_single_piece_may_be_longer_than_the_bound() -> None:
    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain")
        response.write(b"x" * 5_000_000)
        response.end()

    async with serving(app, max_buffered=1000) as served:
        peer = await served.connect()
        await peer.send(GET)
        assert len((await peer.answer()).body) == 5_000_000


async def test_an_application_that_fails() -> None:
    def app(request: Request, response: Response) -> None:
        async def work() -> None:
            if request.path == "/stream":
                response.start(content_type="text/plain")
                response.write(b"a")
            raise RuntimeError("a secret")

        if request.path == "/now":
            raise RuntimeError("a secret")
        response.run(work)

    with structlog.testing.capture_logs() as logs:
        async with serving(app) as served:
            other = await served.connect()
            for path in (b"/now", b"/later"):
                peer = await served.connect()
                await peer.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                answer = await peer.answer()
                assert answer.status == 500
                assert b"secret" not in answer.body
                assert await peer.ended()
            peer = await served.connect()
            await peer.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await peer.rest()).endswith(b"\r\n\r\n1\r\na\r\n")  # cut off, and visibly so
            await other.send(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await other.answer()).status == 500
    assert [(each["event"], each["log_level"]) for each in logs] == [("response failed", "error")] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": [("X", "a\r\nSet-Cookie: b")]},
        {"headers": [("X", "a\nb")]},
        {"headers": [("X", "a\0b")]},
        {"headers": [("X", "\u20ac")]},
        {"headers": [("X: a\r\nY", "b")]},
        {"headers": [("", "b")]},
        {"headers": [("Content-Length", "3")]},
        {"headers": [("transfer-encoding", "chunked")]},
        {"content_type": "text/plain\r\nX: y"},
        {"status": 99},
        {"status": 100},
        {"status": 1000},
    ],
    ids=str,
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_must_not_be_sent_is_not(wrong: dict[str, Any], streamed: bool) -> None:
    given = {"status": 200, "content_type": "text/plain", **wrong}
    status = given.pop("status")

    def app(request: Request, response: Response) -> None:
        with pytest.raises(ValueError, match=r"."):
            (response.start if streamed else response.answer)(status, **given)
        assert not response.started
        response.answer(200, b"unharmed")

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        answer = await peer.answer()
        assert answer.body == b"unharmed"


async def test_one_request_has_one_answer() -> None:
    def app(request: Request, response: Response) -> None:
        with pytest.raises(ResponseStateError, match="no stream is open"):
            response.write(b"x")
        response.answer(200, b"one")
        uses: list[Callable[[], None]] = [
            lambda: response.answer(200),
            lambda: response.start(content_type=None),
            lambda: response.write(b"x"),
            response.end,
        ]
        for use in uses:
            with pytest.raises(ResponseStateError):
                use()
        response.abort()  # too late to matter
        assert repr(response) == "<Response ended>"

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        assert (await peer.answer()).body == b"one"
        await peer.send(GET)
        assert (await peer.answer()).body == b"one"


async def test_what_a_response_says_when_nobody_listens() -> None:
    kept: list[Response] = []
    seen: list[bool] = []

    def app(request: Request, response: Response) -> None:
        kept.append(response)
        response.on_gone = lambda: seen.append(response.gone)
        response.start(content_type="text/plain")

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await peer.until(b"\r\n\r\n")
        await peer.aclose()
        await served.settled()
        [response] = kept
        assert seen == [True]
        with pytest.raises(trio.BrokenResourceError):
            response.write(b"x")
        with pytest.raises(trio.BrokenResourceError):
            await response.drained()
        response.end()
        response.abort()
        assert seen == [True]


async def test_an_aborted_stream() -> None:
    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain", first=b"abc")

        async def work() -> None:
            response.abort()
            with pytest.raises(trio.BrokenResourceError):
                response.write(b"x")

        response.run(work)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        assert (await peer.rest()).endswith(b"3\r\nabc\r\n")


async def test_a_thousand_aborted_requests_leave_nothing(collector_rests: None) -> None:
    app = Slow()
    async with serving(app) as served:
        warm = await served.connect()
        await warm.send(GET)
        await app.until_begun()
        gc.collect()
        tasks, files = trio.lowlevel.current_statistics().tasks_living, open_descriptors()
        for _ in range(20):
            peers = [await served.connect() for _ in range(50)]
            for number, peer in enumerate(peers):
                await peer.send(GET[: 5 + number] if number % 3 else GET * (1 + number % 2))
            for number, peer in enumerate(peers):
                if number % 2:
                    reset(peer.stream.socket)  # type: ignore[attr-defined]
                else:
                    await peer.aclose()
            await eventually(lambda: served.server.statistics().connections <= 1)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert open_descriptors() == files
        assert len(app.cancelled) == len(app.begun) - 1
        app.go.set()
        assert (await warm.answer()).status == 200


async def test_a_graceful_stop() -> None:
    app = Slow()
    async with serving(app) as served:
        idle, busy, half, queued = [await served.connect() for _ in range(4)]
        await idle.send(GET[:0])
        await busy.send(GET)
        await queued.send(GET + GET)
        await half.send(GET[:10])
        await app.until_begun(2)
        port = served.port
        served.stopping.set()
        assert await idle.ended()
        with pytest.raises(OSError, match=r"."):
            await trio.open_tcp_stream("127.0.0.1", port)
        await half.send(GET[10:])
        await app.until_begun(3)
        assert not served.done.is_set()
        app.go.set()
        for peer in (busy, half, queued):
            answer = await peer.answer()
            assert answer.headers["connection"] == "close"
            assert await peer.ended()
            await peer.aclose()
        with trio.fail_after(60):
            await served.done.wait()
        assert app.cancelled == []


async def test_a_request_that_has_arrived_when_the_stop_comes_is_answered() -> None:
    async with serving(echo) as served:
        peers = [await served.connect() for _ in range(20)]
        for peer in peers:
            await peer.send(post(b"first"))
            assert (await peer.answer()).body == b"POST / first"
        # In one turn of the loop, in which the server reads nothing: the requests wait in its sockets.
        for peer in peers:
            assert isinstance(peer.stream, trio.SocketStream)
            request = post(b"last")
            assert os.write(peer.stream.socket.fileno(), request) == len(request)
        # As the stop does, which comes before the sockets are looked at, or behind it.
        for member in list(served.server._state.ticker.members):
            member.stop()
        served.stopping.set()
        for peer in peers:
            assert (await peer.answer()).body == b"POST / last"
            assert await peer.ended()
        with trio.fail_after(60):
            await served.done.wait()


async def test_what_comes_behind_the_last_request_waits_until_it_is_read() -> None:
    async with serving(echo) as served:
        peers = [await served.connect() for _ in range(20)]
        for peer in peers:
            await peer.send(post(b"first"))
            assert (await peer.answer()).body == b"POST / first"
        retire()
        await trio.testing.wait_all_tasks_blocked()
        for peer in peers:
            assert isinstance(peer.stream, trio.SocketStream)
            assert os.write(peer.stream.socket.fileno(), post(b"last"))
        await served.server.close()
        assert served.server.statistics().requests == 40
        for peer in peers:
            assert (await peer.answer()).body == b"POST / last"
            assert await peer.ended()


async def test_streams_that_were_open_when_the_stop_came() -> None:
    streams: list[Response] = []

    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain", first=b"a")
        streams.append(response)

    async with serving(app) as served:
        peers = [await served.connect() for _ in range(2)]
        for peer in peers:
            await peer.send(GET)
            await peer.until(b"\r\na\r\n")
        served.stopping.set()
        await eventually(lambda: repr(served.server.listeners[0]).endswith("closed>"))
        streams[0].write(b"b")
        streams[0].end()
        streams[1].end(b"x" * 8_000_000)
        assert await peers[0].rest() == b"1\r\nb\r\n0\r\n\r\n"
        assert len(await peers[1].rest()) > 8_000_000
        for peer in peers:
            await peer.aclose()
        with trio.fail_after(60):
            await served.done.wait()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not count segments")
async def test_a_stream_that_outlasts_the_stop_ends_in_one_moment_with_its_connection() -> None:
    streams: list[Response] = []

    def app(request: Request, response: Response) -> None:
        response.start(content_type="text/plain", first=b"a")
        streams.append(response)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await peer.until(b"\r\na\r\n")
        served.stopping.set()
        await eventually(lambda: repr(served.server.listeners[0]).endswith("closed>"))
        before = segments_received(peer)
        streams[0].end(b"b")
        assert await peer.rest() == b"1\r\nb\r\n0\r\n\r\n"
        assert segments_received(peer) == before + 1


def segments_received(peer: RawPeer) -> int:
    """``tcpi_segs_in`` of Linux."""
    assert isinstance(peer.stream, trio.SocketStream)
    information = peer.stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)
    return int(struct.unpack_from("I", information, 140)[0])


async def test_a_stop_while_an_answer_is_on_its_way() -> None:
    def app(request: Request, response: Response) -> None:
        response.answer(200, b"x" * 8_000_000)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await eventually(lambda: served.server.statistics().unsent > 0)
        served.stopping.set()
        assert len((await peer.answer()).body) == 8_000_000
        assert await peer.ended()
        await peer.aclose()
        with trio.fail_after(60):
            await served.done.wait()


async def test_a_cancelled_server_closes_everything() -> None:
    app = Slow()
    before = trio.lowlevel.current_statistics().tasks_living
    async with serving(app) as served:
        peers = [await served.connect() for _ in range(30)]
        for number, peer in enumerate(peers):
            await peer.send(GET[: (None, 10, 0)[number % 3]])
        await app.until_begun(10)
        served.nursery.cancel_scope.cancel()
    assert len(app.cancelled) == len(app.gone) == 10
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert served.server.statistics().connections == 0


async def test_a_task_may_outlive_its_answer() -> None:
    tail = trio.Event()
    finished: list[str] = []

    def app(request: Request, response: Response) -> None:
        async def work() -> None:
            response.answer(200, b"early")
            await tail.wait()
            finished.append(request.path)

        response.run(work)

    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(b"GET /t HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.answer()).body == b"early"
        await peer.aclose()
        await eventually(lambda: " closed, " in served.connection())
        tail.set()
        await served.settled()
        assert finished == ["/t"]


async def test_what_the_server_says_of_itself() -> None:
    app = Slow()
    async with serving(app) as served:
        peer = await served.connect()
        await peer.send(GET)
        await app.until_begun()
        assert repr(served.server) == f"<HttpServer on http://127.0.0.1:{served.port}: 1 connections, 1 busy>"
        statistics = served.server.statistics()
        assert (statistics.connections, statistics.busy, statistics.requests) == (1, 1, 1)
        assert (statistics.refused, statistics.rejected, statistics.lost, statistics.unsent) == (0, 0, 0, 0)
