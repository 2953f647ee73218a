"""Shared by the transports of several bindings: the choice of the side of a URL, and the errors of listening.

The transport of a URL imports the side that is used and not the other one, so that a server never loads the modules
that only clients need, nor a client those of servers.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, ClassVar

import trio

from mcp_actors.abc import ClientTransport, FrameChannel, ServerHandler, ServerTransport
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports._sockets import InvalidSocketPath, ListenError

__all__ = ["TwoSidedTransport", "as_engine_errors"]


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
        """Returns the statistics of the server's side; ``None`` while it is not served, or if it has none."""
        statistics = getattr(self._served, "statistics", None)
        return None if statistics is None else statistics()

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Connects as the client's side does; raises what its constructor and its ``connect`` raise."""
        transport: ClientTransport = self._side(self.client_side)
        return transport.connect()

    def _side(self, where: tuple[str, str]) -> Any:
        module, name = where
        return getattr(importlib.import_module(module), name)(self.url, **self._options)


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """Translates the errors of listening for the users of the engine.

    Raises:
        ConnectFailed: Instead of `ListenError`.
        LocalProtocolError: Instead of `InvalidSocketPath`.
    """
    try:
        yield
    except ListenError as error:
        raise ConnectFailed(str(error)) from error.__cause__
    except InvalidSocketPath as error:
        raise LocalProtocolError(str(error)) from None
