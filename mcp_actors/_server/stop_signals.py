"""The signals that stop a server which runs in a loop of its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import trio

from mcp_actors._exception_groups import one_error
from mcp_actors.platform.signals import STOP_SIGNALS
from mcp_actors.supervision import start_again
from mcp_actors.task_kinds import SIGNALS

__all__ = ["serve_until_signal"]


class StoppableServer(Protocol):
    """A server, as far as signals need it."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""

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
    async for _ in signals:
        if server.stopping:
            everything.cancel(reason="a second signal")
        server.stop()
