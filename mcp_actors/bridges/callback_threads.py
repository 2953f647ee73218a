"""The threads in which plain callbacks run for programs without a loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import trio

from mcp_actors.bridges.thread_bridge import place_of_thread
from mcp_actors.errors import LocalProtocolError

__all__ = ["CallbackThreads"]

# Callbacks of one kind that run at the same time.
MOST = 40
# More of them that wait for calls of their own: a callback that calls what calls it back has no other end.
MOST_WAITING = 200

T = TypeVar("T")


class CallbackThreads:
    """Runs one kind of callback in threads. Its methods belong to the engine.

    A callback that waits for a call of its own gives its place to others meanwhile: it may wait for one of them.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MOST)

    def __repr__(self) -> str:
        return f"<CallbackThreads {self._limiter.borrowed_tokens} of {self._limiter.total_tokens}>"

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function(*args)`` returns; cancelled, it leaves the thread to itself."""
        token = place_of_thread.set(self.lend)
        try:
            return await trio.to_thread.run_sync(
                partial(function, *args), abandon_on_cancel=True, limiter=self._limiter
            )
        finally:
            place_of_thread.reset(token)

    async def lend(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` for a thread that waits for it.

        Raises:
            LocalProtocolError: `MOST_WAITING` of them wait already.
            Exception: What the function raises.
        """
        # The tasks that come of it are not in the thread.
        place_of_thread.set(None)
        limiter = self._limiter
        if limiter.total_tokens >= MOST + MOST_WAITING:
            raise LocalProtocolError(
                f"{MOST_WAITING} callbacks wait for calls that they have made: does one lead to another for ever?"
            )
        limiter.total_tokens += 1
        try:
            return await function(*args)
        finally:
            limiter.total_tokens -= 1
