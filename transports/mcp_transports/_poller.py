"""One task that waits for many sockets at once.

Waiting for one socket costs a system call and a task switch, each time. Here each socket is registered with the kernel
once, one task waits, and the sockets that are ready are read in a row: the busier a listener, the less each read costs.
With many thousand connections, a task that has slept for long has left the caches of the processor; it need not wake
here.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Protocol

import outcome
import trio

from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import POLLER

__all__ = ["Pollable", "Poller", "Waiter"]

# Sockets that are read before other tasks run: some milliseconds.
_AT_ONCE = 64


class Pollable(Protocol):
    """The reader of one socket, called by the `Poller` that waits for the socket."""

    def readable(self) -> None:
        """Called when there are bytes or the end, repeatedly until they were read. Must not wait."""

    def crashed(self, error: BaseException) -> None:
        """Called when `readable` has raised ``error`` and the poller has removed the reader. Must not wait."""


class Poller:
    """Calls the readers of sockets that have something to read.

    An error of a reader is logged, and the reader is removed (`Pollable.crashed` is called); all others go on.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Pollable] = {}

    def __repr__(self) -> str:
        return f"<Poller of {len(self._readers)}>"

    def add(self, descriptor: int, reader: Pollable) -> None:
        """Calls ``reader.readable`` from now on, until `remove`. Does nothing once the poller is closed.

        Raises:
            OSError: The kernel does not wait for this descriptor, or has no memory for another one.
        """
        if not self._epoll.closed:
            self._epoll.register(descriptor, select.EPOLLIN)
            self._readers[descriptor] = reader

    def remove(self, descriptor: int) -> None:
        """Forgets a socket, before it is closed. Legal any number of times."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Waits for sockets and calls their readers, until cancelled."""
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

    def _contain(self, descriptor: int, reader: Pollable, error: BaseException) -> None:
        with Containment(POLLER, reader.crashed, {"reader": reader}):
            if self._readers.get(descriptor) is reader:
                self.remove(descriptor)
            raise error

    def close(self) -> None:
        """Forgets all sockets and closes the poller's own descriptor. `run` must have ended."""
        self._readers.clear()
        self._epoll.close()


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

    def close(self) -> None:
        """Forgets the socket before it is closed; a task that waits goes on. Legal any number of times."""
        self._forget()
        self._wake(outcome.Value(None))

    def readable(self) -> None:
        """Called by the poller."""
        if self._read is None:
            # The task still works on earlier bytes. Until it waits again the kernel keeps the rest.
            self._forget()
            return
        try:
            if not self._read():
                self._wake(outcome.Value(None))
        except Exception as error:
            self._wake(outcome.Error(error))

    def crashed(self, error: BaseException) -> None:
        """Called by the poller."""
        self._added = False
        self._wake(outcome.Error(error))

    def _forget(self) -> None:
        if self._added:
            self._added = False
            self._poller.remove(self._descriptor)

    def _wake(self, how: outcome.Value[None] | outcome.Error) -> None:
        task, self._task, self._read = self._task, None, None
        if task is not None:
            trio.lowlevel.reschedule(task, how)
