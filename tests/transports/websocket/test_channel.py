"""A channel over a stream in memory, against a peer that sends the bytes itself; time is virtual."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectionLost, Limits, Server
from mcp_actors.abc import Frame
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError
from mcp_transports._poller import Ticker
from mcp_transports.websocket.channel import KeepAliveAction, KeepAliveTimes, PeerActivity, WebSocketChannel
from mcp_transports.websocket.protocol import FRAMES_IN_A_TURN
from tests.actors.peers import Dials, Serves
from tests.messages import INITIALIZED, LEGACY, call, initialize, initialize_result, result

from .raw import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, RawPeer, closing, frame

LIMIT = 1000


@asynccontextmanager
async def pair(
    *, client: bool = False, times: KeepAliveTimes | None = None, lockstep: bool = False
) -> AsyncIterator[tuple[WebSocketChannel, RawPeer]]:
    """A channel with its clock, and the peer of it."""
    make = trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
    ours, theirs = make()
    times = times or KeepAliveTimes()
    ticker: Ticker[WebSocketChannel] = Ticker(times.tick)
    async with trio.open_nursery() as nursery:
        channel = WebSocketChannel(
            ours, client=client, nursery=nursery, max_message_bytes=LIMIT, times=times, peer="raw"
        )
        ticker.add(channel)
        nursery.start_soon(ticker.run)
        yield channel, RawPeer(theirs)
        nursery.cancel_scope.cancel()


async def fault(channel: WebSocketChannel) -> str:
    """The complaint about a peer that broke a rule; it stays the same, and nothing can be sent any more."""
    with pytest.raises(trio.BrokenResourceError) as caught:
        await channel.receive()
    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    with pytest.raises(trio.BrokenResourceError):
        await channel.receive_many()
    with pytest.raises(trio.BrokenResourceError):
        await channel.send(Frame(b"{}"))
    assert not channel.write_now(Frame(b"{}"))
    return str(caught.value)


RULES = {
    "a binary message": (frame(BINARY, b"{}"), 1003),
    "a long message": (frame(TEXT, b"x" * (LIMIT + 1)), 1009),
    "only the head of a long message": (frame(TEXT, b"x" * (LIMIT + 1), length=10**9), 1009),
    "fragments that are long together": (
        frame(TEXT, b"x" * LIMIT, fin=False) + frame(CONTINUATION, b"x", fin=False),
        1009,
    ),
    "no mask": (frame(TEXT, b"{}", masked=False), 1002),
    "a reserved bit, as compression sets it": (frame(TEXT, b"{}", bits=0x40), 1002),
    "an unknown opcode": (frame(5, b"{}"), 1002),
    "a continuation of nothing": (frame(CONTINUATION, b"{}"), 1002),
    "a message inside of a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
    "a ping in fragments": (frame(PING, b"?", fin=False), 1002),
    "a long ping": (frame(PING, b"?" * 126), 1002),
    "bytes that are no UTF-8": (frame(TEXT, b'"\xff"'), 1007),
    "half a character": (frame(TEXT, b'"\xe2\x82'), 1007),
    "a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "a close code that must not be sent": (closing(1005), 1002),
    "a close frame of one byte": (frame(CLOSE, b"\x03"), 1002),
}


@pytest.mark.parametrize(("data", "code"), RULES.values(), ids=RULES.keys())
async def test_who_breaks_a_rule_hears_which(data: bytes, code: int, autojump_clock: object) -> None:
    async with pair() as (channel, peer):
        await peer.send(frame(TEXT, b'{"before": 1}') + data)
        assert (await channel.receive()).data == b'{"before": 1}'
        assert str(code) in await fault(channel)
        said, reason = await peer.closed_with()
        assert said == code
        assert reason
        await channel.aclose()
        assert await peer.ended()


async def test_a_client_takes_no_masked_frame(autojump_clock: object) -> None:
    async with pair(client=True) as (channel, peer):
        await peer.send(frame(TEXT, b"{}", masked=True))
        assert "1002" in await fault(channel)
        assert (await peer.closed_with())[0] == 1002


async def test_fragments_and_what_stands_between_them() -> None:
    async with pair() as (channel, peer):
        euro = "€".encode()
        await peer.send(
            frame(TEXT, b'"' + euro[:1], fin=False)
            + frame(PING, b"still there?")
            + frame(CONTINUATION, b"", fin=False)
            + frame(CONTINUATION, euro[1:] + b'"')
            + frame(TEXT, b'{\n"a":\r\n1}')
        )
        assert [each.data for each in await channel.receive_many()] == ['"€"'.encode(), b'{ "a":\r 1}']
        assert await peer.frame() == (PONG, b"still there?")


async def test_a_message_of_the_limit_passes_both_ways() -> None:
    async with pair() as (channel, peer):
        await peer.send(frame(TEXT, b"x" * LIMIT))
        assert len((await channel.receive()).data) == LIMIT
        await channel.send(Frame(b"y" * LIMIT))
        assert await peer.frame() == (TEXT, b"y" * LIMIT)
        for wrong in (b"", b"y" * (LIMIT + 1)):
            with pytest.raises(LocalProtocolError):
                await channel.send_many([Frame(b"{}"), Frame(wrong)])
        await channel.send(Frame(b"{}"))
        assert await peer.frame() == (TEXT, b"{}")


async def test_bytes_one_by_one() -> None:
    async with pair() as (channel, peer), trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in frame(TEXT, b'{"a": 1}'):
                await peer.send(bytes([byte]))
                await trio.testing.wait_all_tasks_blocked()

        nursery.start_soon(drip)
        assert (await channel.receive()).data == b'{"a": 1}'


async def test_of_a_flood_of_pings_one_is_answered_and_nothing_grows(autojump_clock: object) -> None:
    async with pair(lockstep=True) as (channel, peer), trio.open_nursery() as nursery:
        nursery.start_soon(
            peer.send, b"".join(frame(PING, b"%d" % n) for n in range(5000)) + frame(TEXT, b"{}")
        )
        assert (await channel.receive()).data == b"{}"  # though nobody has taken a pong yet
        pongs = []
        with trio.move_on_after(1):
            while True:
                pongs.append(await peer.frame())
        assert pongs[-1] == (PONG, b"4999")
        assert len(pongs) <= 3


async def test_what_a_peer_says_when_it_leaves(autojump_clock: object) -> None:
    for code, reason in ((1000, ""), (1001, "bye")):
        async with pair() as (channel, peer):
            await peer.send(frame(TEXT, b"{}") + closing(code, reason))
            assert (await channel.receive()).data == b"{}"
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
            assert channel.loss_report() == {"close_code": code, "close_reason": reason}
            assert (await peer.closed_with())[0] == code
            with pytest.raises(trio.BrokenResourceError):
                await channel.send(Frame(b"{}"))
            await channel.aclose()
            assert await peer.ended()
    async with pair() as (channel, peer):
        await peer.send(frame(CLOSE))
        with pytest.raises(trio.EndOfChannel):
            await channel.receive()
        assert await peer.frame() == (CLOSE, b"")


async def test_a_peer_that_leaves_for_a_reason_breaks_the_channel() -> None:
    async with pair() as (channel, peer):
        await peer.send(closing(4001, "token expired"))
        with pytest.raises(trio.BrokenResourceError, match=r"4001 \(token expired\)"):
            await channel.receive()


async def test_a_close_without_a_handshake() -> None:
    async with pair() as (channel, peer):
        await peer.stream.aclose()
        with pytest.raises(trio.BrokenResourceError, match="without a Close frame"):
            await channel.receive()
        await channel.aclose()


async def test_a_close_frame_is_sent_and_answered(autojump_clock: object) -> None:
    async with pair() as (channel, peer), trio.open_nursery() as nursery:
        nursery.start_soon(channel.aclose)
        assert await peer.closed_with() == (1000, "")
        await peer.send(frame(TEXT, b'"late"') + closing(1000))
        assert await peer.ended()
    assert trio.current_time() == pytest.approx(0, abs=0.01)


async def test_a_peer_that_sends_no_close_frame_is_not_waited_for_long(autojump_clock: object) -> None:
    async with pair() as (channel, peer):
        began = trio.current_time()
        await channel.aclose()
        assert trio.current_time() - began == pytest.approx(KeepAliveTimes().close_timeout)
        assert (await peer.closed_with())[0] == 1000
        assert await peer.ended()
        await channel.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await channel.receive()
        with pytest.raises(trio.ClosedResourceError):
            await channel.send(Frame(b"{}"))


async def test_closing_from_another_task_wakes_who_receives(autojump_clock: object) -> None:
    async with pair() as (channel, peer), trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await channel.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(channel.aclose)
        assert (await peer.closed_with())[0] == 1000
        await peer.send(closing(1000))
        assert await peer.ended()


def test_a_peer_has_its_whole_time_for_an_answer_however_late_the_ping_was() -> None:
    times = KeepAliveTimes(ping_interval=8, ping_timeout=4)
    activity = PeerActivity(0.0)
    activity.listening = True

    def look(now: float) -> KeepAliveAction:
        return activity.look(now, times, progress=0, sending=False)

    # The loop was held up: the ping is sent at 100, when both times would have been over for long.
    assert look(100) is KeepAliveAction.PING
    assert [look(now) for now in (101, 103.9)] == [KeepAliveAction.FINE] * 2
    assert look(104) is KeepAliveAction.SILENT
    assert look(105) is KeepAliveAction.FINE


async def test_silence_is_asked_about_and_then_ended(autojump_clock: object) -> None:
    times = KeepAliveTimes(ping_interval=8, ping_timeout=4)
    async with pair(times=times) as (channel, peer), trio.open_nursery() as nursery:
        began = trio.current_time()

        async def receive() -> None:
            with pytest.raises(trio.BrokenResourceError, match="did not answer a ping within 4 s"):
                await channel.receive()

        nursery.start_soon(receive)
        for number in range(1, 4):
            assert await peer.frame() == (PING, number.to_bytes(8))
            await peer.send(frame(PONG))
        assert 24 <= trio.current_time() - began <= 32
        await peer.send(frame(TEXT, b"half a frame", length=500))
        last = trio.current_time()
        assert await peer.frame() == (PING, (4).to_bytes(8))
        assert await peer.ended()
        assert 12 <= trio.current_time() - last <= 16


async def test_who_takes_nothing_is_dropped_and_reading_goes_on_until_then(autojump_clock: object) -> None:
    times = KeepAliveTimes(write_timeout=10)
    async with pair(times=times, lockstep=True) as (channel, peer), trio.open_nursery() as nursery:

        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError, match="took nothing"):
                await channel.send(Frame(b"x" * LIMIT))

        began = trio.current_time()
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(peer.send, frame(PING) + frame(TEXT, b"{}"))
        assert (await channel.receive()).data == b"{}"
        with pytest.raises(trio.BrokenResourceError, match="took nothing"):
            await channel.receive()
        assert 10 <= trio.current_time() - began <= 16


async def test_a_torn_frame_is_never_continued(autojump_clock: object) -> None:
    async with pair(lockstep=True) as (channel, peer):
        with trio.move_on_after(1) as scope:
            await channel.send(Frame(b"{}"))
        assert scope.cancelled_caught
        with pytest.raises(trio.BrokenResourceError, match="did not end"):
            await channel.send(Frame(b"{}"))
        await channel.aclose()
        del peer


async def test_its_repr_tells_how_it_is(autojump_clock: object) -> None:
    async with pair() as (channel, peer):
        assert repr(channel) == "<WebSocketChannel to raw: 0 ready>"
        await peer.send(closing(1011, "oops"))
        with pytest.raises(trio.BrokenResourceError):
            await channel.receive()
        assert "1011 (oops)" in repr(channel)
        await channel.aclose()
        assert repr(channel) == "<WebSocketChannel to raw: closed>"


def test_times_are_positive() -> None:
    with pytest.raises(ValueError, match="ping_timeout"):
        KeepAliveTimes(ping_timeout=0)


async def test_a_frame_that_comes_alone_is_delivered_and_a_burst_received(autojump_clock: object) -> None:
    async with pair() as (channel, peer):
        delivered: list[bytes] = []

        def take(frame: Frame) -> bool:
            delivered.append(frame.data)
            return frame.data != b"no"

        channel.deliver_to(take)
        for data in (b"1", b"2"):
            await peer.send(frame(TEXT, data))
            with trio.move_on_after(1):
                await channel.receive_many()
        assert delivered == [b"1", b"2"]
        await peer.send(frame(TEXT, b"3") + frame(TEXT, b"4"))
        assert [each.data for each in await channel.receive_many()] == [b"3", b"4"]
        await peer.send(frame(TEXT, b"no"))
        assert (await channel.receive()).data == b"no"
        assert delivered == [b"1", b"2", b"no"]


# -- A read full of small frames is taken in parts, so that others have their turn -----------------------


def masked(opcode: int, payload: bytes) -> bytes:
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


@pytest.mark.parametrize("times", [1, 10])
async def test_others_have_turns_beside_a_flood_of_frames(times: int) -> None:
    near, far = trio.testing.memory_stream_pair()
    turns, receives, total = 0, 0, 1000 * times

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        channel = WebSocketChannel(near, client=False, nursery=nursery)
        # Every second frame is a pong, which brings no message.
        flood = b"".join(masked(1, b"%d" % number) + masked(10, b"") for number in range(total))
        await far.send_all(flood)
        nursery.start_soon(other)
        received: list[bytes] = []
        while len(received) < total:
            frames = await channel.receive_many()
            assert len(frames) <= FRAMES_IN_A_TURN
            receives += 1
            received += [frame.data for frame in frames]
        nursery.cancel_scope.cancel()
    assert turns >= receives // 2 > times
    assert received == [b"%d" % number for number in range(total)]


# -- A WebSocket knows what its peer has read: a pong says so. And it does not outlast its peer's Close frame ---


async def test_a_pong_says_what_was_read(autojump_clock: object) -> None:
    async with pair() as (channel, peer), trio.open_nursery() as nursery:
        read: list[bool] = []

        async def wait() -> None:
            read.append(await channel.wait_until_read())

        async def receive() -> None:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()

        nursery.start_soon(receive)
        await channel.send(Frame(b"{}"))
        nursery.start_soon(wait)
        assert [await peer.frame(), await peer.frame()] == [(TEXT, b"{}"), (PING, (1).to_bytes(8))]
        # None of these answers that ping.
        for payload in (b"", b"1", bytes(8), (2).to_bytes(8), (1).to_bytes(9)):
            await peer.send(frame(PONG, payload))
        await trio.testing.wait_all_tasks_blocked()
        assert read == []
        await peer.send(frame(PONG, (1).to_bytes(8)))
        await trio.testing.wait_all_tasks_blocked()
        assert read == [True]
        nursery.start_soon(wait)
        assert await peer.frame() == (PING, (2).to_bytes(8))
        # Nobody waits for the pong of a peer that has closed.
        await peer.send(closing(1000))
        await trio.testing.wait_all_tasks_blocked()
        assert read == [True, True]


def hanging(ended: list[str], **limits: float) -> Server:
    server = Server("hanging", limits=Limits(**limits))

    @server.tool
    async def hang() -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("hang")
        return ""

    return server


def encoded(message: object) -> bytes:
    return json.dumps(message).encode()


async def test_calls_in_flight_do_not_keep_a_websocket_open_whose_peer_has_closed(
    autojump_clock: object,
) -> None:
    ended: list[str] = []
    async with pair() as (channel, peer), trio.open_nursery() as nursery:
        nursery.start_soon(hanging(ended).serve, Serves(channel))
        await peer.send(frame(TEXT, encoded(initialize())))
        assert (await peer.frame())[0] == TEXT
        await peer.send(frame(TEXT, encoded(INITIALIZED)) + frame(TEXT, encoded(call(1, "hang"))))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await peer.send(closing(1000))
        assert (await peer.closed_with())[0] == 1000
        assert await peer.ended()
        assert trio.current_time() - began <= 1
        assert ended == ["hang"]


async def test_a_client_with_calls_in_flight_closes_a_websocket_that_says_nothing_any_more(
    autojump_clock: object,
) -> None:
    async with pair(client=True) as (channel, peer), trio.open_nursery() as nursery:

        async def answer() -> None:
            asked = json.loads((await peer.frame())[1])
            answer = result(asked, initialize_result(LEGACY, {"tools": {}}))
            await peer.send(frame(TEXT, encoded(answer), masked=False))

        nursery.start_soon(answer)
        async with Client(Dials([channel]), era="legacy") as client:
            nursery.start_soon(lost, client)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began <= 1


async def lost(client: Client) -> None:
    with pytest.raises(ConnectionLost):
        await client.call_tool("hang", {})
