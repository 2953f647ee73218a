"""The server's side of the HTTP binding: one listener, its sessions and its streams."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Literal

import attrs
import trio

from mcp_actors.abc import EventLog, ServerHandler
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.budget import BudgetStatistics
from mcp_actors.supervision.containment import Containment, reraised
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import STOP_PART
from mcp_transports._transports import as_engine_errors
from mcp_transports.http.h1.connection import ConnectionCounts
from mcp_transports.http.h1.http_server import PortShare, share_port
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import ListenUrl
from mcp_transports.http.server.authentication import Authenticate, Protection
from mcp_transports.http.server.endpoint import Endpoint
from mcp_transports.http.server.routes import Routes, RouteTable
from mcp_transports.http.server.service import (
    DEFAULT_KEEPALIVE,
    DEFAULT_MAX_SESSIONS,
    DEFAULT_RETRY,
    DEFAULT_SESSION_IDLE,
    DEFAULT_SSE_PATH,
    HttpService,
)
from mcp_transports.http.server.sessions import HttpSessionStatistics

__all__ = ["HttpServerStatistics", "HttpServerTransport"]


@attrs.frozen
class HttpServerStatistics:
    """A snapshot of a listener."""

    sessions: HttpSessionStatistics | None
    """The sessions of Streamable HTTP; ``None`` where it is served without sessions."""
    http_sse_connections: int
    """Connections of HTTP+SSE that are open now."""
    event_streams: int
    """Responses that carry server-sent events now, of all kinds."""
    port: ConnectionCounts | None
    """The connections at its address, with those of other transports there, and the bytes of the bodies that are held
    for them; ``None`` while it is not served."""
    posted: BudgetStatistics | None
    """Bytes of messages of HTTP+SSE that wait to be received, by principal or address; ``None`` without HTTP+SSE."""


class HttpServerTransport:
    """Serves MCP over HTTP at one URL: both eras of Streamable HTTP, and HTTP+SSE beside it. A `ServerTransport`.

    A failure in a request, a stream or a session ends that one alone, and is logged.

    Args:
        url: ``http://HOST:PORT/PATH`` (port 0 for any free one), ``https://…`` with an ``ssl_context``, or
            ``http+unix://%2Frun%2Fx.sock/PATH`` for a Unix socket. Without a path it is ``/mcp``.
        limits: The bounds on HTTP peers.
        max_message_bytes: The longest message that is sent, in bytes. The default, 16 MiB, is that of all bindings.
        allowed_hosts: See `OriginPolicy`. By default only names that lead to the bound address are served.
        allowed_origins: See `OriginPolicy`. By default browsers are served only from the allowed hosts.
        authenticate: ``authenticate(request)`` returns, or is awaited for, who sent a request: a name or a `Principal`
            to which sessions are bound, ``None`` without one, or a `Refusal`. It is called for every request that
            `OriginPolicy` allows, but not for CORS preflights. If it raises, the error is logged and answered with 500.
        auth: A `mcp_actors.auth.ResourceServer`: every request must have an access token for it, and its metadata is
            served to anyone, by GET alone, below ``/.well-known/``. In place of ``authenticate``.
        ssl_context: The context of TLS, for ``https`` only.
        keepalive: Seconds of silence, at most, after which an event stream gets a comment, so that no proxy closes it.
            A POST that is unanswered for as long gets its head and a comment, if its client accepts an event stream:
            what answers it is an event then, with status 200. 0 or ``None`` switches both off.
        sessions: Whether legacy clients get sessions. Without sessions every POST of theirs is served on its own, and
            the server can send its clients no requests. ``"shared"``, for one of several processes, means: if the
            server's shared state lets the other processes find them; if not, HTTP+SSE is not served either.
        session_idle: Seconds, and up to a quarter more, for which a session may have neither a call in flight nor an
            open stream before it is closed. The default, 30 minutes, is that of the official servers.
        max_sessions: The number of sessions at a time; over it ``initialize`` is answered with 503.
        max_sessions_per_peer: The number of sessions at a time of one principal or, without ``authenticate``, of one
            address (of IPv6 a network of 64 bits). The default is the half of ``max_sessions``, so that one client
            leaves the other half to others. A reverse proxy is one address: behind it give ``authenticate``, or
            ``max_sessions`` for both.
        json_replies: Whether POSTs of legacy clients are answered with JSON only. All other messages go to the stream
            of the session's GET then.
        event_log: Keeps events for legacy clients that lost a stream: ``"shared"`` for that of the server's shared
            state, by default a `~mcp_actors.shared.MemoryEventLog`; ``None`` for none.
        retry: Milliseconds after which a client resumes a stream that was closed on purpose (SEP-1699).
        sse_path: The path of HTTP+SSE; ``None`` switches it off.
        routes: What is served beside MCP, by path: functions, ASGI applications, and `health`, by the rules of
            `mcp_transports.http.server.routes`. **What ``auth`` and ``authenticate`` demand is not demanded there.**

    Raises:
        ImportError: ``auth`` needs the extra ``auth``, which is missing.
        TypeError: ``auth`` is not a `ResourceServer`, or a route is not a function of one argument or an application.
        ValueError: ``auth`` and ``authenticate`` are given, the URL cannot be served, paths collide, ``https``
            comes without an ``ssl_context`` or the other way round, ``keepalive`` is negative, or an entry of
            ``allowed_hosts`` or ``allowed_origins`` could never match.
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
        auth: Protection | None = None,
        ssl_context: ssl.SSLContext | None = None,
        keepalive: float | None = DEFAULT_KEEPALIVE,
        sessions: bool | Literal["shared"] = True,
        session_idle: float = DEFAULT_SESSION_IDLE,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        max_sessions_per_peer: int | None = None,
        json_replies: bool = False,
        event_log: EventLog | Literal["shared"] | None = "shared",
        retry: int = DEFAULT_RETRY,
        sse_path: str | None = DEFAULT_SSE_PATH,
        routes: Routes | None = None,
    ) -> None:
        self._listen_url = listen_url = ListenUrl(url)
        if listen_url.secure != (ssl_context is not None):
            raise ValueError("https needs an ssl_context, and http has none")
        self._ssl_context = ssl_context
        self._service = HttpService(
            listen_url.path,
            listen_url.host or "localhost",
            limits=limits,
            max_message_bytes=max_message_bytes,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            authenticate=authenticate,
            auth=auth,
            keepalive=keepalive,
            sessions=sessions,
            session_idle=session_idle,
            max_sessions=max_sessions,
            max_sessions_per_peer=max_sessions_per_peer,
            json_replies=json_replies,
            event_log=event_log,
            retry=retry,
            sse_path=sse_path,
        )
        self._routes = RouteTable(routes or {}, self._service.own_paths())
        # Its part of the port, while it is served.
        self._share: PortShare | None = None
        self._serving = False

    def __repr__(self) -> str:
        service = self._service
        state = f"{service.sessions!r} {service.http_sse!r}" if self._serving else "not served"
        return f"<HttpServerTransport {self._listen_url.url()}: {state}>"

    async def serve(
        self,
        handler: ServerHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled, or until `handler.stopping` is set and all calls in flight have ended.

        It reports its URL, with the real port, once connections are accepted. When it ends, for whatever reason, all
        sessions are closed. Cancelled, it closes all connections at once.

        Raises:
            ConnectFailed: It cannot listen there, or not any more.
            LocalProtocolError: This object is served already.
            RouteStartFailed: An ASGI application at a route could not start.
        """
        if self._serving:
            raise LocalProtocolError(f"{self._listen_url.url()} is served already")
        if self._service.origin_policy.refuses_all:
            log.warning(
                "the listener refuses every request: list its names in the setting allowed_hosts",
                url=self._listen_url.url(),
            )
        self._serving = True
        try:
            await self._serve(handler, task_status)
        finally:
            self._serving = False

    async def _serve(self, handler: ServerHandler, task_status: trio.TaskStatus[str]) -> None:
        beside = self._routes.serving(self._service.origin_policy, handler)
        async with self._routes.started(), self._service.open(handler, beside) as endpoint:
            await self._serve_port(handler, endpoint, task_status)

    async def _serve_port(
        self, handler: ServerHandler, endpoint: Endpoint, task_status: trio.TaskStatus[str]
    ) -> None:
        url, service = self._listen_url, self._service
        documents = () if service.authentication is None else service.authentication.documents
        shared = share_port(
            url,
            endpoint,
            ssl_context=self._ssl_context,
            limits=service.limits,
            documents=documents,
            to_the_end=self._routes.has_health,
            when_full=self._routes.answered_when_full,
        )
        try:
            with as_engine_errors():
                async with shared as self._share:
                    share = self._share
                    with reraised() as body:
                        async with trio.open_nursery() as nursery:
                            service.start_tasks(nursery, handler.stopping, endpoint)
                            stop = _ListenerStop(share, endpoint)
                            with body, handler.stops_with(stop):
                                task_status.started(url.url(share.port))
                                await share.serve(handler.leaving, handler.stopping)
                                # A process that retires ends behind its last connection, and maybe before it is
                                # stopped: clients that come to other nodes still have sessions here.
                                with Containment(STOP_PART):
                                    await stop.before_stop(0.0)
                                await endpoint.until_without_calls()
                            nursery.cancel_scope.cancel(reason="the listener is done")
        finally:
            self._share = None

    def statistics(self) -> HttpServerStatistics:
        """Returns a snapshot of the numbers of sessions, connections and streams."""
        service = self._service
        return HttpServerStatistics(
            service.sessions.statistics() if service.sessions is not None else None,
            len(service.http_sse) if service.http_sse is not None else 0,
            len(service.settings.open_responses),
            self._share.statistics() if self._share is not None else None,
            service.http_sse.posted.statistics() if service.http_sse is not None else None,
        )


@attrs.define(eq=False)
class _ListenerStop:
    """The part of a listener in the stop of its server; a `mcp_actors.abc.StopPart`."""

    share: PortShare
    endpoint: Endpoint
    _begun: bool = False
    _done: trio.Event = attrs.field(factory=trio.Event)

    async def before_stop(self, delay: float) -> None:
        """Closes the port, unless nobody can know yet that the server stops: then its health is told to the end.

        Called again, it waits until that is done.
        """
        if self._begun:
            await self._done.wait()
            return
        self._begun = True
        try:
            await self.share.close(to_the_end=not delay)
            await self.endpoint.before_stop(delay)
        finally:
            self._done.set()

    async def until_answered(self) -> None:
        """Waits for answers of other nodes, and until everything is sent."""
        await self.endpoint.until_answered()
        await self.share.until_sent()

    def cut(self) -> None:
        """Answers what other nodes have not answered."""
        self.endpoint.cut()
