"""One task that waits for all plain sockets of a listener at once.

Waiting for one socket costs a system call and a switch to a task, each time. Here the kernel is told once of each
socket, one task waits, and what is ready is read in a row: the busier a listener, the less it costs. And where many
thousand connections are open, a task that has slept for long is no longer in any cache of the processor.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import outcome
import trio

__all__ = ["Poller", "Waiter"]

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
        if not self._epoll.closed:
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
        """Lets go of the descriptor that it is itself; `run` has ended. Calls nobody any more."""
        self._readers.clear()
        self._epoll.close()


class Waiter:
    """Lets one task at a time sleep while the poller reads its socket."""

    __slots__ = ("_added", "_descriptor", "_poller", "_readable", "_task")

    def __init__(self, poller: Poller, descriptor: int) -> None:
        self._poller = poller
        self._descriptor = descriptor
        self._added = False
        self._readable: Callable[[], bool] | None = None
        self._task: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<Waiter for {self._descriptor}{'' if self._task is None else ', asleep'}>"

    async def wait(self, readable: Callable[[], bool]) -> None:
        """Has ``readable`` called whenever there is something to read, until it returns false or raises.

        What it raises is raised here. Cancelled, ``readable`` is not called any more. Raises
        `trio.BusyResourceError` when another task waits.
        """
        if self._task is not None:
            raise trio.BusyResourceError("another task is receiving already")
        if not self._added:
            self._added = True
            self._poller.add(self._descriptor, self._called)
        self._readable = readable
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = self._readable = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def close(self) -> None:
        """Due before the socket is closed: it is forgotten, and who waits goes on. Any number of times."""
        self._forget()
        self._wake(outcome.Value(None))

    def _called(self) -> None:
        if self._readable is None:
            # The task is at what was read before. Until it comes back the kernel keeps the rest.
            self._forget()
            return
        try:
            if not self._readable():
                self._wake(outcome.Value(None))
        except Exception as error:
            self._wake(outcome.Error(error))

    def _forget(self) -> None:
        if self._added:
            self._added = False
            self._poller.remove(self._descriptor)

    def _wake(self, how: outcome.Value[None] | outcome.Error) -> None:
        task, self._task, self._readable = self._task, None, None
        if task is not None:
            trio.lowlevel.reschedule(task, how)
