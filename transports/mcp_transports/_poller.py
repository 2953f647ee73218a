"""One task that waits on behalf of many connections: a `Poller` for bytes, a `Ticker` for deadlines.

Waiting for one socket costs a system call and a task switch each time, and a timer of its own costs memory. With a
`Poller` and a `Ticker` an idle connection costs neither.

How a poller waits depends on the system. On Linux it is epoll (docs/reference/platforms.md has the figures): each
socket is registered with the kernel once, and the sockets that are ready are read in a row, so that the busier a
listener is, the less each read costs. With many thousand connections, a task that has slept for long has left the
caches of the processor; here it need not wake. Elsewhere each socket has a task that waits as Trio waits, with kqueue
on macOS and the BSDs.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

import outcome
import trio

from mcp_actors.supervision.containment import Containment, start
from mcp_actors.supervision.task_kinds import POLLER, SOCKET_WAIT, TICKER

__all__ = ["EpollPoller", "Pollable", "Poller", "PortablePoller", "Ticker", "Timed", "Waiter", "open_poller"]


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
        """Forgets a socket, before it is closed. Idempotent."""

    @abstractmethod
    async def run(self) -> None:
        """Waits for sockets and calls their readers, until cancelled."""

    @abstractmethod
    def close(self) -> None:
        """Forgets all sockets and frees the resources of the system. `run` must have ended."""

    def _contain(self, descriptor: int, reader: Pollable, error: BaseException) -> None:
        """Removes a reader that has raised ``error``, and calls its `Pollable.crashed`."""
        with Containment(POLLER, reader.crashed, {"reader": reader}):
            if self._readers.get(descriptor) is reader:
                self.remove(descriptor)
            try:
                raise error
            finally:
                # Its traceback has this frame: what the reader held would wait for the garbage collector.
                del error


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
        """Sleeps while ``read`` is called whenever there is something to read, until it returns false or raises.

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
        """Lets other tasks wait for the socket, once `wait` has returned. Idempotent."""
        if self._added:
            self._added = False
            self._poller.remove(self._descriptor)

    def close(self) -> None:
        """Forgets the socket before it is closed; a task that waits goes on. Idempotent."""
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


class _Wait:
    """The task of one socket, from `Poller.add` to `Poller.remove`."""

    __slots__ = ("is_asleep", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.is_asleep = False


class PortablePoller(Poller):
    """A `Poller` that waits as Trio does, with a task for each socket.

    When `remove` returns, Trio has forgotten the socket too, so that it may be closed at once.
    """

    def __init__(self) -> None:
        super().__init__()
        # Empty while `run` does not run.
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


class Timed(Protocol):
    """A member of a `Ticker`."""

    @property
    def deadline(self) -> float:
        """The time at which `expire` is due, in Trio's time: ``math.inf`` for never, ``-math.inf`` for every tick."""

    def expire(self, now: float) -> None:
        """Called once a tick as long as the deadline is not in the future. Must not wait."""

    def crashed(self, error: BaseException) -> None:
        """Called when `expire` has raised ``error`` and the ticker has discarded the member. Must not wait."""


TimedT = TypeVar("TimedT", bound=Timed)


class Ticker(Generic[TimedT]):
    """Expires its members, late by up to one tick, never early.

    An error of `Timed.expire` is logged, and the member is discarded (`Timed.crashed` is called); all others go on.

    Args:
        tick: Seconds from one look at the members to the next.
        on_tick: Called before each look, and must not wait.
    """

    def __init__(self, tick: float, on_tick: Callable[[], None] | None = None) -> None:
        self.tick = tick
        self.members: set[TimedT] = set()
        self._on_tick = on_tick
        self._has_members = trio.Event()

    def __repr__(self) -> str:
        return f"<Ticker of {len(self.members)}, every {self.tick:g} s>"

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: TimedT) -> None:
        """Keeps the deadlines of ``member`` until `discard`."""
        self.members.add(member)
        self._has_members.set()

    def discard(self, member: TimedT) -> None:
        """Forgets ``member``; does nothing for any other object."""
        self.members.discard(member)

    async def run(self) -> None:
        """Keeps time until cancelled. Sleeps while it has no members, so that an idle program is never woken."""
        while True:
            if not self.members:
                self._has_members = trio.Event()
                await self._has_members.wait()
            await trio.sleep(self.tick)
            if self._on_tick is not None:
                self._on_tick()
            self.expire(trio.current_time())

    def expire(self, now: float) -> None:
        """Expires every member whose deadline is not later than ``now``."""
        for member in [each for each in self.members if each.deadline <= now]:
            if member not in self.members:
                continue  # ended by the expiry of another one
            try:
                member.expire(now)
            except BaseException as error:
                self.members.discard(member)
                with Containment(TICKER, member.crashed, {"member": member}):
                    raise error
