"""An asyncio future that runs the task that waits for it at once, and not in a later turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

__all__ = ["DirectFuture"]


class DirectFuture:
    """An awaitable for one task, once: future-like, as ``asyncio.isfuture`` says in Python's documentation.

    An `asyncio.Future` has the loop run its task later, which takes one more turn of the loop, and two handles.

    Args:
        loop: The loop of the task.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancellation", "_is_done", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The task looks here for the loop.
        self._loop = loop
        self._asyncio_future_blocking = False
        self._is_done = False
        self._cancellation: asyncio.CancelledError | None = None
        self._waiter: tuple[Callable[[Any], object], Context] | None = None

    def __repr__(self) -> str:
        return f"<DirectFuture {'done' if self._is_done else 'pending'}>"

    def run_waiter(self) -> None:
        """Runs the task that waits, until it waits again. Called by a callback of the loop, never by a task."""
        if not self._is_done:
            self._is_done = True
            self._run()

    # -- for the task ------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Takes what runs the task, which begins to wait."""
        self._waiter = callback, context

    def cancel(self, msg: Any = None) -> bool:
        """Ends the waiting, as the task is cancelled; returns whether it waited."""
        if self._is_done:
            return False
        self._is_done = True
        self._cancellation = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._loop.call_soon(self._run)
        return True

    def result(self) -> None:
        """Raises ``CancelledError`` in the task if it was cancelled."""
        cancellation, self._cancellation = self._cancellation, None
        try:
            if cancellation is not None:
                raise cancellation
        finally:
            # The frames of its traceback would keep it.
            del cancellation

    def _run(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            callback, context = waiter
            context.run(callback, self)
