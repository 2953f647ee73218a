"""Waiting for many sockets with Linux's epoll: each socket is registered with the kernel once, and one task waits.

The sockets that are ready are read in a row: the busier a listener, the less each read costs. With many thousand
connections, a task that has slept for long has left the caches of the processor; it need not wake here.
"""

from __future__ import annotations

import select
import sys

import trio

from mcp_transports._poller import Pollable, Poller

if sys.platform != "linux":
    raise ImportError("epoll(7) is there on Linux alone: mcp_transports._waiting chooses another way")

__all__ = ["EpollPoller"]

# Sockets that are read before other tasks run: some milliseconds.
_AT_ONCE = 64


class EpollPoller(Poller):
    """A `Poller` with a descriptor of epoll of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll()

    def add(self, descriptor: int, reader: Pollable) -> None:
        if not self._epoll.closed:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._readers[descriptor] = reader

    def remove(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        descriptor, poll, readers = self._epoll.fileno(), self._epoll.poll, self._readers
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            for ready, _ in poll(0, _AT_ONCE):
                # The reader of a socket that came first may have removed this one.
                reader = readers.get(ready)
                if reader is not None:
                    try:
                        reader.readable()
                    except BaseException as error:
                        self._contain(ready, reader, error)

    def close(self) -> None:
        self._readers.clear()
        self._epoll.close()
