"""Lifespans of servers that need asyncio: those that open a pool of database connections, for example."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from mcp_actors.bridges.asyncio_call import AsyncioCall, AsyncioLoop
from mcp_actors.bridges.asyncio_thread import asyncio_loop_of
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.errors import LoopClosed
from mcp_actors.logging import log
from mcp_actors.server import Server
from mcp_actors.supervision import start_and_wait
from mcp_actors.task_kinds import ASYNCIO_LIFESPAN

__all__ = ["lifespan"]

# Seconds that a lifespan has to end once its server has; then it is cancelled.
LEAVE_TIME = 10.0

T = TypeVar("T")


def lifespan(
    function: Callable[[Server], AsyncIterator[T]],
) -> Callable[[Server], AbstractAsyncContextManager[T]]:
    """Decorator: makes a server's lifespan of an async function with one ``yield`` that uses asyncio libraries.

    It runs in the loop in which functions with ``loop="asyncio"`` run: the program's, under `serve` and in ASGI
    servers, or one of the engine's own, under `Server.run` and `Server.serve`. So the value that it yields,
    ``ctx.state``, is of use to those functions. After the server's last call it goes on behind the ``yield``, also
    when `serve` was cancelled, and is not told how the server has ended. It has 10 seconds for that, so that no pool
    that never closes holds the program up; then it is cancelled.

    Args:
        function: Such as ``async def database(server): ...; yield pool; ...``, for ``Server(lifespan=database)``.

    Raises:
        TypeError: It is no such function.
    """
    if not inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r:.80} is no 'async def' with one 'yield'")
    made = asynccontextmanager(function)

    @asynccontextmanager
    async def in_loop(server: Server) -> AsyncIterator[T]:
        held = _HeldInLoop(asyncio_loop_of(calling_bridge.get()), made(server))
        failures: list[BaseException] = []

        def failed(error: BaseException) -> None:
            failures.append(error)
            nursery.cancel_scope.cancel(reason="the lifespan has failed")

        async with trio.open_nursery() as nursery:
            value: T = await start_and_wait(nursery, ASYNCIO_LIFESPAN, held.run, on_crash=failed)
            try:
                yield value
            finally:
                held.leave()
        if failures:
            raise failures[0]

    return in_loop


class _HeldInLoop:
    """A context manager of asyncio that one task of its loop enters and leaves, for a Trio task that waits for it."""

    def __init__(self, loop: AsyncioLoop, manager: AbstractAsyncContextManager[Any]) -> None:
        self._loop = loop
        self._manager = manager
        self._call = AsyncioCall(loop)
        self._scope = trio.CancelScope()
        self._task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
        self._is_left = asyncio.Event()

    async def run(self, *, task_status: trio.TaskStatus[Any]) -> None:
        """Holds it from the value that it gives until `leave`, in Trio."""
        self._task_status = task_status
        with self._scope:
            await self._call.result(self._hold)
        if self._scope.cancelled_caught:
            log.warning("a lifespan was cancelled, because it did not end", seconds=LEAVE_TIME)

    def leave(self) -> None:
        """Has it left soon."""
        self._scope.deadline = trio.current_time() + LEAVE_TIME
        try:
            self._loop.post(self._is_left.set)
        except LoopClosed:
            self._scope.cancel(reason="the loop is closed")

    async def _hold(self) -> None:
        async with self._manager as value:
            await self._call.in_trio(partial(self._entered, value))
            await self._is_left.wait()

    async def _entered(self, value: Any) -> None:
        # From here on it ends by `leave` alone: calls that were cancelled still need what it has opened.
        self._scope.shield = True
        self._task_status.started(value)
