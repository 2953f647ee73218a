"""Newline frames: any cut of the bytes gives the same frames, limits hold both ways, nothing is lost or torn."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError


class ScriptedStream(trio.abc.ReceiveStream):
    """Receives the pieces it was given, one a time, whatever size was asked for; then its end."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0) if self.pieces else b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class RecordingStream(trio.abc.SendStream):
    """Notes each ``send_all``; while ``gate`` is closed, stops after half of the bytes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gate = trio.Event()
        self.gate.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data[: len(data) // 2]))
        await self.gate.wait()
        self.sent[-1] = bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def channel_of(*pieces: bytes, limit: int = 1000) -> LineChannel:
    return LineChannel(ScriptedStream(*pieces), RecordingStream(), max_message_bytes=limit)


async def everything(channel: FrameChannel) -> list[bytes]:
    received = []
    try:
        while True:
            received += [frame.data for frame in await channel.receive_many()]
    except trio.EndOfChannel:
        return received


LINES = st.lists(st.binary(min_size=0, max_size=40).map(lambda raw: raw.replace(b"\n", b"n")), max_size=12)


@given(LINES, st.lists(st.integers(0, 500), max_size=12), st.booleans(), st.sampled_from([b"\n", b"\r\n"]))
@settings(deadline=None)
def test_any_cut_gives_the_same_frames(
    lines: list[bytes], cuts: list[int], ended: bool, newline: bytes
) -> None:
    stream = newline.join(lines) + (newline if ended else b"")
    at = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(at) if a < b]
    expected = [stripped for line in lines if (stripped := line.strip(b" \t\r"))]

    assert trio.run(everything, channel_of(*pieces)) == expected


@given(st.lists(st.binary(min_size=1, max_size=30).map(lambda raw: raw.replace(b"\n", b"n")), max_size=9))
@settings(deadline=None)
def test_what_is_sent_in_a_burst_is_received(messages: list[bytes]) -> None:
    async def there() -> None:
        out = RecordingStream()
        await LineChannel(ScriptedStream(), out).send_many([Frame(message) for message in messages])
        assert len(out.sent) == 1
        assert out.sent[0].split(b"\n")[:-1] == messages

    trio.run(there)


async def test_one_read_is_one_burst() -> None:
    channel = channel_of(b'{"a":1}\r\n\r\n  \n{"b":2}\n{"c"', b":3}\n")

    assert [frame.data for frame in await channel.receive_many()] == [b'{"a":1}', b'{"b":2}']
    assert [frame.data for frame in await channel.receive_many()] == [b'{"c":3}']


async def test_receive_hands_out_a_burst_one_by_one_and_receive_many_the_rest() -> None:
    channel = channel_of(b"1\n2\n3\n4\n")

    assert (await channel.receive()).data == b"1"
    assert "3 ready" in repr(channel)
    assert (await channel.receive()).data == b"2"
    assert [frame.data for frame in await channel.receive_many()] == [b"3", b"4"]
    with pytest.raises(trio.EndOfChannel):
        await channel.receive()


async def test_last_line_needs_no_newline() -> None:
    channel = channel_of(b"1\n", b"la", b"st")

    assert await everything(channel) == [b"1", b"last"]
    with pytest.raises(trio.EndOfChannel):
        await channel.receive_many()
    assert "EndOfChannel" in repr(channel)


@pytest.mark.parametrize(
    ("pieces", "before"),
    [
        ((b"ok\n" + b"x" * 11 + b"\nnever\n",), [b"ok"]),
        ((b"ok\nxxxxxx", b"xxxxx\nnever\n"), [b"ok"]),
        ((b"ok\nxxxxxx", b"xxxxx", b"never\n"), [b"ok"]),
        ((b"x" * 10 + b"\n" + b"y" * 11,), [b"x" * 10]),
        ((b"x" * 11,), []),
    ],
)
async def test_over_the_limit_breaks_after_what_came_before(
    pieces: tuple[bytes, ...], before: list[bytes]
) -> None:
    channel = channel_of(*pieces, limit=10)

    assert [(await channel.receive()).data for _ in before] == before
    with pytest.raises(trio.BrokenResourceError) as caught:
        await channel.receive()

    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    assert str(caught.value.__cause__) == "message longer than 10 bytes"
    with pytest.raises(trio.BrokenResourceError):
        await channel.receive_many()


async def test_exactly_the_limit_passes_however_it_is_cut() -> None:
    assert await everything(channel_of(b"x" * 10 + b"\n", b"y" * 9, b"y\n", b"z" * 10, limit=10)) == [
        b"x" * 10,
        b"y" * 10,
        b"z" * 10,
    ]


async def test_a_last_error_can_be_sent_to_a_peer_over_the_limit() -> None:
    out = RecordingStream()
    channel = LineChannel(ScriptedStream(b"x" * 99), out, max_message_bytes=10)

    with pytest.raises(trio.BrokenResourceError):
        await channel.receive()
    await channel.send(Frame(b"{}"))

    assert out.sent == [b"{}\n"]


@pytest.mark.slow
async def test_memory_is_bounded_while_tiny_pieces_arrive() -> None:
    class Trickle(ScriptedStream):
        left = 400_000

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            self.left -= 1
            return bytes([120]) if self.left else b"\n"

    channel = LineChannel(Trickle(), RecordingStream(), max_message_bytes=500_000)
    tracemalloc.start()
    try:
        with trio.fail_after(60):
            frame = await channel.receive()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(frame.data) == 399_999
    assert peak < 4 * 400_000


@pytest.mark.parametrize("bad", [b"x" * 11, b"two\nlines", b"newline\n", b""])
async def test_a_bad_frame_is_refused_before_any_byte_is_written(bad: bytes) -> None:
    out = RecordingStream()
    channel = LineChannel(ScriptedStream(), out, max_message_bytes=10)

    with pytest.raises(LocalProtocolError):
        await channel.send_many([Frame(b"good"), Frame(bad)])

    assert out.sent == []
    await channel.send(Frame(b"good"))
    assert out.sent == [b"good\n"]


async def test_a_torn_stream_takes_no_more(autojump_clock: trio.testing.MockClock) -> None:
    out = RecordingStream()
    out.gate = trio.Event()
    channel = LineChannel(ScriptedStream(b"still read\n"), out)

    with trio.move_on_after(1) as scope:
        await channel.send(Frame(b"12345678"))

    assert scope.cancelled_caught
    with pytest.raises(trio.BrokenResourceError):
        await channel.send(Frame(b"x"))
    assert len(out.sent) == 1
    assert (await channel.receive()).data == b"still read"


@pytest.mark.parametrize("first", ["send", "cancel"])
async def test_cancelling_a_receive_loses_nothing(first: str) -> None:
    near, far = trio.testing.memory_stream_pair()
    channel = LineChannel(near, near)
    received: list[bytes] = []

    async def receive(scope: trio.CancelScope) -> None:
        with scope:
            received.extend(frame.data for frame in await channel.receive_many())

    for number in range(100):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(receive, scope)
            await trio.testing.wait_all_tasks_blocked()
            if first == "cancel":
                scope.cancel()
            await far.send_all(b"%d\nhalf" % number)
            scope.cancel()
        await far.send_all(b" and half\n")
    await far.aclose()
    received += await everything(channel)

    assert received == [line for number in range(100) for line in (b"%d" % number, b"half and half")]


async def test_cancelled_in_a_half_full_buffer_keeps_it() -> None:
    channel = channel_of(b"1\n2\n")
    assert (await channel.receive()).data == b"1"

    for receive in (channel.receive, channel.receive_many):
        with trio.CancelScope() as scope:
            scope.cancel()
            await receive()
        assert scope.cancelled_caught

    assert (await channel.receive()).data == b"2"


async def test_closed_is_closed_for_everything_and_wakes_the_one_who_waits() -> None:
    near, far = trio.testing.memory_stream_pair()
    channel = LineChannel(near, near)
    await far.send_all(b"1\n2\n")
    assert (await channel.receive()).data == b"1"

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await waiting.receive()

    waiting = LineChannel(*[trio.testing.memory_stream_pair()[0]] * 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await waiting.aclose()

    await channel.aclose()
    await channel.aclose()
    for receive in (channel.receive, channel.receive_many):
        with pytest.raises(trio.ClosedResourceError):
            await receive()
    with pytest.raises(trio.ClosedResourceError):
        await channel.send(Frame(b"x"))
    assert "closed" in repr(channel)


def test_the_limit_is_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        channel_of(limit=0)


class DeliveringStream(ScriptedStream):
    """Delivers its pieces in one task's turn."""

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while take(self.pieces.pop(0) if self.pieces else b""):
            pass


