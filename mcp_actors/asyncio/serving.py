"""Servers in asyncio programs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from mcp_actors.abc import ServerTransport
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.asyncio_call import AsyncioCall, AsyncioLoop, asyncio_loop_of
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.errors import LoopClosed
from mcp_actors.server import Server
from mcp_actors.supervision.containment import start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ASYNCIO_LIFESPAN

__all__ = ["lifespan", "serve"]


# -- Lifespans of servers that need asyncio: those that open a pool of database connections, for example ---

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


# ----------------------------------------------------------------------------------------------------


async def serve(
    server: Server,
    *targets: str | ServerTransport,
    started: Callable[[tuple[Any, ...]], object] | None = None,
) -> None:
    """Serves beside the program's own asyncio loop until every transport is done, or the server is stopped.

    The server runs in the engine's thread, so that whatever blocks the loop does not stop it. Functions that are
    declared with ``loop="asyncio"`` run in the loop that calls this. Cancelled, it cancels the calls in flight, closes
    every connection, and waits until all of that has ended. `Server.stop` lets calls end first; it may be called
    from the loop, as a handler of signals for example: ``loop.add_signal_handler(signal.SIGTERM, server.stop)``.
    Signals are the program's.

    Args:
        server: May be served several times, also at the same time.
        targets: URLs such as ``"http://127.0.0.1:8000/mcp"``, or transports; without any it returns at once.
        started: Is called in the loop with the tuple of the places where they accept connections, once all of them do:
            a function, or ``future.set_result`` of an `asyncio.Future` that the program awaits.

    Raises:
        RuntimeError: There is no asyncio loop.
        EngineStopped: The interpreter exits.
        TransportNotFound: There is no binding for a URL.
        ValueError: A URL or its options are malformed.
        OSError: A transport cannot listen: the port is taken, or the path may not be used.
        TypeError: A target is neither a URL nor a transport.
        LocalProtocolError: A transport object is served already.
        Exception: Whatever else a transport or the lifespan raises, alone and not in a group.
    """
    bridge = AsyncioBridge.of_running_loop()
    await bridge.call(partial(server.serve, *targets, task_status=_Started(bridge, started)))


class _Started:
    """Tells the program where its server listens; a `trio.TaskStatus`."""

    def __init__(self, bridge: AsyncioBridge, callback: Callable[[tuple[Any, ...]], object] | None) -> None:
        self._bridge = bridge
        self._callback = callback

    def started(self, value: tuple[Any, ...] = ()) -> None:
        if self._callback is not None:
            try:
                # What it raises is told by the loop, as what any callback raises.
                self._bridge.post(partial(self._bridge.loop.call_soon, self._callback, value))
            except LoopClosed:
                log.debug("the loop was closed before its server began", server=self._callback)
