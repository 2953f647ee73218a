"""Contracts over HTTP: single requests of a client, and the ASGI application that a `Server` makes of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

__all__ = [
    "AsgiApplication",
    "AsgiMessage",
    "AsgiReceive",
    "AsgiSend",
    "AsgiServer",
    "HttpAnswer",
    "HttpEvent",
    "HttpRequestTransport",
    "HttpRequests",
]


# -- single HTTP requests, below the messages: what a client's binding offers to tools that look at a server -------
#
# A channel hides statuses, headers and sessions, because programs have no use for them. A tool that says whether a
# server follows the rules of Streamable HTTP needs nothing else.


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
    # which is not one: only `Any` fits the tables of all of them.
    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serves one scope: ``http``, ``websocket`` or ``lifespan``."""

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """Serves while the block runs: for ``FastAPI(lifespan=…)``, or within a lifespan of the program's own."""

    def statistics(self) -> Any:
        """Returns a snapshot of the numbers of sessions and streams."""
