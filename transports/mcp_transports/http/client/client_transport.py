"""The transport of an HTTP client: it reads the URL and the options, and chooses the sender of the requests.

It opens a channel, or, for tools that look at responses, makes single requests.
"""

from __future__ import annotations

import functools
import importlib
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import httpx2
import trio

from mcp_actors.abc import FrameChannel, HttpAnswer, HttpEvent
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.auth.client.settings import BearerToken, ClientAuth, OAuth
from mcp_actors.supervision.containment import reraised, start_and_wait
from mcp_actors.supervision.task_kinds import HTTP_CHANNEL
from mcp_transports.http.client.channel import HttpChannel
from mcp_transports.http.client.http import (
    HttpRequester,
    HttpResponse,
    RequestBody,
    StreamPosition,
    read_events,
)
from mcp_transports.http.client.pool import ConnectionPool, HttpAddress
from mcp_transports.http.client.senders import ClientSender, PooledSender, RequestSender, without_secrets
from mcp_transports.http.client.session_state import HttpClientOptions, ReceiveQueue, SessionState

__all__ = ["HttpClientTransport", "SingleRequests", "from_url"]

# Connections in addition to those for requests: for the stream of the session, answers to the server, notifications.
SPARE_CONNECTIONS = 32
# Seconds. Servers close idle connections after 5 s or more. A POST on a connection that is being closed is lost, and
# must not be repeated, because it may have been carried out. So we close idle connections before the server does.
KEEPALIVE_EXPIRY = 4.0

# The headers that the protocol sets. A user must not set them.
RESERVED = frozenset(
    {"accept", "content-type", "content-length", "transfer-encoding", "last-event-id", "mcp-session-id"}
    | {"mcp-protocol-version", "mcp-method", "mcp-name"}
)

# Events of one response that are kept: a server may send them without an end.
MAX_EVENTS = 1000


class Authorizing(Protocol):
    """The access of one channel, seen from the transport: `mcp_transports.auth.authorizer.Authorizer`."""

    on_new_access: Callable[[], object]
    on_new_token: Callable[[], object]

    def close(self) -> None: ...