@pytest.mark.parametrize("stream", [ScriptedStream, DeliveringStream])
async def test_a_frame_that_comes_alone_is_delivered_and_a_burst_received(
    stream: type[ScriptedStream],
) -> None:
    pieces = [b"1\n", b"2", b"2\n", b"3\n4\n", b"5\n", b"no\n", b"6\n", b"7"]
    channel = LineChannel(stream(*pieces), RecordingStream())
    delivered: list[bytes] = []

    def take(frame: Frame) -> bool:
        if frame.data == b"no":
            return False
        delivered.append(frame.data)
        return True

    channel.deliver_to(take)
    assert [frame.data for frame in await channel.receive_many()] == [b"3", b"4"]
    assert delivered == [b"1", b"22"]
    assert (await channel.receive()).data == b"no"
    with pytest.raises(trio.EndOfChannel):
        await channel.receive_many()
    assert delivered == [b"1", b"22", b"5", b"6", b"7"]


async def test_what_follows_a_delivered_frame_may_be_over_the_limit() -> None:
    channel = LineChannel(DeliveringStream(b"1\n" + b"x" * 9), RecordingStream(), max_message_bytes=8)
    delivered: list[Frame] = []
    channel.deliver_to(lambda frame: not delivered.append(frame))
    with pytest.raises(trio.BrokenResourceError) as caught:
        await channel.receive_many()
    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    assert [frame.data for frame in delivered] == [b"1"]


@pytest.mark.parametrize("times", [1, 10])
async def test_what_one_read_brings_is_received_in_parts(times: int) -> None:
    near, far = trio.testing.memory_stream_pair()
    channel = LineChannel(near, near)
    await far.send_all(b"".join(b"%d\n" % number for number in range(1000 * times)))
    received: list[bytes] = []
    while len(received) < 1000 * times:
        frames = await channel.receive_many()
        assert len(frames) <= 256
        received += [frame.data for frame in frames]
    assert received == [b"%d" % number for number in range(1000 * times)]


async def test_closing_reaches_both_streams_even_if_one_fails() -> None:
    class Unclosable(RecordingStream):
        async def aclose(self) -> None:
            await super().aclose()
            raise OSError("the disk is full")

    class Closable(ScriptedStream):
        closed = False

        async def aclose(self) -> None:
            await super().aclose()
            self.closed = True

    incoming = Closable()
    with pytest.raises(OSError, match="the disk is full"):
        await LineChannel(incoming, Unclosable(), max_message_bytes=1000).aclose()
    assert incoming.closed
