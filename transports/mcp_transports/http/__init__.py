"""MCP over HTTP: Streamable HTTP in both eras, and the older HTTP+SSE.

URLs: ``http://HOST:PORT/PATH`` and ``https://…``, served or connected to; ``http+unix://%2Fpath%2Fto.sock/PATH`` for
Unix sockets. `mcp_transports.http.server.HttpServerTransport` and `mcp_transports.http.client.HttpClientTransport` have
the options that a URL cannot express. A server never imports the client's side, nor a client the server's.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import trio

from mcp_actors.abc import (
    ClientTransport,
    FrameChannel,
    HttpRequests,
    HttpRequestTransport,
    ServerHandler,
    ServerTransport,
)
from mcp_transports._two_sided import statistics_of

__all__ = ["HttpTransport", "from_url"]


class HttpTransport:
    """The transport of an HTTP URL, for either side. Only the side that is used is imported, and gets the options.

    Args:
        url: The URL to serve or to connect to.
        options: Keyword arguments of `HttpServerTransport` or `HttpClientTransport`, whichever is used.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._options = options
        self._served: ServerTransport | None = None

    def __repr__(self) -> str:
        return f"<HttpTransport {self.url}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves the URL; see `HttpServerTransport.serve`.

        Raises:
            ValueError: The URL cannot be served with these options.
            ConnectFailed: The address cannot be listened at.
        """
        side = importlib.import_module("mcp_transports.http.server")
        transport: ServerTransport = side.HttpServerTransport(self.url, **self._options)
        self._served = transport
        try:
            await transport.serve(handler, task_status=task_status)
        finally:
            self._served = None

    def statistics(self) -> Any:
        """Returns what the server's side says of itself; ``None`` while it is not served, or if it says nothing."""
        return statistics_of(self._served)

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Connects to the URL; see `HttpClientTransport.connect`.

        Raises:
            ValueError: The URL cannot be connected to with these options.
        """
        side = importlib.import_module("mcp_transports.http.client")
        transport: ClientTransport = side.HttpClientTransport(self.url, **self._options)
        return transport.connect()

    def open_requests(self) -> AbstractAsyncContextManager[HttpRequests]:
        """Opens what single requests to the URL are made with; see `HttpClientTransport.open_requests`.

        Raises:
            ValueError: The URL cannot be connected to with these options.
        """
        side = importlib.import_module("mcp_transports.http.client")
        transport: HttpRequestTransport = side.HttpClientTransport(self.url, **self._options)
        return transport.open_requests()


def from_url(url: str, **options: Any) -> HttpTransport:
    """Returns the transport of an HTTP URL. Nothing is opened or imported yet.

    Raises:
        ValueError: the URL names no host or socket; what else is wrong with it is found when it is used.
    """
    if not urlsplit(url).netloc:
        raise ValueError(f"the URL names no host: write {url.partition(':')[0]}://HOST:PORT/PATH")
    return HttpTransport(url, **options)
