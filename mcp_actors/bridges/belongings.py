"""Everything that belongs to a loop of the program: calls in flight, functions that run there, clients, servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.errors import LoopClosed
from mcp_actors.logging import log
from mcp_actors.supervision import Containment, start
from mcp_actors.task_kinds import LOOP_END

__all__ = ["Belongings", "Closer", "Ending", "Watchable"]

# Seconds that each client or server of a closed loop has to close; then it is cancelled.
CLOSE_TIME = 5.0

Closer = Callable[[], Awaitable[object]]


class Ending(Protocol):
    """A function of the program that the engine waits for."""

    def loop_closed(self) -> None:
        """Called in the engine: the function will never end."""


class Watchable(Protocol):
    """The loop, as far as it is watched."""

    def is_closed(self) -> bool:
        """Whether nothing will ever run there again. Called in the engine."""

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` in the loop soon, in order; raises `LoopClosed` if nothing runs there."""

    def wake(self) -> None:
        """Has the loop take the steps that were posted. The engine may have ended before it did so itself."""


class Belongings:
    """Everything in the engine that ends with one loop. The engine looks again and again whether the loop is closed.

    Args:
        engine: Where it is.
        loop: What it ends with.
    """

    def __init__(self, engine: EngineThread, loop: Watchable) -> None:
        self.calls: set[BridgedCall[Any]] = set()
        """The calls in flight: changed in the loop."""
        self.functions: set[Ending] = set()
        """The functions that run in the loop: changed in the engine."""
        self.closers: dict[Closer, None] = {}
        """Close the clients and servers of the loop, in the engine; in the order of their making."""
        self.is_watched = False
        self._engine = engine
        self._loop = loop

    def watch(self) -> None:
        """Has the engine look at the loop from now on. Called when something was added, if it is not `is_watched`."""
        self.is_watched = True
        self._engine.watched.add(self)

    def look(self) -> bool:
        """Ends everything if the loop is closed; see `mcp_actors.bridges.engine_thread.WatchedLoop`."""
        if self._loop.is_closed():
            self.is_watched = False
            self._end()
            return False
        # Whoever adds something looks at the mark behind that, so that either side sees the other.
        self.is_watched = False
        if self.calls or self.functions or self.closers:
            self.is_watched = True
        return self.is_watched

    def engine_ended(self) -> None:
        """Has every call that waits in the loop raise `EngineStopped`. Called where the engine is not any more."""
        try:
            self._loop.post(self._deliver_all)
            self._loop.wake()
        except LoopClosed:
            log.debug("nobody is left to learn that the engine has failed")

    def next_closer(self) -> Closer:
        """Returns what closes the last one of the clients and servers, and forgets it.

        Raises:
            KeyError: None is left.
        """
        return self.closers.popitem()[0]

    def _deliver_all(self) -> None:
        for call in list(self.calls):
            call.deliver()

    def _end(self) -> None:
        for call in list(self.calls):
            call.cancel()
        self.calls.clear()
        for function in list(self.functions):
            function.loop_closed()
        if self.closers:
            log.debug("a loop was closed before what was opened in it", left=len(self.closers))
            start(self._engine.nursery, LOOP_END, self._close)

    async def _close(self) -> None:
        while self.closers:
            closer = self.next_closer()
            with Containment(LOOP_END), trio.move_on_after(CLOSE_TIME):
                try:
                    await closer()
                except Exception as error:
                    log.debug("what a closed loop has left could not be closed in order", exc_info=error)
