"""A transport for either side of a URL, which imports the side that is used and not the other one.

A server then never loads the modules that only clients need, nor a client those that only servers need.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import trio

from mcp_actors.abc import ClientTransport, FrameChannel, ServerHandler, ServerTransport

__all__ = ["TwoSidedTransport", "statistics_of"]


def statistics_of(transport: ServerTransport | None) -> Any:
    """Returns what a transport says of itself; ``None`` without one, or if it says nothing."""
    statistics = getattr(transport, "statistics", None)
    return None if statistics is None else statistics()


class TwoSidedTransport:
    """A `ServerTransport` and a `ClientTransport`; a subclass names the class of each side and where it is.

    Args:
        url: given to the constructor of the side that is used; nothing is opened yet.
        options: the other arguments of that constructor.
    """

    server_side: ClassVar[tuple[str, str]]
    """Module and class of the server's side."""
    client_side: ClassVar[tuple[str, str]]
    """Module and class of the client's side."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._options = options
        self._served: ServerTransport | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves as the server's side does; raises what its constructor and its ``serve`` raise."""
        transport = self._served = self.for_servers()
        try:
            await transport.serve(handler, task_status=task_status)
        finally:
            self._served = None

    def for_servers(self) -> ServerTransport:
        """Returns the server's side alone; raises what its constructor raises, before anything is opened."""
        transport: ServerTransport = self._side(self.server_side)
        return transport

    def statistics(self) -> Any:
        """Returns what the server's side says of itself; ``None`` while it is not served, or if it says nothing."""
        return statistics_of(self._served)

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Connects as the client's side does; raises what its constructor and its ``connect`` raise."""
        transport: ClientTransport = self._side(self.client_side)
        return transport.connect()

    def _side(self, where: tuple[str, str]) -> Any:
        module, name = where
        return getattr(importlib.import_module(module), name)(self.url, **self._options)
