"""MCP over HTTP: Streamable HTTP in both eras, and the older HTTP+SSE.

URLs: ``http://HOST:PORT/PATH`` and ``https://…``, served or connected to; ``http+unix://%2Fpath%2Fto.sock/PATH`` for
Unix sockets. What a URL cannot say is said to `mcp_transports.http.server.HttpServerTransport` and
`mcp_transports.http.client.HttpClientTransport`. A server never imports the client's side, nor a client the server's.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from mcp_actors.abc import ClientTransport, FrameChannel, ServerHandler, ServerTransport

__all__ = ["HttpTransport", "from_url"]


class HttpTransport:
    """Either side of a URL; the side that is used is loaded when it is, and gets the ``options``, its own ones."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._options = options

    def __repr__(self) -> str:
        return f"<HttpTransport {self.url}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `HttpServerTransport.serve`."""
        side = importlib.import_module("mcp_transports.http.server")
        transport: ServerTransport = side.HttpServerTransport(self.url, **self._options)
        await transport.serve(handler, task_status=task_status)

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """See `HttpClientTransport.connect`."""
        side = importlib.import_module("mcp_transports.http.client")
        transport: ClientTransport = side.HttpClientTransport(self.url, **self._options)
        return transport.connect()


def from_url(url: str, **options: Any) -> HttpTransport:
    """The transport of an HTTP URL; nothing is opened yet."""
    return HttpTransport(url, **options)
