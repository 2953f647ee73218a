"""Every row of the connection's table of states, caused by what a peer, the application or the clock does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from mcp_transports.http.h1.byte_stream import ByteStream, WrappedByteStream
from mcp_transports.http.h1.connection import (
    NEXT_STATE,
    Connection,
    ConnectionEvent,
    ConnectionState,
    ServerState,
)
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

from .raw import GET, RawPeer, Served, Slow, echo, eventually, post, serving

S, E = ConnectionState, ConnectionEvent
Row = tuple[ConnectionState, ConnectionEvent, ConnectionState]
BIG = b"x" * 100_000


class WatchedConnection(Connection):
    """Notes each change of its state with the event that caused it."""

    def __init__(self, server: ServerState, stream: ByteStream) -> None:
        self.rows: list[Row] = []
        super().__init__(server, stream)

    def _change(self, event: ConnectionEvent) -> None:
        before = self.state
        super()._change(event)
        if (before, event) in NEXT_STATE:
            self.rows.append((before, event, self.state))


@attrs.define
class Bench:
    """One connection, its peer, and an application that answers when it is told to."""

    served: Served
    peer: RawPeer
    connection: WatchedConnection
    responses: list[Response]

    async def ask(self, data: bytes = GET) -> Response:
        before = len(self.responses)
        await self.peer.send(data)
        await eventually(lambda: len(self.responses) > before)
        return self.responses[-1]

    async def until(self, state: ConnectionState) -> None:
        await eventually(lambda: self.connection.state is state)


Cause = Callable[[Bench], Awaitable[None]]


async def peer_ends(bench: Bench) -> None:
    await bench.peer.stream.send_eof()  # type: ignore[attr-defined]


async def nothing(bench: Bench) -> None:
    pass


async def half_a_request(bench: Bench) -> None:
    await bench.peer.send(GET[:10])
    await bench.until(S.READING)


async def other_half(bench: Bench) -> None:
    await bench.ask(GET[10:])


async def a_request(bench: Bench) -> None:
    await bench.ask()


async def an_answer(bench: Bench) -> None:
    bench.responses[-1].answer(200)


async def an_answer_that_nobody_reads(bench: Bench) -> None:
    (await bench.ask()).answer(200, BIG)
    await eventually(lambda: bench.connection.unsent > 0)
    assert bench.connection.state is S.IDLE


async def that_and_half_a_request(bench: Bench) -> None:
    await an_answer_that_nobody_reads(bench)
    await half_a_request(bench)


async def rubbish(bench: Bench) -> None:
    await bench.peer.send(b"rubbish\r\n")


async def a_request_and_rubbish(bench: Bench) -> None:
    await a_request(bench)
    await rubbish(bench)
    await bench.until(S.DRAINING)


async def a_last_answer(bench: Bench) -> None:
    bench.responses[-1].answer(200)
    for status in (200, 400):
        assert (await bench.peer.answer()).status == status


async def a_refusal(bench: Bench) -> None:
    await rubbish(bench)
    assert (await bench.peer.answer()).status == 400
    await bench.until(S.LINGERING)


async def an_upgrade(bench: Bench) -> None:
    assert bench.responses[-1].upgrade(trio.aclose_forcefully)


async def an_upgraded_request(bench: Bench) -> None:
    await a_request(bench)
    await an_upgrade(bench)


async def time_passes(bench: Bench) -> None:
    await trio.sleep(100)


# What brings a connection to the first state of a row, and what causes its event there.
ROWS: list[tuple[Cause, Cause, Row]] = [
    (nothing, half_a_request, (S.IDLE, E.BYTES, S.READING)),
    (nothing, a_request, (S.IDLE, E.REQUEST, S.ANSWERING)),
    (half_a_request, other_half, (S.READING, E.REQUEST, S.ANSWERING)),
    (a_request, an_answer, (S.ANSWERING, E.ANSWERED, S.IDLE)),
    (a_request, an_upgrade, (S.ANSWERING, E.UPGRADE, S.UPGRADED)),
    (an_answer_that_nobody_reads, peer_ends, (S.IDLE, E.LAST, S.DRAINING)),
    (that_and_half_a_request, peer_ends, (S.READING, E.LAST, S.DRAINING)),
    (a_request, rubbish, (S.ANSWERING, E.LAST, S.DRAINING)),
    (a_request_and_rubbish, a_last_answer, (S.DRAINING, E.SENT, S.LINGERING)),
    (nothing, peer_ends, (S.IDLE, E.OVER, S.CLOSED)),
    (nothing, time_passes, (S.IDLE, E.OVER, S.CLOSED)),
    (half_a_request, peer_ends, (S.READING, E.OVER, S.CLOSED)),
    (a_request, peer_ends, (S.ANSWERING, E.OVER, S.CLOSED)),
    (a_request_and_rubbish, peer_ends, (S.DRAINING, E.OVER, S.CLOSED)),
    (a_refusal, peer_ends, (S.LINGERING, E.OVER, S.CLOSED)),
    (a_refusal, time_passes, (S.LINGERING, E.OVER, S.CLOSED)),
    (an_upgraded_request, nothing, (S.UPGRADED, E.OVER, S.CLOSED)),
]


def names(row: object) -> str | None:
    return f"{row[0].name}-{row[1].name}" if isinstance(row, tuple) else getattr(row, "__name__", None)


@asynccontextmanager
async def watched() -> AsyncIterator[Bench]:
    responses: list[Response] = []

    def app(request: Request, response: Response) -> None:
        responses.append(response)

    async with serving(app, memory=True) as served:
        ours, theirs = trio.testing.lockstep_stream_pair()
        stream = WrappedByteStream(theirs, "peer", secure=False)
        connection = WatchedConnection(served.server._state, stream)

        async def serve() -> None:
            if (handover := await connection.serve()) is not None:
                await handover

        served.nursery.start_soon(serve)
        bench = Bench(served, served.add(ours), connection, responses)
        yield bench


@pytest.mark.parametrize(("to_get_there", "cause", "row"), ROWS, ids=names)
async def test_a_row_of_the_table(
    to_get_there: Cause, cause: Cause, row: Row, autojump_clock: trio.testing.MockClock
) -> None:
    async with watched() as bench:
        rows = bench.connection.rows
        await to_get_there(bench)
        await bench.until(row[0])
        del rows[:]
        await cause(bench)
        await eventually(lambda: bool(rows))
        assert rows[0] == row


def test_every_row_is_caused() -> None:
    assert {(state, event): after for _, _, (state, event, after) in ROWS} == NEXT_STATE


@pytest.mark.parametrize("get_there", [a_request_and_rubbish, a_refusal], ids=["draining", "lingering"])
async def test_what_comes_after_the_last_request_is_dropped(
    get_there: Cause, autojump_clock: trio.testing.MockClock
) -> None:
    async with watched() as bench:
        await get_there(bench)
        number, state = len(bench.responses), bench.connection.state
        await bench.peer.send(GET)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.responses) == number
        assert bench.connection.state is state


# -- Every clock of a connection, in virtual time, over streams in memory --------------------------------

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


async def took(clock: trio.testing.MockClock, wait: object) -> float:
    """Seconds until the connection ended."""
    start = clock.current_time()
    assert callable(wait)
    await wait()
    return clock.current_time() - start


def about(seconds: float, expected: float) -> bool:
    """Never early, and not later than two ticks."""
    return expected <= seconds <= expected + 2.1


async def test_an_idle_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        assert about(await took(autojump_clock, peer.ended), 75)
        peer = served.attach()
        await peer.send(GET)
        await peer.answer()
        assert about(await took(autojump_clock, peer.ended), 75)
        assert served.server.statistics().refused == 0


async def test_a_slow_head(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        start = autojump_clock.current_time()
        for byte in GET[:9]:
            await peer.send(bytes([byte]))
            await trio.sleep(1)
        answer = await peer.answer()
        assert answer.status == 408
        assert about(autojump_clock.current_time() - start, 10)
        await peer.rest()


async def test_a_body_that_stalls(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        await peer.send(POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500_000)
        assert about(await took(autojump_clock, peer.answer), 30)
        assert served.server.statistics().refused == 1


async def test_a_body_that_trickles(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        start = autojump_clock.current_time()
        await peer.send(POST + b"Content-Length: 1000\r\n\r\n")
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                while True:
                    await trio.sleep(5)
                    await peer.send(b"x")

            nursery.start_soon(trickle)
            assert (await peer.answer()).status == 408
            nursery.cancel_scope.cancel()
        assert about(autojump_clock.current_time() - start, 30)


async def test_a_body_at_a_bearable_rate(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        await peer.send(POST + b"Content-Length: 60000\r\n\r\n")
        for _ in range(30):
            await trio.sleep(2)
            await peer.send(b"x" * 2000)
        assert (await peer.answer()).status == 200


@pytest.mark.slow
async def test_a_long_answer_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    app = Slow()
    async with serving(app, memory=True) as served:
        peer = served.attach()
        await peer.send(GET)
        await trio.sleep(10_000)
        app.go.set()
        assert (await peer.answer()).body == b"/"
        assert about(await took(autojump_clock, peer.ended), 75)


async def test_a_peer_that_reads_nothing_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    ends: list[float] = []
    gone: list[str] = []

    def app(request: Request, response: Response) -> None:
        async def stream() -> None:
            response.start(content_type="text/event-stream")
            try:
                while True:
                    response.write(b"x" * 1000)
                    if response.full:
                        await response.drained()
            except trio.BrokenResourceError:
                ends.append(trio.current_time())
                raise

        response.on_gone = lambda: gone.append(request.path)
        response.run(stream)

    async with serving(app, memory=True, write_buffer=10_000) as served:
        ours, theirs = trio.testing.lockstep_stream_pair()
        served.nursery.start_soon(served.server.serve_stream, theirs)
        peer = served.add(ours)
        start = autojump_clock.current_time()
        await peer.send(GET)
        await trio.sleep(20)
        assert 0 < served.server.statistics().unsent < 20_000
        assert served.server.statistics().busy == 1
        await peer.exactly(500)  # whoever reads a little is no stranger
        await trio.sleep(60)
        assert gone == ["/"]
        assert about(trio.current_time() - start, 80)
        await served.settled()
        assert served.server.statistics().lost == 1


async def test_the_server_sleeps_while_there_is_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(echo, memory=True) as served:
        peer = served.attach()
        await peer.send(post(b"x"))
        await peer.answer()
        await peer.aclose()
        await served.settled()
        await trio.sleep(5)
        before = trio.lowlevel.current_statistics().seconds_to_next_deadline
        assert before == float("inf")


async def test_pausing_the_reader_pauses_its_clocks(autojump_clock: trio.testing.MockClock) -> None:
    app = Slow()
    async with serving(app, memory=True, pipelined_bytes=1000) as served:
        peer = served.attach()
        await peer.send(GET)
        await app.until_begun()
        await peer.send(POST + b"Content-Length: 5000\r\n\r\n" + b"x" * 2000)
        await trio.sleep(100)
        app.go.set()
        assert (await peer.answer()).body == b"/"
        await peer.send(b"x" * 3000)
        assert (await peer.answer()).status == 200
