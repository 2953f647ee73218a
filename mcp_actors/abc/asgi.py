"""The types of the ASGI specification, version 3.0, and of the application that a `Server` makes of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

__all__ = ["AsgiApplication", "AsgiMessage", "AsgiReceive", "AsgiSend", "AsgiServer"]

AsgiMessage = MutableMapping[str, Any]
"""A scope, or a message of either side."""
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApplication = Callable[[AsgiMessage, AsgiReceive, AsgiSend], Awaitable[None]]
"""An ASGI application, such as one of Starlette, FastAPI or Quart."""


class AsgiServer(Protocol):
    """The application that `Server.asgi` returns: `mcp_transports.http.asgi.AsgiApp` documents it."""

    documents: tuple[str, ...]
    """The paths of public documents, from the root of the host: the metadata of ``auth``. Empty without it."""

    # Starlette types a scope and the messages as mutable mappings, Hypercorn and Quart each as a typed dictionary,
    # which is none: only `Any` lets the application stand in the tables of all of them.
    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serves one scope: ``http``, ``websocket`` or ``lifespan``."""

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """Serves while the block runs: for ``FastAPI(lifespan=…)``, or within a lifespan of the program's own."""

    def statistics(self) -> Any:
        """Returns a snapshot of the numbers of sessions and streams."""
