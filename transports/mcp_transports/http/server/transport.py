"""The server's side of the HTTP binding: one listener, its sessions and its streams."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Literal

import attrs
import trio

from mcp_actors.abc import EventLog, ServerHandler
from mcp_actors.budget import Budget, BudgetStatistics
from mcp_actors.errors import LocalProtocolError
from mcp_actors.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.logging import log
from mcp_actors.supervision import reraised, start_again
from mcp_actors.task_kinds import EVENT_STREAMS, SESSION_EXPIRY, STOP_STREAMS
from mcp_transports._listen_errors import as_engine_errors
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.listen_url import ListenUrl
from mcp_transports.http.h1.server_state import ConnectionCounts
from mcp_transports.http.h1.shared_port import PortShare
from mcp_transports.http.port_sharing import share_port
from mcp_transports.http.server.authentication import Authenticate, Protection, authentication_of
from mcp_transports.http.server.endpoint import Endpoint, EndpointPaths
from mcp_transports.http.server.forwarding.forwarder import Forwarder
from mcp_transports.http.server.forwarding.remote_sessions import (
    RemoteSessions,
    SessionPlaces,
    open_forwarder,
)
from mcp_transports.http.server.http_sse import HttpSseChannels
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.routes.beside import nothing_beside
from mcp_transports.http.server.routes.table import Routes, RouteTable
from mcp_transports.http.server.sessions import HttpSessionStatistics, SessionLimits, SessionTable
from mcp_transports.http.server.sse_response import OpenSseResponses
from mcp_transports.http.server.stream_settings import StreamSettings

__all__ = ["HttpServerStatistics", "HttpServerTransport"]

# Seconds: a quarter of the shortest time after which proxies in use close a silent event stream.
DEFAULT_KEEPALIVE = 15.0
# Seconds, as in the protocol's official servers.
DEFAULT_SESSION_IDLE = 1800.0
# Sessions cost some KiB each: this many is half a gigabyte, and more than one process's connections.
DEFAULT_MAX_SESSIONS = 50_000
# Milliseconds after which a client resumes a stream that was closed on purpose: soon, but not in a tight loop.
DEFAULT_RETRY = 500
DEFAULT_SSE_PATH = "/sse"


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


@attrs.define
class _ServedParts:
    """The parts of a transport that is served, or was served last."""

    sessions: SessionTable | None = None
    http_sse: HttpSseChannels | None = None
    share: PortShare | None = None
    """Its part of the port, while it is served."""


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
            served to everybody, GET alone, below ``/.well-known/``. In place of ``authenticate``.
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
        TypeError: ``auth`` is no `ResourceServer`, or a route is neither a function of one argument nor an application.
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
        if keepalive is not None and not keepalive >= 0:
            raise ValueError(
                f"keepalive must be a number of seconds, or None for no comments, not {keepalive!r}"
            )
        self._paths = paths = EndpointPaths(listen_url.path, sse_path)
        if sse_path is not None and (
            paths.streamable in (sse_path, paths.messages) or sse_path == paths.messages
        ):
            raise ValueError(
                f"HTTP+SSE cannot be served at {sse_path} beside {listen_url.path}: give another sse_path"
            )
        self._limits = limits or HttpLimits()
        self._ssl_context = ssl_context
        self._origin_policy = OriginPolicy(
            listen_url.host or "localhost", allowed_hosts=allowed_hosts, allowed_origins=allowed_origins
        )
        self._authentication = authentication_of(authenticate, auth)
        self._routes = None if not routes else RouteTable(routes, self._own_paths())
        session_limits = SessionLimits(session_idle, max_sessions, max_sessions_per_peer)
        self._session_limits = session_limits if sessions else None
        self._only_shared_sessions = sessions == "shared"
        self._event_log = event_log
        self._settings = StreamSettings(
            OpenSseResponses(keepalive or 0.0), max_message_bytes, None, json_replies, retry
        )
        self._served = _ServedParts()
        self._serving = False

    def __repr__(self) -> str:
        state = f"{self._served.sessions!r} {self._served.http_sse!r}" if self._serving else "not served"
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
        if self._origin_policy.refuses_all:
            log.warning(
                "the listener answers nobody: list its names in the setting allowed_hosts",
                url=self._listen_url.url(),
            )
        self._serving = True
        try:
            await self._serve(handler, task_status)
        finally:
            self._serving = False

    def _own_paths(self) -> set[str]:
        paths = self._paths
        documents = () if self._authentication is None else self._authentication.documents
        http_sse = () if paths.sse is None else (paths.sse, paths.messages)
        return {paths.streamable, *http_sse, *documents}

    async def _serve(self, handler: ServerHandler, task_status: trio.TaskStatus[str]) -> None:
        started = nullcontext() if self._routes is None else self._routes.started()
        async with started, open_forwarder(handler.shared) as forwarder:
            endpoint = self._endpoint(handler, forwarder)
            try:
                await self._serve_port(handler, endpoint, task_status)
                if forwarder is not None:
                    # Other nodes have clients that wait for answers of this one.
                    await forwarder.all_answered()
            finally:
                endpoint.close()

    async def _serve_port(
        self, handler: ServerHandler, endpoint: Endpoint, task_status: trio.TaskStatus[str]
    ) -> None:
        url = self._listen_url
        try:
            async with share_port(
                url,
                endpoint,
                ssl_context=self._ssl_context,
                limits=self._limits,
                documents=() if self._authentication is None else self._authentication.documents,
                to_the_end=self._routes is not None and self._routes.has_health,
            ) as share:
                self._served.share = share
                with reraised() as body:
                    async with trio.open_nursery() as nursery:
                        start_again(nursery, EVENT_STREAMS, self._settings.open_responses.keep_alive)
                        if self._authentication is not None:
                            expiring = self._settings.open_responses.end_expired
                            start_again(nursery, EVENT_STREAMS, expiring, about="whose access ends")
                        if self._served.sessions is not None:
                            start_again(nursery, SESSION_EXPIRY, self._served.sessions.expire)
                        start_again(nursery, STOP_STREAMS, _stop, handler.stopping, endpoint)
                        with body, as_engine_errors():
                            task_status.started(url.url(share.port))
                            await share.serve(handler.stopping)
                        nursery.cancel_scope.cancel(reason="the listener is done")
        finally:
            self._served.share = None

    def _endpoint(self, handler: ServerHandler, forwarder: Forwarder | None) -> Endpoint:
        log_of_events = handler.shared.events if self._event_log == "shared" else self._event_log
        settings, paths = attrs.evolve(self._settings, store=log_of_events), self._paths
        if self._authentication is not None:
            self._authentication.begin(handler)
        self._served = served = _ServedParts()
        findable = not self._only_shared_sessions or handler.shared.sessions.spans_processes
        if not findable:
            paths = EndpointPaths(paths.streamable, None)
        places = None if forwarder is None else SessionPlaces(handler.shared, forwarder.address)
        if self._session_limits is not None and findable:
            served.sessions = SessionTable(settings, self._session_limits, places)
        if paths.sse is not None:
            served.http_sse = HttpSseChannels(
                settings.open_responses,
                paths.messages,
                settings.longest,
                Budget(self._limits.held_bytes, self._limits.held_bytes_per_address),
                places,
            )
        endpoint = Endpoint(
            handler,
            self._origin_policy,
            settings,
            paths,
            sessions=served.sessions,
            http_sse=served.http_sse,
            authentication=self._authentication,
            remote_sessions=None
            if forwarder is None
            else RemoteSessions(forwarder, settings.store, settings.open_responses),
            beside=nothing_beside
            if self._routes is None
            else self._routes.serving(self._origin_policy, handler),
        )
        if forwarder is not None:
            forwarder.serve_with(endpoint.serve_taken)
        return endpoint

    def statistics(self) -> HttpServerStatistics:
        """Returns a snapshot of the numbers of sessions, connections and streams."""
        served = self._served
        return HttpServerStatistics(
            served.sessions.statistics() if served.sessions is not None else None,
            len(served.http_sse) if served.http_sse is not None else 0,
            len(self._settings.open_responses),
            served.share.statistics() if served.share is not None else None,
            served.http_sse.posted.statistics() if served.http_sse is not None else None,
        )


async def _stop(stopping: trio.Event, endpoint: Endpoint) -> None:
    await stopping.wait()
    endpoint.stop()
