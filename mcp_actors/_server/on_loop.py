"""Calls functions in the event loop's thread, the only one that changes a server while it serves.

Sync functions of the user run in worker threads and use the same objects as async ones. What those objects change or
send goes through here, so that neither has to know where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from mcp_actors.errors import LocalProtocolError

__all__ = ["on_loop", "on_loop_of_worker"]

T = TypeVar("T")


class _OutsideLoop(LocalProtocolError):
    """This thread is neither that of an event loop nor one of its workers."""


def on_loop(function: Callable[..., T], *args: Any) -> T:
    """Returns ``function(*args)``; a worker thread has the event loop call it, and waits for that.

    Raises:
        LocalProtocolError: This thread has no event loop to ask: Trio did not start it, or that loop has ended.
        Exception: What ``function`` raises.
    """
    if trio.lowlevel.in_trio_run():
        return function(*args)
    began = False

    def call() -> T:
        nonlocal began
        began = True
        return function(*args)

    try:
        return trio.from_thread.run_sync(call)
    except RuntimeError as error:
        if began:
            raise
        raise _OutsideLoop(
            "only the server's event loop and its worker threads may do this while it serves: take token = "
            "trio.lowlevel.current_trio_token() there, and write trio.from_thread.run_sync(f, ..., trio_token=token)"
        ) from error


def on_loop_of_worker(function: Callable[..., T], *args: Any) -> T:
    """As `on_loop`, for what is also legal with no event loop at all: then it calls ``function`` in this thread."""
    try:
        return on_loop(function, *args)
    except _OutsideLoop:
        return function(*args)
