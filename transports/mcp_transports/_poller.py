"""Waiting for many sockets at once: the contract of those that wait, and a task that sleeps meanwhile.

Waiting for one socket costs a system call and a task switch, each time. A `Poller` waits for all connections of a
listener, and how it does that is the system's affair: `mcp_transports._waiting` has the choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import outcome
import trio

from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import POLLER

__all__ = ["Pollable", "Poller", "Waiter"]


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
        self._wake(outcome.Error(error))

    def _wake(self, how: outcome.Value[None] | outcome.Error) -> None:
        task, self._task, self._read = self._task, None, None
        if task is not None:
            trio.lowlevel.reschedule(task, how)
