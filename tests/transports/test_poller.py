"""One task that waits for many sockets, and the tasks that let it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.lowlevel

from mcp_transports._poller import Poller, Waiter

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for each in made:
        for end in each:
            end.close()


@pytest.fixture
async def poller(nursery: trio.Nursery) -> Poller:
    poller = Poller()
    nursery.start_soon(poller.run)
    return poller


class Reader:
    """Notes what one end receives, until that is its end."""

    def __init__(self, poller: Poller, end: socket.socket, *, removes: socket.socket | None = None) -> None:
        self.end = end
        self.data: list[bytes] = []
        self.error: BaseException | None = None
        self._poller = poller
        self._removes = removes
        self._called = trio.Event()
        poller.add(end.fileno(), self)

    def readable(self) -> None:
        data = self.end.recv(100)
        if data == b"crash":
            raise ZeroDivisionError
        if data == b"exit":
            raise SystemExit
        self.data.append(data)
        if self._removes is not None:
            self._poller.remove(self._removes.fileno())
        if not data:
            self._poller.remove(self.end.fileno())
        self._wake()

    def crashed(self, error: BaseException) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        self._called.set()
        self._called = trio.Event()

    async def called(self) -> None:
        with trio.fail_after(10):
            await self._called.wait()


async def test_whoever_has_something_to_read_is_called(poller: Poller, pairs: list[Pair]) -> None:
    readers = [Reader(poller, end) for _, end in pairs]
    for number, data in ((0, b"a"), (2, b"c")):
        pairs[number][0].send(data)
        await readers[number].called()
    assert [each.data for each in readers] == [[b"a"], [], [b"c"]]
    pairs[1][0].close()
    await readers[1].called()
    assert readers[1].data == [b""]
    assert repr(poller) == "<Poller of 2>"


async def test_one_that_came_first_may_remove_another(poller: Poller, pairs: list[Pair]) -> None:
    readers = [
        Reader(poller, pairs[0][1], removes=pairs[1][1]),
        Reader(poller, pairs[1][1], removes=pairs[0][1]),
    ]
    last = Reader(poller, pairs[2][1])
    for each, _ in pairs:
        each.send(b"a")
    await last.called()
    assert sorted(len(each.data) for each in readers) == [0, 1]


@pytest.mark.parametrize("how", [b"crash", b"exit"])
async def test_a_reader_that_raises_is_removed_and_told_and_no_other_one(
    poller: Poller, pairs: list[Pair], how: bytes
) -> None:
    broken, other = [Reader(poller, end) for _, end in pairs[:2]]
    with structlog.testing.capture_logs() as logs:
        pairs[0][0].send(how)
        await broken.called()
    assert isinstance(broken.error, ZeroDivisionError if how == b"crash" else SystemExit)
    assert [each["event"] for each in logs] == ["poller failed"]
    assert repr(poller) == "<Poller of 1>"
    pairs[1][0].send(b"a")
    await other.called()
    assert other.data == [b"a"]


def test_it_closes_its_own_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    Poller().close()
    assert len(os.listdir("/proc/self/fd")) == before


class Reading:
    """A task that waits for one end, until it has read ``enough`` bytes."""

    def __init__(self, poller: Poller, end: socket.socket) -> None:
        self.end = end
        self.waiter = Waiter(poller, end.fileno())
        self.data = b""
        self.ended = trio.Event()
        self._read = trio.Event()

    async def run(self, enough: int) -> None:
        def readable() -> bool:
            self.data += self.end.recv(100)
            self._read.set()
            self._read = trio.Event()
            return len(self.data) < enough

        with trio.CancelScope() as self.scope:
            await self.waiter.wait(readable)
        self.ended.set()

    async def asleep(self) -> None:
        """Waits until the task waits."""
        while "asleep" not in repr(self.waiter):
            await trio.lowlevel.checkpoint()

    async def has_read(self) -> None:
        with trio.fail_after(10):
            await self._read.wait()


@pytest.fixture
def reading(poller: Poller, pairs: list[Pair]) -> Iterator[Reading]:
    reading = Reading(poller, pairs[0][1])
    yield reading
    reading.waiter.close()


async def test_who_waits_sleeps_until_it_has_enough_and_the_rest_is_kept(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 2)
    await reading.asleep()
    for piece in (b"a", b"b"):
        assert not reading.ended.is_set()
        pairs[0][0].send(piece)
        await reading.has_read()
    await reading.ended.wait()
    pairs[0][0].send(b"c")
    # Nobody wants it: the poller forgets the socket, and is not woken again and again.
    while repr(poller) != "<Poller of 0>":
        await trio.lowlevel.checkpoint()
    assert reading.data == b"ab"
    await reading.run(3)
    assert reading.data == b"abc"


async def test_what_was_cancelled_reads_nothing_any_more(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 9)
    await reading.asleep()
    reading.scope.cancel()
    await reading.ended.wait()
    other = Reader(poller, pairs[1][1])
    for each in pairs[:2]:
        each[0].send(b"later")
    await other.called()
    assert reading.data == b""
    await reading.run(5)
    assert reading.data == b"later"


async def test_what_goes_wrong_is_told_to_who_waits_and_to_nobody_else(
    reading: Reading, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    pairs[0][0].send(b"a")
    with pytest.raises(ZeroDivisionError):
        await reading.waiter.wait(broken)
    await reading.run(1)
    assert reading.data == b"a"


async def test_one_task_waits_and_closing_wakes_it(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 1)
    await reading.asleep()
    with pytest.raises(trio.BusyResourceError):
        await reading.waiter.wait(lambda: True)
    reading.waiter.close()
    reading.waiter.close()
    await reading.ended.wait()
    assert reading.data == b""
    assert repr(poller) == "<Poller of 0>"


async def test_a_poller_that_was_closed_calls_nobody(pairs: list[Pair]) -> None:
    poller = Poller()
    Reader(poller, pairs[0][1])
    poller.close()
    poller.remove(pairs[0][1].fileno())
    waiter = Waiter(poller, pairs[1][1].fileno())
    with trio.CancelScope() as scope:
        scope.cancel()
        await waiter.wait(lambda: True)
    assert scope.cancelled_caught
    waiter.close()
