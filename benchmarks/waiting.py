"""The ways to wait for sockets beside each other: what a read costs with some, many and very many sockets.

::

    python -m benchmarks.waiting --rounds 9

Of each number of sockets, one, 64 or all have something to read at a time. The ways take turns, in one process; the
figure is processor time, of this process and of the kernel for it, for one read of some bytes. What a socket costs that
is added and removed again is measured too: over HTTP that happens when a connection is paused.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import trio

from mcp_transports._poller import EpollPoller, Poller, PortablePoller

WAYS: dict[str, Callable[[], Poller]] = {"epoll": EpollPoller, "portable": PortablePoller}
# sockets, and how many of them have something to read at a time
CASES = ((1, 1), (64, 1), (64, 64), (1_000, 1), (1_000, 64), (1_000, 1_000), (8_000, 64))
READS = 20_000


class Reader:
    """Reads what comes on one socket and counts it."""

    left = 0
    done = trio.Event()

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def readable(self) -> None:
        self.socket.recv(100)
        Reader.left -= 1
        if not Reader.left:
            Reader.done.set()

    def crashed(self, error: BaseException) -> None:
        raise error


async def read_cost(make: Callable[[], Poller], sockets: int, ready: int, reads: int) -> float:
    """Returns the microseconds of processor time that a read takes, without those of the sending."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(sockets)]
        for pair in pairs:
            for each in pair:
                stack.enter_context(each)
        poller = make()
        for _, receiving in pairs:
            poller.add(receiving.fileno(), Reader(receiving))
        spent = 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            await trio.sleep(0.05)
            for turn in range(max(1, reads // ready)):
                first = turn * ready
                Reader.left, Reader.done = ready, trio.Event()
                for number in range(first, first + ready):
                    pairs[number * 7 % sockets][0].send(b"0123456789")
                began = time.process_time()
                await Reader.done.wait()
                spent += time.process_time() - began
            nursery.cancel_scope.cancel()
        poller.close()
    return spent / (max(1, reads // ready) * ready) * 1e6


async def add_cost(make: Callable[[], Poller], times: int) -> float:
    """Returns the microseconds of processor time for adding a socket, some turns of the loop, and removing it."""
    sending, receiving = socket.socketpair()
    with sending, receiving:
        poller = make()
        reader = Reader(receiving)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            await trio.sleep(0.05)
            began = time.process_time()
            for _ in range(times):
                poller.add(receiving.fileno(), reader)
                await trio.lowlevel.checkpoint()
                poller.remove(receiving.fileno())
                await trio.lowlevel.checkpoint()
            spent = time.process_time() - began
            nursery.cancel_scope.cancel()
        poller.close()
    return spent / times * 1e6


def row(name: str, costs: dict[str, list[float]]) -> str:
    """Returns a row of the table: the medians, and the median of the ratios within a round."""
    ratios = [portable / epoll for epoll, portable in zip(costs["epoll"], costs["portable"], strict=True)]
    middle = {way: statistics.median(figures) for way, figures in costs.items()}
    return (
        f"| {name} | {middle['epoll']:.1f} us | {middle['portable']:.1f} us "
        f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) |"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=READS, help=f"of a case and way in a round, {READS:,}")
    parser.add_argument("--sockets", type=int, default=CASES[-1][0], help="at most")
    given = parser.parse_args(words)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("| a read, with | epoll | portable | portable / epoll |\n|---|---|---|---|")
    for sockets, ready in CASES:
        if sockets <= given.sockets:
            costs: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way, make in WAYS.items():
                    costs[way].append(trio.run(read_cost, make, sockets, ready, given.reads))
            print(row(f"{sockets:,} sockets, {ready:,} ready", costs), flush=True)
    costs = {
        way: [trio.run(add_cost, make, given.reads // 4) for _ in range(given.rounds)]
        for way, make in WAYS.items()
    }
    print(row("a socket added and removed", costs))


if __name__ == "__main__":
    main()
