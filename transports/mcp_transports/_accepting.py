"""Accepting connections from listening sockets, until the server stops or its process retires."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from mcp_actors.supervision import start_again
from mcp_actors.task_kinds import ACCEPT
from mcp_transports._inherited import at_retirement
from mcp_transports._sockets import ListenError, ListeningSocket

__all__ = ["accept_until"]

ListenerT = TypeVar("ListenerT", bound=ListeningSocket)


async def accept_until(
    stopping: trio.Event,
    listeners: Sequence[ListenerT],
    arrived: Callable[[ListenerT, list[tuple[socket.socket, object]]], object],
    connections: Callable[[], int],
) -> ListenError | None:
    """Accepts from every listener, each in a task of its own, until ``stopping`` is set or this process retires.

    A task that crashes is started again. A listening socket that is broken ends all of this: its address is served no
    more, and starting again would not help.

    Args:
        stopping: Ends the accepting; nothing that was accepted is lost.
        listeners: The caller closes them.
        arrived: Called with a listener and its new connections, at least one. Must not wait.
        connections: Returns how many of them are open.

    Returns:
        Why a listener cannot accept any more, or ``None`` when it was told to end.
    """
    broken: list[ListenError] = []

    async def accept(listener: ListenerT) -> None:
        try:
            while True:
                arrived(listener, await listener.accept_many(connections))
        except ListenError as error:
            broken.append(error)
            accepting.cancel_scope.cancel(reason="a listening socket is broken")

    def retire() -> None:
        accepting.cancel_scope.cancel(reason="another process accepts in place of this one")

    async with trio.open_nursery() as accepting:
        with at_retirement(retire):
            for listener in listeners:
                start_again(accepting, ACCEPT, accept, listener, about=f"at {listener.where('tcp')}")
            await stopping.wait()
            accepting.cancel_scope.cancel(reason="the server stops")
    return broken[0] if broken else None
