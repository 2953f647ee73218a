"""Opening HTTP channels: URLs, the connection pool, options."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import httpx2
import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_transports.http.client.channel import HttpChannel
from mcp_transports.http.client.http import HttpRequester
from mcp_transports.http.client.pool import ConnectionPool, HttpAddress
from mcp_transports.http.client.receive_queue import ReceiveQueue
from mcp_transports.http.client.senders import ClientSender, PooledSender, RequestSender, shown
from mcp_transports.http.client.session_state import Options, SessionState

__all__ = ["HttpClientTransport", "from_url"]

# Connections beside those of requests: for the session's stream, for answers to the server and notifications.
SPARE_CONNECTIONS = 32
# Servers close idle connections after 5 s and more. A POST on a connection that is being closed is lost, and cannot be
# sent again without knowing whether it was carried out, so we let go first.
KEEPALIVE_EXPIRY = 4.0

# What the protocol says by headers; nobody else may.
RESERVED = frozenset(
    {"accept", "content-type", "content-length", "transfer-encoding", "last-event-id", "mcp-session-id"}
    | {"mcp-protocol-version", "mcp-method", "mcp-name"}
)


class HttpClientTransport:
    """Speaks MCP by HTTP, a `ClientTransport`: Streamable HTTP in both eras, HTTP+SSE if the server knows no other.

    Args:
        url: the server's MCP endpoint: ``http://…``, ``https://…``, or ``http+unix://%2Fpath%2Fto.sock/mcp`` for a Unix
            socket, whose path is percent-encoded. User and password in it become basic authorization.
        client: an `httpx2.AsyncClient` of yours, for proxies, certificates and authorization. It is used as it is, but
            for its timeouts, and not closed. Its pool must have room for ``max_posts`` connections and a few more, or
            answers to the server may wait for calls that wait for them. None, the default, asks on connections of its
            own, at less than half the cost; where the environment names a proxy for the URL, and the server is not on
            this machine, it makes a client that honours it. Either ends with the connection.
        headers: come with every request. Those that the protocol sets are not allowed.
        max_message_bytes: the longest message in either direction; a longer answer is refused and its stream closed.
        listen: open the stream of a legacy session that brings what belongs to no request (protocol §6.4).
        max_posts: requests that may be under way at once, 128 by default; more wait their turn. A modern listen counts
            for as long as it lasts.
        connect_timeout: seconds for a connection to come about, 10 by default. Waiting for answers is timed by the
            client's own clocks, so there is no other timeout on a request.
        message_timeout: seconds for a notification, or an answer to the server, to be accepted, 30 by default.
        resume_attempts: attempts in a row that may fail before a stream that can be resumed is given up, 3 by default:
            about seven seconds.

    Redirections are not followed. Raises `ValueError` for a URL or header that cannot be used.
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
    ) -> None:
        self._url, self._socket, self._peer = _parse(url)
        if client is not None and self._socket is not None:
            raise ValueError(
                "give your own client a transport for the Unix socket, and the URL as http://localhost/…"
            )
        self._client = client
        self._headers = _checked(headers or {})
        self._max_message_bytes = max_message_bytes
        self._connect_timeout = connect_timeout
        self._options = Options(
            listen=listen,
            max_posts=max_posts,
            message_timeout=message_timeout,
            resume_attempts=resume_attempts,
        )

    def __repr__(self) -> str:
        return f"<HttpClientTransport {self._peer}>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Yields a channel. Nothing is sent before the first frame is: what goes wrong then is received as `NoAnswer`.

        Leaving the block, also by cancellation, closes every stream and ends the session within two seconds.
        """
        raised: BaseException | None = None
        async with AsyncExitStack() as stack:
            way = await self._way(stack)
            wire = HttpRequester(way, max_message_bytes=self._max_message_bytes, peer=self._peer)
            talk = SessionState(wire, ReceiveQueue(self._max_message_bytes), self._options)
            channel = HttpChannel(talk)
            async with trio.open_nursery() as nursery:
                await nursery.start(channel.run)
                try:
                    yield channel
                except BaseException as error:
                    raised = error  # raised again outside the nursery, which would put it into a group
                finally:
                    await channel.aclose()
        if raised is not None:
            raise raised

    async def _way(self, stack: AsyncExitStack) -> RequestSender:
        """How the requests go, with what they need put on the stack; a whole client only where it is of use."""
        most = self._options.max_posts + SPARE_CONNECTIONS
        client = self._client
        if client is None and self._socket is None and _has_proxy(self._url):
            limits = httpx2.Limits(
                max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEEPALIVE_EXPIRY
            )
            client = await stack.enter_async_context(httpx2.AsyncClient(limits=limits, verify=_trust()))
        if client is not None:
            return ClientSender(client, self._url, self._headers, connect_timeout=self._connect_timeout)
        secure = self._url.scheme == "https"
        place = HttpAddress(
            host=self._url.raw_host.decode("ascii"),
            port=self._url.port or (443 if secure else 80),
            path=self._socket,
            tls=_trust() if secure else None,
            timeout=self._connect_timeout,
        )
        connections = ConnectionPool(place, most=most, expiry=KEEPALIVE_EXPIRY)
        stack.push_async_callback(connections.aclose)
        return PooledSender(connections, self._url, self._headers)


def _has_proxy(url: httpx2.URL) -> bool:
    """Whether the environment may want it asked through a proxy, which would look for this machine on its own."""
    try:
        local = ip_address(url.host).is_loopback
    except ValueError:
        local = url.host == "localhost"
    return not local and not getproxies().keys().isdisjoint({url.scheme, "all"})


@functools.cache
def _trust() -> ssl.SSLContext:
    """The trusted authorities: reading them takes many milliseconds, so that is done once."""
    return httpx2.create_ssl_context()


def _parse(url: str) -> tuple[httpx2.URL, str | None, str]:
    """(where to, the Unix socket if there is one, what to show)"""
    parts = urlsplit(url)
    try:
        if parts.scheme == "http+unix":
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
        raise ValueError(f"not the URL of an HTTP server: {shown(parsed)}")
    return parsed, None, shown(parsed)


def _checked(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name in headers}
    if reserved := sorted(names & RESERVED):
        raise ValueError(f"the protocol sets these headers itself: {', '.join(reserved)}")
    # Compressed events would come late, and a small compressed message can grow without bounds.
    encoding = {} if "accept-encoding" in names else {"accept-encoding": "identity"}
    return [(name.encode("ascii"), value.encode("utf-8")) for name, value in {**encoding, **headers}.items()]


def from_url(url: str, **options: Any) -> HttpClientTransport:
    """The transport for ``http:``, ``https:`` and ``http+unix:`` URLs; options are those of `HttpClientTransport`."""
    return HttpClientTransport(url, **options)
