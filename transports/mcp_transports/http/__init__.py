"""MCP over HTTP: Streamable HTTP in both eras, and the older HTTP+SSE.

URLs: ``http://HOST:PORT/PATH`` and ``https://…``, served or connected to; ``http+unix://%2Fpath%2Fto.sock/PATH`` for
Unix sockets. `mcp_transports.http.server.HttpServerTransport` and `mcp_transports.http.client.HttpClientTransport` have
the options that a URL cannot express. A server never imports the client's side, nor a client the server's.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from mcp_actors.abc import HttpRequests, HttpRequestTransport
from mcp_transports._transports import TwoSidedTransport

__all__ = ["HttpTransport", "from_url"]


class HttpTransport(TwoSidedTransport):
    """The transport of an HTTP URL, for either side. Only the side that is used is imported, and gets the options.

    Args:
        url: The URL to serve or to connect to.
        options: Keyword arguments of `HttpServerTransport` or `HttpClientTransport`, whichever is used.
    """

    server_side = "mcp_transports.http.server", "HttpServerTransport"
    client_side = "mcp_transports.http.client", "HttpClientTransport"

    def open_requests(self) -> AbstractAsyncContextManager[HttpRequests]:
        """Opens what single requests to the URL are made with; see `HttpClientTransport.open_requests`.

        Raises:
            ValueError: The URL cannot be connected to with these options.
        """
        transport: HttpRequestTransport = self._side(self.client_side)
        return transport.open_requests()


def from_url(url: str, **options: Any) -> HttpTransport:
    """Returns the transport of an HTTP URL. Nothing is opened or imported yet.

    Raises:
        ValueError: the URL names no host or socket; what else is wrong with it is found when it is used.
    """
    if not urlsplit(url).netloc:
        raise ValueError(f"the URL names no host: write {url.partition(':')[0]}://HOST:PORT/PATH")
    return HttpTransport(url, **options)
