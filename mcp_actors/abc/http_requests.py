"""Single HTTP requests, below the messages: what a client's binding over HTTP offers to tools that look at a server.

A channel hides statuses, headers and sessions, because programs have no use for them. A tool that says whether a
server follows the rules of Streamable HTTP needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["HttpAnswer", "HttpEvent", "HttpRequestTransport", "HttpRequests"]


class HttpEvent(NamedTuple):
    """One event of a stream of server-sent events."""

    data: bytes
    id: str | None = None
    name: str = "message"


class HttpAnswer(NamedTuple):
    """A response, as much of it as was waited for."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case; of a header that came several times the values are joined with commas."""
    body: bytes = b""
    """Empty for a stream of events."""
    events: tuple[HttpEvent, ...] = ()
    ended: bool = True
    """Whether it came to its end by itself."""


class HttpRequests(Protocol):
    """Makes requests to one server, each with the headers and the credentials that its transport was given."""

    async def request(
        self,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: float,
        path: str | None = None,
        enough: Callable[[HttpEvent], bool] | None = None,
        linger: float = 0.0,
    ) -> HttpAnswer | None:
        """Sends one request and reads its response. No header but those of HTTP itself is added.

        Args:
            method: Such as ``"POST"``.
            headers: The headers of this request.
            body: Its body; ``None`` for one without.
            timeout: Seconds until the head of the response is there, and again for its body.
            path: Another path (and query) of the same origin than that of the URL.
            enough: Is called with each event of a stream, and returns whether no more of them are waited for.
            linger: Seconds that the stream then has to end by itself.

        Returns:
            The response; ``None`` if its head did not come in time. Cancelled, it closes the connection.

        Raises:
            AuthorizationError: Access could not be had.
            ConnectFailed: No connection could be made.
            ConnectionLost: The connection broke.
            LocalProtocolError: The headers cannot be sent.
            RemoteProtocolError: The body is longer than a message may be, or cannot be decoded.
        """


@runtime_checkable
class HttpRequestTransport(Protocol):
    """A `~mcp_actors.abc.ClientTransport` of a server at an HTTP URL that can make single requests too."""

    def open_requests(self) -> AbstractAsyncContextManager[HttpRequests]:
        """Opens what single requests are made with; its end closes all connections. Nothing is sent before a request.

        Raises:
            ValueError: The URL or an option cannot be used.
        """
