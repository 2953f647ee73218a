"""Waiting for many sockets on every system that Trio runs on: each has a task, which waits as Trio waits."""

from __future__ import annotations

import errno
from functools import partial

import trio

from mcp_actors.supervision import start
from mcp_actors.task_kinds import SOCKET_WAIT
from mcp_transports._poller import Pollable, Poller

__all__ = ["PortablePoller"]


class _Wait:
    """The task of one socket, from `Poller.add` to `Poller.remove`."""

    __slots__ = ("is_asleep", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.is_asleep = False


class PortablePoller(Poller):
    """A `Poller` of Trio's own means.

    A socket that is removed is one that Trio has forgotten when `remove` returns, so that it may be closed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        # There are none while `run` does not run.
        self._waits: dict[int, _Wait] = {}
        self._nursery: trio.Nursery | None = None
        self._closed = False

    def add(self, descriptor: int, reader: Pollable) -> None:
        if self._closed:
            return
        if descriptor in self._readers:
            raise FileExistsError(errno.EEXIST, "this socket is waited for already")
        self._readers[descriptor] = reader
        if self._nursery is not None:
            self._watch(self._nursery, descriptor, reader)

    def remove(self, descriptor: int) -> None:
        if self._readers.pop(descriptor, None) is not None:
            wait = self._waits.pop(descriptor, None)
            # A reader that removes itself is not cancelled: what it raises then must be seen for what it is.
            if wait is not None and wait.is_asleep:
                wait.scope.cancel()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for descriptor, reader in self._readers.items():
                    self._watch(nursery, descriptor, reader)
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._waits.clear()

    def close(self) -> None:
        self._closed = True
        self._readers.clear()

    def _watch(self, nursery: trio.Nursery, descriptor: int, reader: Pollable) -> None:
        self._waits[descriptor] = wait = _Wait()
        on_crash = partial(self._waiting_failed, descriptor, reader)
        start(nursery, SOCKET_WAIT, self._wait, descriptor, reader, wait, on_crash=on_crash)

    async def _wait(self, descriptor: int, reader: Pollable, wait: _Wait) -> None:
        waits = self._waits
        with wait.scope:
            # Removed before this task ran for the first time, the number may be that of another socket by now.
            while waits.get(descriptor) is wait:
                wait.is_asleep = True
                await trio.lowlevel.wait_readable(descriptor)
                wait.is_asleep = False
                # Removed after the kernel had reported it.
                if waits.get(descriptor) is wait:
                    try:
                        reader.readable()
                    except BaseException as error:
                        self._contain(descriptor, reader, error)

    def _waiting_failed(self, descriptor: int, reader: Pollable, error: BaseException) -> None:
        if self._readers.get(descriptor) is reader:
            self.remove(descriptor)
        reader.crashed(error)
