"""The server's side of the HTTP binding: one listener, its sessions and its streams."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from typing import Literal

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.listen_url import ListenUrl
from mcp_transports.http.port_sharing import share_port
from mcp_transports.http.server.endpoint import Authenticate, Endpoint
from mcp_transports.http.server.event_store import EventStore, MemoryEventStore
from mcp_transports.http.server.http_sse import HttpSseChannels
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.sessions import HttpSessionStatistics, SessionTable
from mcp_transports.http.server.sse_response import OpenSseResponses
from mcp_transports.http.server.streams import StreamSettings

__all__ = ["HttpServerStatistics", "HttpServerTransport"]

log = logging.getLogger("mcp_transports.http")

# Of an event stream: a quarter of the shortest time after which proxies in use hang up on a silent one.
DEFAULT_KEEPALIVE = 15.0
# The time after which the protocol's official servers forget a client too.
DEFAULT_SESSION_IDLE = 1800.0
# Sessions cost some KiB each: this many is half a gigabyte, and more than one process's connections.
DEFAULT_MAX_SESSIONS = 50_000
# Milliseconds after which a client comes back whose stream was closed on purpose: soon, but no tight loop.
DEFAULT_RETRY = 500
DEFAULT_SSE_PATH = "/sse"
_MESSAGES_PATH = "/messages"


@attrs.frozen
class HttpServerStatistics:
    """A snapshot of a listener."""

    sessions: HttpSessionStatistics | None
    """Of Streamable HTTP; ``None`` where it is served without sessions."""
    pipes: int
    """Connections of HTTP+SSE."""
    event_streams: int
    """Responses that carry server-sent events now, of all kinds."""


class HttpServerTransport:
    """Serves MCP over HTTP at one URL: both eras of Streamable HTTP, and HTTP+SSE beside it. A `ServerTransport`.

    ``url`` is ``http://HOST:PORT/PATH`` (port 0 for any free one), ``https://…`` with an ``ssl_context``, or
    ``http+unix://%2Frun%2Fx.sock/PATH`` for a Unix socket. Without a path it is ``/mcp``.

    - ``limits`` bounds what HTTP peers may take (`HttpLimits`), ``max_message_bytes`` (16 MiB) what is sent to them;
    - ``allowed_hosts`` and ``allowed_origins`` are those of `OriginPolicy`: by default what leads to the bound
      address alone, and browsers only from there;
    - ``authenticate(request)`` returns, or is awaited for, who a request is from: a name that sessions are bound to,
      ``None`` for anybody, or a `Refusal`. It sees every request that `OriginPolicy` lets through, but no
      CORS preflights. What it raises is answered with 500 and logged;
    - ``keepalive`` (15 s): a comment goes out on event streams that were silent so long.

    For legacy clients:

    - ``sessions`` (on): without them every POST stands alone, and the server can ask its clients nothing;
    - ``session_idle`` (30 min): a session in which nothing is in flight and to which nobody listens is closed after so
      long, up to a quarter later; ``max_sessions`` (50,000): over it ``initialize`` is answered with 503;
    - ``json_replies`` (off): POSTs are answered with JSON alone; what else there is to say goes to the session's GET;
    - ``event_store``: where events are kept for clients that lost a stream (a `MemoryEventStore` if absent, ``None``
      for none); ``retry`` (500 ms): when a client comes back whose stream was closed on purpose;
    - ``sse_path`` (``/sse``): HTTP+SSE is served there, ``None`` switches it off.

    Raises `ValueError` for a URL that cannot be served, or paths that collide.
    """

    def __init__(
        self,
        url: str,
        *,
        limits: HttpLimits | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        authenticate: Authenticate | None = None,
        ssl_context: ssl.SSLContext | None = None,
        keepalive: float = DEFAULT_KEEPALIVE,
        sessions: bool = True,
        session_idle: float = DEFAULT_SESSION_IDLE,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        json_replies: bool = False,
        event_store: EventStore | Literal["memory"] | None = "memory",
        retry: int = DEFAULT_RETRY,
        sse_path: str | None = DEFAULT_SSE_PATH,
    ) -> None:
        self._place = place = ListenUrl(url)
        if place.secure != (ssl_context is not None):
            raise ValueError("https needs an ssl_context, and http has none")
        if sse_path is not None and (place.path in (sse_path, _MESSAGES_PATH) or sse_path == _MESSAGES_PATH):
            raise ValueError(
                f"HTTP+SSE cannot be served at {sse_path} beside {place.path}: give another sse_path"
            )
        self._limits = limits or HttpLimits()
        self._ssl_context = ssl_context
        self._guard = OriginPolicy(
            place.host or "localhost", allowed_hosts=allowed_hosts, allowed_origins=allowed_origins
        )
        self._authenticate = authenticate
        self._with_sessions = sessions
        self._session_idle = session_idle
        self._max_sessions = max_sessions
        self._json_replies = json_replies
        self._sse_path = sse_path
        self._open_streams = OpenSseResponses(keepalive)
        self.event_store = MemoryEventStore() if event_store == "memory" else event_store
        """Where events are kept; a `MemoryEventStore` has statistics."""
        self._settings = StreamSettings(
            self._open_streams, max_message_bytes, self.event_store, json_replies, retry
        )
        self._sessions: SessionTable | None = None
        self._pipes: HttpSseChannels | None = None
        self._serving = False

    def __repr__(self) -> str:
        state = f"{self._sessions!r} {self._pipes!r}" if self._serving else "not served"
        return f"<HttpServerTransport {self._place.url()}: {state}>"

    async def serve(
        self,
        handler: ServerHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled, or until `handler.stopping` is set and all calls in flight have ended.

        Reports its URL, with the real port, once connections are accepted. On every way out all sessions are closed.
        Raises `ConnectFailed` when it cannot listen there, `LocalProtocolError` if this object is served already.
        """
        if self._serving:
            raise LocalProtocolError(f"{self._place.url()} is served already")
        if self._guard.refuses_all:
            log.warning("%s answers nobody: list its names in the setting allowed_hosts", self._place.url())
        self._serving = True
        try:
            await self._serve(handler, task_status)
        finally:
            self._serving = False

    async def _serve(self, handler: ServerHandler, task_status: trio.TaskStatus[str]) -> None:
        place = self._place
        endpoint = self._endpoint(handler)
        try:
            async with (
                share_port(place, endpoint, ssl_context=self._ssl_context, limits=self._limits) as seat,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._open_streams.keep_alive, name="keep event streams alive")
                if self._sessions is not None:
                    nursery.start_soon(self._sessions.expire, name="expire sessions")
                nursery.start_soon(_stop, handler.stopping, endpoint, name="stop event streams")
                task_status.started(place.url(seat.port))
                await seat.serve(handler.stopping)
                nursery.cancel_scope.cancel(reason="the listener is done")
        finally:
            endpoint.close()

    def _endpoint(self, handler: ServerHandler) -> Endpoint:
        self._sessions = self._pipes = None
        if self._with_sessions:
            self._sessions = SessionTable(
                self._settings, idle=self._session_idle, max_sessions=self._max_sessions
            )
        if self._sse_path is not None:
            self._pipes = HttpSseChannels(self._open_streams, _MESSAGES_PATH, self._settings.longest)
        return Endpoint(
            handler,
            self._guard,
            self._open_streams,
            path=self._place.path,
            longest=self._settings.longest,
            sessions=self._sessions,
            pipes=self._pipes,
            sse_path=self._sse_path or "",
            messages_path=_MESSAGES_PATH,
            json_replies=self._json_replies,
            authenticate=self._authenticate,
        )

    def statistics(self) -> HttpServerStatistics:
        """What is open now."""
        return HttpServerStatistics(
            self._sessions.statistics() if self._sessions is not None else None,
            len(self._pipes) if self._pipes is not None else 0,
            len(self._open_streams),
        )


async def _stop(stopping: trio.Event, endpoint: Endpoint) -> None:
    await stopping.wait()
    endpoint.stop()
