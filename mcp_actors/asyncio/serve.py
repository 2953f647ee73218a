"""Servers in asyncio programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mcp_actors.abc import ServerTransport
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.errors import LoopClosed
from mcp_actors.logging import log
from mcp_actors.server import Server

__all__ = ["serve"]


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