class HttpClientTransport:
    """Speaks MCP by HTTP: Streamable HTTP in every revision, and HTTP+SSE if the server knows nothing else.

    It is a `~mcp_actors.abc.ClientTransport`. Redirections are not followed, but for one that
    adds a slash at the end of the path or takes it away.

    Args:
        url: the server's MCP endpoint: ``http://…``, ``https://…``, or ``http+unix://%2Fpath%2Fto.sock/mcp`` for a Unix
            socket, whose path is percent-encoded. User and password in it become basic authorization.
        client: an `httpx2.AsyncClient`, for proxies, certificates and authorization. It is used with its own settings,
            except for its timeouts, and is not closed. Its pool must allow ``max_posts`` connections and a few more,
            because an answer to the server must not wait for the call that needs it. ``None``, the default, uses
            connections of its own, at less than half the cost. If the environment names a proxy for the URL, and the
            server is not on this machine, it makes a client that uses the proxy. Both end with the channel.
        headers: headers that every request has. Those that the protocol sets are not allowed.
        max_message_bytes: the longest message in either direction, 16 MiB by default; a longer answer is refused and
            its stream closed.
        listen: whether to open the stream of a session, for messages that belong to no request (MCP 2025-11-25,
            Transports, Listening for Messages from the Server). The default is true.
        max_posts: requests in flight at once, 128 by default; more wait. A ``subscriptions/listen`` counts for as long
            as it lasts.
        connect_timeout: seconds for a connection to be made, 10 by default. The deadlines of the client's calls bound
            the wait for a response, so a request has no other timeout.
        message_timeout: seconds for a notification, or an answer to the server, to be accepted, 30 by default.
        resume_attempts: failures in a row after which a stream is not resumed any more, 3 by default: about seven
            seconds.
        auth: the authorization of every request: `~mcp_actors.auth.OAuth` or `~mcp_actors.auth.BearerToken`. A 401 or
            403 leads to a new token, or to a person who logs in, and the request is sent again. While a person is
            asked, no clock of the connection's calls runs. Without it such a request fails by `AccessRefused`, with it
            by an `~mcp_actors.errors.AuthorizationError`.

    Raises:
        ValueError: the URL or a header cannot be used, ``client`` was given with the URL of a Unix socket, or ``auth``
            with other credentials: an ``authorization`` header, user and password in the URL, or a client with auth.
        TypeError: ``auth`` is nothing of the above.
    """

    def __init__(
        self,
        url: str,
        *,
        client: httpx2.AsyncClient | None = None,
        headers: Mapping[str, str] | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        listen: bool = True,
        max_posts: int = 128,
        connect_timeout: float = 10.0,
        message_timeout: float = 30.0,
        resume_attempts: int = 3,
        auth: ClientAuth | None = None,
    ) -> None:
        self._url, self._socket, self._peer = _parse(url)
        if client is not None and self._socket is not None:
            raise ValueError(
                "give your own client a transport for the Unix socket, and the URL as http://localhost/…"
            )
        if auth is not None:
            _check_auth(auth, self._url, self._socket, headers or {}, client)
        self._client = client
        self._headers = _checked(headers or {})
        self._max_message_bytes = max_message_bytes
        self._connect_timeout = connect_timeout
        self._options = HttpClientOptions(
            listen=listen,
            max_posts=max_posts,
            message_timeout=message_timeout,
            resume_attempts=resume_attempts,
            auth=auth,
        )

    def __repr__(self) -> str:
        return f"<HttpClientTransport {self._peer}>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Yields a channel. Nothing is sent before the first frame, whose failure is received as a `NoAnswer`.

        Leaving the block, also by cancellation, closes every stream and ends the session within two seconds.
        """
        with reraised() as body:
            async with AsyncExitStack() as stack:
                sender = await self._sender(stack)
                async with trio.open_nursery() as nursery:
                    authorizer: Authorizing | None = None
                    if (auth := self._options.auth) is not None:
                        sender, authorizer = self._authorized(auth, sender, nursery)
                    requester = HttpRequester(
                        sender, max_message_bytes=self._max_message_bytes, peer=self._peer
                    )
                    state = SessionState(requester, ReceiveQueue(self._max_message_bytes), self._options)
                    if authorizer is not None:
                        authorizer.on_new_access = state.has_new_access
                        authorizer.on_new_token = state.new_token.unpark_all
                    channel = HttpChannel(state)
                    await start_and_wait(
                        nursery, HTTP_CHANNEL, channel.run, about=self._peer, on_crash=state.end_after_crash
                    )
                    with body:
                        yield channel
                    await channel.aclose()
                    if authorizer is not None:
                        authorizer.close()

    @asynccontextmanager
    async def open_requests(self) -> AsyncIterator[SingleRequests]:
        """Yields what single requests are made with, for tools that look at the responses of a server.

        Each of them has the headers and the authorization of this transport. Leaving the block closes all connections.
        """
        with reraised() as body:
            async with AsyncExitStack() as stack:
                sender = await self._sender(stack)
                async with trio.open_nursery() as nursery:
                    authorizer: Authorizing | None = None
                    if (auth := self._options.auth) is not None:
                        sender, authorizer = self._authorized(auth, sender, nursery)
                    with body:
                        yield SingleRequests(
                            HttpRequester(sender, max_message_bytes=self._max_message_bytes, peer=self._peer)
                        )
                    if authorizer is not None:
                        authorizer.close()

    def _authorized(
        self, auth: ClientAuth, sender: RequestSender, nursery: trio.Nursery
    ) -> tuple[RequestSender, Authorizing]:
        """Returns a sender with credentials, and who has them. Only a client with ``auth`` imports what that needs."""
        authorizer = importlib.import_module("mcp_transports.auth.authorizer").Authorizer(
            auth, str(self._url.copy_with(fragment=None)), nursery
        )
        senders = importlib.import_module("mcp_transports.http.client.authorized_sender")
        return senders.AuthorizedSender(sender, authorizer), authorizer

    async def _sender(self, stack: AsyncExitStack) -> RequestSender:
        """Returns the sender of the requests, and registers with the stack how to close what it uses."""
        max_connections = self._options.max_posts + SPARE_CONNECTIONS
        client = self._client
        if client is None and self._socket is None and _has_proxy(self._url):
            limits = httpx2.Limits(
                max_connections=max_connections,
                max_keepalive_connections=max_connections,
                keepalive_expiry=KEEPALIVE_EXPIRY,
            )
            client = await stack.enter_async_context(
                httpx2.AsyncClient(limits=limits, verify=_trusted_authorities())
            )
        if client is not None:
            return ClientSender(client, self._url, self._headers, connect_timeout=self._connect_timeout)
        secure = self._url.scheme == "https"
        address = HttpAddress(
            host=self._url.raw_host.decode("ascii"),
            port=self._url.port or (443 if secure else 80),
            unix_path=self._socket,
            tls=_trusted_authorities() if secure else None,
            connect_timeout=self._connect_timeout,
        )
        pool = ConnectionPool(address, max_connections=max_connections, keepalive_expiry=KEEPALIVE_EXPIRY)
        stack.push_async_callback(pool.aclose)
        return PooledSender(pool, self._url, self._headers)


def _check_auth(
    auth: ClientAuth,
    url: httpx2.URL,
    unix_path: str | None,
    headers: Mapping[str, str],
    client: httpx2.AsyncClient | None,
) -> None:
    """Raises for ``auth`` of another type, and for a second set of credentials beside it."""
    if not isinstance(auth, OAuth | BearerToken):
        raise TypeError(f"auth is OAuth(...) or BearerToken(...), not {type(auth).__name__}")
    if unix_path is not None and isinstance(auth, OAuth):
        raise ValueError("a server at a Unix socket has no URL that OAuth could be about; use BearerToken")
    others = {
        "the header 'authorization'": any(name.lower() == "authorization" for name in headers),
        "user and password in the URL": bool(url.userinfo),
        "a client that has credentials": client is not None
        and (client.auth is not None or "authorization" in client.headers),
    }
    if second := [name for name, is_there in others.items() if is_there]:
        raise ValueError(f"auth= and {second[0]} would be two sets of credentials: give one of them")


def _has_proxy(url: httpx2.URL) -> bool:
    """Whether the environment names a proxy for the URL, which is never used for servers on this machine."""
    try:
        local = ip_address(url.host).is_loopback
    except ValueError:
        local = url.host == "localhost"
    return not local and not getproxies().keys().isdisjoint({url.scheme, "all"})


@functools.cache
def _trusted_authorities() -> ssl.SSLContext:
    """Returns the context with the trusted authorities. Reading them takes many milliseconds, so it is done once."""
    return httpx2.create_ssl_context()


def _parse(url: str) -> tuple[httpx2.URL, str | None, str]:
    """Returns the URL to request, the path of the Unix socket if there is one, and the URL to show."""
    parts = urlsplit(url)
    try:
        if parts.scheme == "http+unix":
            if sys.platform == "win32":
                raise ValueError("Python has no Unix sockets on Windows: use http: at 127.0.0.1")
            path = unquote(parts.netloc)
            if not path:
                raise ValueError(
                    "http+unix needs the percent-encoded path of a socket: http+unix://%2Fpath.sock/mcp"
                )
            inner = httpx2.URL(parts._replace(scheme="http", netloc="localhost").geturl())
            return inner, path, f"http+unix://{parts.netloc}{parts.path}"
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"not the URL of an HTTP server: {without_secrets(parsed)}")
    return parsed, None, without_secrets(parsed)


def _checked(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name in headers}
    if reserved := sorted(names & RESERVED):
        raise ValueError(f"the protocol sets these headers itself: {', '.join(reserved)}")
    # Compressed events would arrive late, and a small compressed message can grow without bounds.
    encoding = {} if "accept-encoding" in names else {"accept-encoding": "identity"}
    return [(name.encode("ascii"), value.encode("utf-8")) for name, value in {**encoding, **headers}.items()]


def from_url(url: str, **options: Any) -> HttpClientTransport:
    """Returns the transport for ``http:``, ``https:`` and ``http+unix:`` URLs.

    Options and errors are those of `HttpClientTransport`. The entry points of this project name this function.
    """
    return HttpClientTransport(url, **options)


class SingleRequests:
    """Makes single requests; a `~mcp_actors.abc.HttpRequests`, made by `HttpClientTransport.open_requests`."""

    def __init__(self, requester: HttpRequester) -> None:
        self._requester = requester

    def __repr__(self) -> str:
        return f"<SingleRequests {self._requester.peer}>"

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
        """Sends one request and reads its response; see `HttpRequests.request`, whose errors it raises."""
        requester = self._requester
        if path is not None:
            parts = urlsplit(path)
            requester = requester.with_url(
                requester.url.copy_with(path=parts.path, query=parts.query.encode() or None, fragment=None)
            )
        lines = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers.items()]
        data = None if body is None else RequestBody(body, trio.Event())
        response: HttpResponse | None = None
        opened = requester.request(method, lines, data)
        with trio.move_on_after(timeout):
            response = await opened.__aenter__()
        if response is None:
            return None
        try:
            return await _read(response, timeout, enough, linger)
        finally:
            with trio.CancelScope(shield=True):
                # Closing a connection does not wait for the peer.
                await opened.__aexit__(None, None, None)


async def _read(
    response: HttpResponse, timeout: float, enough: Callable[[HttpEvent], bool] | None, linger: float
) -> HttpAnswer:
    headers = response.all_headers()
    if not response.is_event_stream:
        body, ended = b"", False
        with trio.move_on_after(timeout):
            body, ended = await response.read_body(), True
        return HttpAnswer(response.status, headers, body, (), ended)
    events: list[HttpEvent] = []
    ended = False
    with trio.move_on_after(timeout) as scope:
        async with aclosing(read_events(response, StreamPosition())) as stream:
            async for each in stream:
                event = HttpEvent(each.data, each.id, each.event)
                events.append(event)
                if len(events) >= MAX_EVENTS:
                    break
                if enough is not None and enough(event):
                    scope.deadline = min(scope.deadline, trio.current_time() + linger)
            else:
                ended = True
    return HttpAnswer(response.status, headers, b"", tuple(events), ended)
