"""Calls functions in the event loop's thread, the only one that changes a server while it serves.

Functions of the user run in worker threads and in asyncio loops, too, and use the same objects there as async ones in
the event loop do. What those objects change or send goes through here, so that neither has to know where it runs.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from mcp_actors.errors import LocalProtocolError

__all__ = ["ServingLoop", "on_loop"]

# Seconds for which a thread waits for the event loop, which is never busy for so long unless something blocks it.
LONGEST_WAIT = 30.0

T = TypeVar("T")


class ServingLoop:
    """The event loop in which a server is served, while it is."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"<ServingLoop {'none' if self._token is None else 'serving'}>"

    def begin(self) -> bool:
        """The server is served in the loop that runs here. Returns whether it was not served before.

        Raises:
            LocalProtocolError: It is served in another loop.
        """
        token = trio.lowlevel.current_trio_token()
        if token is self._token:
            return False
        if self._lives():
            raise LocalProtocolError(
                "the server is served in another event loop of this program (mcp_actors.asyncio, mcp_actors.sync and "
                "server.asgi() have one together): serve it in one at a time, or make a Server for each"
            )
        self._token, self._process = token, os.getpid()
        return True

    def _lives(self) -> bool:
        """Whether the loop lives. A fork has a copy of what its parent serves, and no loop."""
        if self._token is None or self._process != os.getpid():
            return False
        try:
            self._token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return False
        return True

    def end(self) -> None:
        """The server is served no longer."""
        self._token = None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """As `on_loop`; while the server is not served, calls ``function`` in this thread."""
        token = self._token
        return function(*args) if token is None else on_loop(token, function, *args)


def _nothing() -> None:
    pass


def on_loop(token: trio.lowlevel.TrioToken, function: Callable[..., T], *args: Any) -> T:
    """Returns ``function(*args)``, called in the event loop of ``token``. Any other thread waits for that.

    Raises:
        LocalProtocolError: That loop has ended, or something has blocked it for `LONGEST_WAIT` seconds.
        Exception: What ``function`` raises.
    """
    if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
        return function(*args)
    answers: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()
    call = partial(copy_context().run, function, *args)
    try:
        token.run_sync_soon(lambda: answers.put(outcome.capture(call)))
        return answers.get(timeout=LONGEST_WAIT).unwrap()
    except trio.RunFinishedError:
        raise LocalProtocolError("the event loop in which the server was served has ended") from None
    except queue.Empty:
        raise LocalProtocolError(
            f"the server's event loop is blocked: it has answered nothing for {LONGEST_WAIT:g} s"
        ) from None
