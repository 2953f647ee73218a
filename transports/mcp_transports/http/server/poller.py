"""One task that waits for all plain sockets of a listener at once.

Waiting for one socket costs a system call and a switch to a task, each time. Here the kernel is told once of each
socket, one task waits, and what is ready is read in a row: the busier a listener, the less it costs.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

__all__ = ["Poller"]

# Sockets that are read before other tasks get a turn: some milliseconds.
_AT_ONCE = 64


class Poller:
    """Calls back whoever has something to read, again and again until it was read. Not for callbacks that raise."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<Poller of {len(self._readers)}>"

    def add(self, descriptor: int, readable: Callable[[], None]) -> None:
        """``readable`` is called whenever there are bytes, or the end of them."""
        self._readers[descriptor] = readable
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Due before it is closed; legal any number of times."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Runs until cancelled."""
        descriptor, poll, readers = self._epoll.fileno(), self._epoll.poll, self._readers
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            for ready, _ in poll(0, _AT_ONCE):
                # One that came first may have closed another.
                readable = readers.get(ready)
                if readable is not None:
                    readable()

    def close(self) -> None:
        """Lets go of the descriptor that it is itself; `run` has ended."""
        self._epoll.close()
