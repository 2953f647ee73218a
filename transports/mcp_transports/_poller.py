"""Waiting for many sockets at once: the contract of those that wait, and a task that sleeps meanwhile.

Waiting for one socket costs a system call and a task switch, each time. A `Poller` waits for all connections of a
listener, and how it does that is the system's affair: `mcp_transports._poller` has the choice.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol

import outcome
import trio

from mcp_actors.supervision.containment import Containment, start
from mcp_actors.supervision.task_kinds import POLLER, SOCKET_WAIT

__all__ = ["EpollPoller", "Pollable", "Poller", "PortablePoller", "Waiter", "open_poller"]


# ----------------------------------------------------------------------------------------------------


class Pollable(Protocol):
    """The reader of one socket, called by the `Poller` that waits for the socket."""

    def readable(self) -> None:
        """Called when there are bytes or the end, repeatedly until they were read. Must not wait."""

    def crashed(self, error: BaseException) -> None:
        """Called when `readable` has raised ``error`` and the poller has removed the reader. Must not wait."""


class Poller(ABC):
    """Calls the readers of sockets that have something to read.

    An error of a reader is logged, and the reader is removed (`Pollable.crashed` is called); all others go on. Where a
    socket is closed, it is removed before. Until `remove` no other task may wait until the same socket is readable.
    """

    def __init__(self) -> None:
        self._readers: dict[int, Pollable] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._readers)}>"

    @abstractmethod
    def add(self, descriptor: int, reader: Pollable) -> None:
        """Calls ``reader.readable`` from now on, until `remove`. Does nothing once the poller is closed.

        Raises:
            OSError: The kernel does not wait for this descriptor, or has no memory for another one. A poller that finds
                that out later removes the reader and calls `Pollable.crashed`.
        """

    @abstractmethod
    def remove(self, descriptor: int) -> None:
        """Forgets a socket, before it is closed. Legal any number of times."""

    @abstractmethod
    async def run(self) -> None:
        """Waits for sockets and calls their readers, until cancelled."""

    @abstractmethod
    def close(self) -> None:
        """Forgets all sockets and gives back what the poller has of the system's. `run` must have ended."""

    def _contain(self, descriptor: int, reader: Pollable, error: BaseException) -> None:
        """Removes a reader that has raised ``error``, and tells it."""
        with Containment(POLLER, reader.crashed, {"reader": reader}):
            if self._readers.get(descriptor) is reader:
                self.remove(descriptor)
            raise error


class Waiter:
    """Lets one task at a time sleep while the poller reads its socket."""

    __slots__ = ("_added", "_descriptor", "_poller", "_read", "_task")

    def __init__(self, poller: Poller, descriptor: int) -> None:
        self._poller = poller
        self._descriptor = descriptor
        self._added = False
        self._read: Callable[[], bool] | None = None
        self._task: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<Waiter for {self._descriptor}{'' if self._task is None else ', asleep'}>"

    async def wait(self, read: Callable[[], bool]) -> None:
        """Has ``read`` called whenever there is something to read, until it returns false or raises.

        Cancelled, ``read`` is not called any more.

        Raises:
            trio.BusyResourceError: Another task waits.
            trio.BrokenResourceError: The poller failed at this socket.
            OSError: The kernel does not wait for this socket.
            Exception: ``read`` raised it.
        """
        if self._task is not None:
            raise trio.BusyResourceError("another task is receiving already")
        if not self._added:
            self._poller.add(self._descriptor, self)
            self._added = True
        self._read = read
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = self._read = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def forget(self) -> None:
        """Lets other tasks wait for the socket, once `wait` has returned. Legal any number of times."""
        if self._added:
            self._added = False
            self._poller.remove(self._descriptor)

    def close(self) -> None:
        """Forgets the socket before it is closed; a task that waits goes on. Legal any number of times."""
        self.forget()
        self._wake(outcome.Value(None))

    def readable(self) -> None:
        """Called by the poller."""
        if self._read is None:
            # The task still works on earlier bytes. Until it waits again the kernel keeps the rest.
            self.forget()
            return
        try:
            if not self._read():
                self._wake(outcome.Value(None))
        except Exception as error:
            self._wake(outcome.Error(error))

    def crashed(self, error: BaseException) -> None:
        """Called by the poller."""
        self._added = False
        # The crash has been logged: for the task that waits the connection is lost.
        lost = trio.BrokenResourceError("waiting for the connection failed")
        lost.__cause__ = error
        self._wake(outcome.Error(lost))

    def _wake(self, how: outcome.Value[None] | outcome.Error) -> None:
        task, self._task, self._read = self._task, None, None
        if task is not None:
            trio.lowlevel.reschedule(task, how)


# -- Waiting for many sockets with Linux's epoll: each socket is registered with the kernel once, and one task waits ---
#
# The sockets that are ready are read in a row: the busier a listener, the less each read costs. With many thousand
# connections, a task that has slept for long has left the caches of the processor; it need not wake here.

# Sockets that are read before other tasks run: some milliseconds.
_AT_ONCE = 64


if sys.platform == "linux":

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


# -- Waiting for many sockets on every system that Trio runs on: each has a task, which waits as Trio waits ---


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


# -- The choice of a way to wait for many sockets: epoll where there is one, and otherwise Trio's own way ---
#
# On Linux epoll is the faster one (docs/platforms.md has the figures). Trio's way works on every system that Trio runs
# on, with kqueue on macOS and the BSDs.

if sys.platform == "linux":
    _OF_THE_SYSTEM: type[Poller] = EpollPoller
else:
    _OF_THE_SYSTEM = PortablePoller


_VARIABLE = "MCP_ACTORS_WAITING"


def open_poller() -> Poller:
    """Returns a new poller: the fastest of this system, or the portable one if the environment asks for it.

    Raises:
        ValueError: ``MCP_ACTORS_WAITING`` is set to something else than ``portable``.
        OSError: The process has no descriptor left.
    """
    asked = os.environ.get(_VARIABLE, "")
    if asked not in ("", "portable"):
        raise ValueError(f"{_VARIABLE} may be 'portable' or not be set, not {asked!r}")
    return PortablePoller() if asked else _OF_THE_SYSTEM()
