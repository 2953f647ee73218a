"""A function of the program that runs in its asyncio loop for the engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, TypeVar

import trio

from mcp_actors.bridges.step_queue import Step
from mcp_actors.errors import EngineStopped, LoopClosed
from mcp_actors.logging import log

__all__ = ["LoopFunction"]

T = TypeVar("T")
NEVER_ENDED = "the asyncio loop was closed, or stopped its tasks, before the function ended"


class LoopFunction:
    """One run of such a function. ``begin`` and ``cancel`` are steps of the loop; all else happens in the engine.

    Args:
        loop: Runs it.
        to_engine: Posts a step to the engine.
        function: Is called without arguments; awaited if what it returns is awaitable.
    """

    __slots__ = ("_context", "_error", "_function", "_is_cancelled", "_loop", "_task", "_to_engine", "_value", "ended",
                 "has_begun")  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, to_engine: Callable[[Step], None], function: Callable[[], Any]
    ) -> None:
        self._loop = loop
        self._to_engine = to_engine
        self._function = function
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self.has_begun = False
        self.ended = trio.Event()

    def begin(self) -> None:
        """Calls the function, unless it was cancelled before."""
        if self._is_cancelled:
            return
        self.has_begun = True
        try:
            self._value = self._context.run(self._function)
            if inspect.isawaitable(self._value):
                self._task = self._loop.create_task(_awaited(self._value), context=self._context)
                self._value = None
                self._task.add_done_callback(self._task_ended)
                return
        except Exception as error:
            self._error = error
        except BaseException:
            # An interrupt and SystemExit belong to the program, and leave its loop.
            self._error = LoopClosed(NEVER_ENDED)
            self._end()
            raise
        self._end()

    def cancel(self) -> None:
        """Cancels the function; it may go on all the same."""
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Keeps a function from beginning that has not."""
        self._is_cancelled = True

    def loop_closed(self) -> None:
        """Ends the waiting for it: it will never end."""
        if not self.ended.is_set():
            self._error = LoopClosed(NEVER_ENDED)
            self.ended.set()

    def unwrap(self) -> Any:
        """Returns what the function has returned, or raises what it has raised."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            # The frames of its traceback would keep it.
            del error

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._error = LoopClosed(NEVER_ENDED)
        else:
            error = task.exception()
            if error is None:
                self._value = task.result()
            else:
                self._error = error if isinstance(error, Exception) else LoopClosed(NEVER_ENDED)
        self._task = None
        self._end()

    def _end(self) -> None:
        try:
            self._to_engine(self.ended.set)
        except EngineStopped:
            log.debug("nobody is left to take what a function has returned")


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
