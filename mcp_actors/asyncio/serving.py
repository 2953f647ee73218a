"""Servers in asyncio programs: one beside the program's own loop, and lifespans that use asyncio libraries."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import mcp_actors
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.asyncio_call import asyncio_loop_of, entered_in_loop
from mcp_actors.bridges.bridged_call import calling_bridge

__all__ = ["lifespan", "serve"]


T = TypeVar("T")


def lifespan(
    function: Callable[[mcp_actors.Server], AsyncIterator[T]],
) -> Callable[[mcp_actors.Server], AbstractAsyncContextManager[T]]:
    """Decorator: makes a server's lifespan of an async function with one ``yield`` that uses asyncio libraries.

    It runs in the loop in which functions with ``loop="asyncio"`` run: the program's, under `serve` and in ASGI
    servers, or one of the engine's own, under `Server.run` and `Server.serve`. So the value that it yields,
    ``ctx.state``, is of use to those functions. After the server's last call it goes on behind the ``yield``, also
    when `serve` was cancelled, and does not learn how the server has ended. It has 10 seconds for that, so that no pool
    that never closes holds the program up; then it is cancelled.

    Args:
        function: Such as ``async def database(server): ...; yield pool; ...``, for ``Server(lifespan=database)``.

    Raises:
        TypeError: It is not such a function.
    """
    if not inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r:.80} is not an 'async def' with one 'yield'")
    made = asynccontextmanager(function)

    @asynccontextmanager
    async def in_loop(server: mcp_actors.Server) -> AsyncIterator[T]:
        async with entered_in_loop(asyncio_loop_of(calling_bridge.get()), made(server)) as value:
            yield value

    return in_loop


async def serve(
    server: mcp_actors.Server,
    *targets: str | mcp_actors.abc.ServerTransport,
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
            self._bridge.notify(self._callback, value)
