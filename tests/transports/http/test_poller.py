"""One task that waits for many sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from mcp_transports.http.server.poller import Poller

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
