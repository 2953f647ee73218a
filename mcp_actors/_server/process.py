"""A process that serves: the signals that stop it, the hint on its terminal, and its garbage collector."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

from mcp_actors.supervision.containment import one_error, start_again
from mcp_actors.supervision.platform import STOP_SIGNALS, join_words
from mcp_actors.supervision.task_kinds import SIGNALS

__all__ = [
    "rare_full_passes",
    "serve_until_signal",
    "write_terminal_hint",
]


# -- The signals that stop a server which runs in a loop of its own ---


class StoppableServer(Protocol):
    """A server, as far as signals need it."""

    def stop(self) -> None:
        """Stops it, without waiting."""


async def serve_until_signal(server: StoppableServer, serve: Callable[[], Awaitable[None]]) -> None:
    """Serves, and stops the server at the first signal; a second one cancels what is left.

    Args:
        server: The server.
        serve: Serves it. What it raises is raised, alone and not in a group.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread alone, whose owner decides about them.
        await serve()
        return
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        with one_error():
            async with trio.open_nursery() as nursery:
                start_again(nursery, SIGNALS, _stop_on, server, signals, nursery.cancel_scope)
                await serve()
                nursery.cancel_scope.cancel(reason="served")


async def _stop_on(
    server: StoppableServer, signals: AsyncIterator[int], everything: trio.CancelScope
) -> None:
    is_second = False
    async for _ in signals:
        if is_second:
            everything.cancel(reason="a second signal")
        server.stop()
        is_second = True


# -- A line for a person who has typed the name of a stdio server's program, and sees nothing happen ---

_STDIN, _STDERR = 0, 2


def write_terminal_hint(server: str) -> None:
    """Writes to stderr what ``server`` waits for, how to try it and how to stop it, if a person sits there.

    Nothing is written unless both stdin and stderr are a terminal: a client that starts the server connects its stdin
    to a pipe or socket.
    """
    if not (os.isatty(_STDIN) and os.isatty(_STDERR)):
        return
    target = join_words([f"stdio:{join_words(sys.orig_argv)}"])
    line = (
        f"{server} speaks MCP over standard input and output, and waits for a client's messages."
        f" To try it: mcp-actors list {target}. Ctrl-C stops it.\n"
    )
    with suppress(OSError):  # the terminal has gone
        os.write(_STDERR, line.encode("utf-8", "replace"))


# -- The garbage collector ---

# Python's defaults suit programs with few long-lived objects. Ten thousand connections are millions of objects: a full
# pass over them stops everything for a second and finds next to nothing, because the engine makes no reference cycles
# for a call. With these thresholds young objects are still collected, every 50,000 new ones, and full passes come after
# 50 million.
THRESHOLDS = (50_000, 50, 20)


@contextmanager
def rare_full_passes() -> Iterator[None]:
    """Makes full passes rare within the block. It is not for programs that only embed a server."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
