"""The stream under a socket's channel: all or nothing at once, nothing lost, and endings that are told apart."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from mcp_transports._poller import open_poller
from mcp_transports.sockets.stream import ConnectedSocket

from .lines import PATIENCE

Pair = tuple[ConnectedSocket, socket.socket]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


@pytest.fixture(params=["tcp", "unix"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        one, other = tcp_pair() if request.param == "tcp" else socket.socketpair()
        yield stack.enter_context(one), stack.enter_context(other)


@pytest.fixture
async def pair(ends: tuple[socket.socket, socket.socket]) -> AsyncIterator[Pair]:
    """Ours, and the other end as it is."""
    stream = ConnectedSocket(ends[0])
    with trio.fail_after(PATIENCE):
        yield stream, ends[1]
        await trio.aclose_forcefully(stream)


def drain(peer: socket.socket) -> bytes:
    """What has arrived."""
    peer.setblocking(False)
    data = b""
    try:
        while piece := peer.recv(1 << 20):
            data += piece
    except BlockingIOError:
        pass
    return data


async def test_what_is_sent_at_once_is_sent_whole_or_not_at_all(pair: Pair) -> None:
    stream, peer = pair
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that the system gives
    sent, refused, got = b"", 0, b""
    for number in range(2000):
        frame = (b"%d:" % number).ljust(1 + number * 7 % 2048, b".")
        if stream.send_at_once(frame):
            sent += frame
        else:
            refused += 1
        if number % 50 == 49:
            got += drain(peer)
    assert refused
    await stream.send_all(b"end")
    while not got.endswith(b"end"):
        await trio.lowlevel.checkpoint()
        got += drain(peer)
    assert got == sent + b"end"


async def test_too_much_for_one_buffer_is_not_sent_at_once(pair: Pair) -> None:
    stream, peer = pair
    assert not stream.send_at_once(b"x" * 2049)
    assert stream.send_at_once(b"x" * 2048)
    peer.settimeout(PATIENCE)
    assert peer.recv(4096, socket.MSG_WAITALL if peer.family == socket.AF_INET else 0)[:1] == b"x"


def test_tcp_with_bytes_under_way_sends_nothing_at_once() -> None:
    one, other = tcp_pair()
    with one, other:
        stream = ConnectedSocket(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        under_way = one.send(b"x" * 250_000)  # the peer reads nothing, so this is not all acknowledged
        # There is room for it, but by nobody's word for all of it.
        assert not stream.send_at_once(b"y")
        assert under_way
        assert one.send(b"z") == 1


async def test_a_torn_frame_breaks_the_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    class Torn(socket.socket):
        """Stands for a system that has run out of memory in the middle."""

        def send(self, data: bytes, *args: int) -> int:  # type: ignore[override]
            return super().send(data[:5])

    one, peer = ends
    async with ConnectedSocket(Torn(fileno=one.detach())) as stream:
        assert not stream.send_at_once(b"more than five")
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"and on")
        with trio.fail_after(PATIENCE), pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        assert drain(peer) == b"more "


async def test_an_end_that_did_not_take_what_was_sent_is_a_break(pair: Pair) -> None:
    stream, peer = pair
    await stream.send_all(b"unread")
    peer.sendall(b"last words")
    peer.shutdown(socket.SHUT_RDWR)
    peer.close()

    async def send_for_ever() -> None:
        while True:
            await stream.send_all(b"x" * 65536)

    async def receive_all() -> None:
        while await stream.receive_some():
            pass

    with pytest.raises(trio.BrokenResourceError):
        await send_for_ever()
    with pytest.raises(trio.BrokenResourceError):
        await receive_all()


async def test_a_cancelled_receive_has_taken_nothing(pair: Pair) -> None:
    stream, peer = pair
    peer.sendall(b"kept")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive_some()
    assert scope.cancelled_caught
    assert await stream.receive_some() == b"kept"


async def test_closing_waits_for_a_peer_that_still_sends_and_a_second_call_does_not(
    pair: Pair, mock_clock: trio.testing.MockClock
) -> None:
    """Its second stands still."""
    stream, peer = pair
    peer.sendall(b"unread")
    await stream.send_all(b"answer")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.aclose)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")
        assert not stream.send_at_once(b"x")
        peer.sendall(b"more")
        await trio.testing.wait_all_tasks_blocked()
        assert stream.socket.fileno() >= 0
        await stream.aclose()
        assert stream.socket.fileno() < 0
    assert drain(peer) == b"answer"


async def test_closing_waits_for_a_second_at_most(pair: Pair, autojump_clock: trio.testing.MockClock) -> None:
    stream, peer = pair
    stream.expect_more()
    began = trio.current_time()
    await stream.aclose()
    assert trio.current_time() - began == pytest.approx(1)
    assert peer.recv(1) == b""


@pytest.mark.parametrize("polled", [True, False])
async def test_what_arrives_is_delivered_until_it_is_enough(
    ends: tuple[socket.socket, socket.socket], nursery: trio.Nursery, polled: bool
) -> None:
    poller = open_poller() if polled else None
    if poller is not None:
        nursery.start_soon(poller.run)
    stream, taken = ConnectedSocket(ends[0], poller), []

    def take(data: bytes) -> bool:
        taken.append(data)
        if data == b"more":
            ends[1].send(b"enough")
        return data == b"more"

    with trio.fail_after(PATIENCE):
        ends[1].send(b"more")
        await stream.deliver(take)
        assert taken == [b"more", b"enough"]
        ends[1].close()
        await stream.deliver(take)
        assert taken[2:] == [b""]
        await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.deliver(take)
    nursery.cancel_scope.cancel()


async def test_closing_wakes_who_is_delivered_to(
    ends: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    poller = open_poller()
    nursery.start_soon(poller.run)
    stream, raised = ConnectedSocket(ends[0], poller), trio.Event()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.deliver(lambda data: True)
        raised.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not raised.is_set()
    await stream.aclose()
    with trio.fail_after(PATIENCE):
        await raised.wait()
    nursery.cancel_scope.cancel()
