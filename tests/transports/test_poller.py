"""One task that waits for many sockets, and the tasks that let it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

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


async def test_whoever_has_something_to_read_is_called(poller: Poller, pairs: list[Pair]) -> None:
    called = []

    def reader(name: int, end: socket.socket) -> None:
        data = end.recv(100)
        called.append((name, data))
        if not data:
            poller.remove(end.fileno())

    for number, (_, end) in enumerate(pairs):
        poller.add(end.fileno(), lambda number=number, end=end: reader(number, end))
    pairs[0][0].send(b"a")
    pairs[2][0].send(b"c")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert sorted(called) == [(0, b"a"), (2, b"c")]
    pairs[1][0].close()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (1, b"") in called


async def test_one_that_came_first_may_remove_another(poller: Poller, pairs: list[Pair]) -> None:
    called = []

    def reader(mine: int, other: int) -> None:
        called.append(mine)
        pairs[mine][1].recv(100)
        poller.remove(pairs[other][1].fileno())

    poller.add(pairs[0][1].fileno(), lambda: reader(0, 1))
    poller.add(pairs[1][1].fileno(), lambda: reader(1, 0))
    pairs[0][0].send(b"a")
    pairs[1][0].send(b"b")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(called) == 1
    poller.remove(pairs[0][1].fileno())


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

    async def run(self, enough: int) -> None:
        def readable() -> bool:
            self.data += self.end.recv(100)
            return len(self.data) < enough

        with trio.CancelScope() as self.scope:
            await self.waiter.wait(readable)
        self.ended.set()


@pytest.fixture
def reading(poller: Poller, pairs: list[Pair]) -> Iterator[Reading]:
    reading = Reading(poller, pairs[0][1])
    yield reading
    reading.waiter.close()


async def test_who_waits_sleeps_until_it_has_enough_and_the_rest_is_kept(
    reading: Reading, poller: Poller, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 2)
    for piece in (b"a", b"b", b"c"):
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert reading.ended.is_set() == (piece == b"c")
        pairs[0][0].send(piece)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert reading.data == b"ab"
    # Nobody wants it: the poller is not woken again and again.
    assert repr(poller) == "<Poller of 0>"
    await reading.run(3)
    assert reading.data == b"abc"


async def test_what_was_cancelled_reads_nothing_any_more(
    reading: Reading, pairs: list[Pair], nursery: trio.Nursery
) -> None:
    nursery.start_soon(reading.run, 9)
    await trio.testing.wait_all_tasks_blocked(0.01)
    reading.scope.cancel()
    await reading.ended.wait()
    pairs[0][0].send(b"later")
    await trio.testing.wait_all_tasks_blocked(0.01)
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
    await trio.testing.wait_all_tasks_blocked(0.01)
    with pytest.raises(trio.BusyResourceError):
        await reading.waiter.wait(lambda: True)
    reading.waiter.close()
    reading.waiter.close()
    await reading.ended.wait()
    assert reading.data == b""
    assert repr(poller) == "<Poller of 0>"


async def test_a_poller_that_was_closed_calls_nobody(pairs: list[Pair]) -> None:
    poller = Poller()
    poller.add(pairs[0][1].fileno(), lambda: None)
    poller.close()
    poller.remove(pairs[0][1].fileno())
    waiter = Waiter(poller, pairs[1][1].fileno())
    with trio.CancelScope() as scope:
        scope.cancel()
        await waiter.wait(lambda: True)
    assert scope.cancelled_caught
    waiter.close()
