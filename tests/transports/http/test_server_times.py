"""Every clock of a connection, in virtual time, over streams in memory."""

from __future__ import annotations

import trio
import trio.testing

from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

from .raw import GET, Slow, echo, post, serving

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
