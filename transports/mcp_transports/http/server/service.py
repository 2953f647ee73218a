"""Everything that serves MCP over HTTP but the port: settings, sessions, streams and the tasks that keep them.

`HttpServerTransport`, our own listener, is built on it, and so is the application for ASGI servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal

import attrs
import trio

from mcp_actors.abc import EventLog, ServerHandler
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.supervision.budget import Budget
from mcp_actors.supervision.containment import start_again
from mcp_actors.supervision.task_kinds import EVENT_STREAMS, SESSION_EXPIRY, STOP_STREAMS
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.server.authentication import Authenticate, Protection, authentication_of
from mcp_transports.http.server.endpoint import Endpoint, EndpointPaths
from mcp_transports.http.server.forwarder import Forwarder, RemoteSessions, SessionPlaces, open_forwarder
from mcp_transports.http.server.http_sse import HttpSseChannels
from mcp_transports.http.server.origin_policy import OriginPolicy
from mcp_transports.http.server.routes import Beside, nothing_beside
from mcp_transports.http.server.sessions import SessionLimits, SessionTable
from mcp_transports.http.server.sse_response import OpenSseResponses, StreamSettings

__all__ = [
    "DEFAULT_KEEPALIVE",
    "DEFAULT_MAX_SESSIONS",
    "DEFAULT_RETRY",
    "DEFAULT_SESSION_IDLE",
    "DEFAULT_SSE_PATH",
    "HttpService",
]

# Seconds: a quarter of the shortest time after which proxies in use close a silent event stream.
DEFAULT_KEEPALIVE = 15.0
# Seconds, as in the protocol's official servers.
DEFAULT_SESSION_IDLE = 1800.0
# Sessions cost some KiB each: this many is half a gigabyte, and more than one process's connections.
DEFAULT_MAX_SESSIONS = 50_000
# Milliseconds after which a client resumes a stream that was closed on purpose: soon, but not in a tight loop.
DEFAULT_RETRY = 500
DEFAULT_SSE_PATH = "/sse"


class HttpService:
    """The sessions and streams of one URL, and what serves its requests. It opens no port.

    Args:
        path: The path of Streamable HTTP.
        bound_host: The address or name at which it is served; see `OriginPolicy`.
        allowed_hosts: As the following, a setting of `HttpServerTransport`, which says what it means.

    Raises:
        ImportError, TypeError, ValueError: See `HttpServerTransport`.
    """

    def __init__(
        self,
        path: str,
        bound_host: str,
        *,
        limits: HttpLimits | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        authenticate: Authenticate | None = None,
        auth: Protection | None = None,
        keepalive: float | None = DEFAULT_KEEPALIVE,
        sessions: bool | Literal["shared"] = True,
        session_idle: float = DEFAULT_SESSION_IDLE,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        max_sessions_per_peer: int | None = None,
        json_replies: bool = False,
        event_log: EventLog | Literal["shared"] | None = "shared",
        retry: int = DEFAULT_RETRY,
        sse_path: str | None = DEFAULT_SSE_PATH,
    ) -> None:
        if keepalive is not None and not keepalive >= 0:
            raise ValueError(
                f"keepalive must be a number of seconds, or None for no comments, not {keepalive!r}"
            )
        bounds = {
            "max_message_bytes": max_message_bytes,
            "session_idle": session_idle,
            "max_sessions": max_sessions,
            "max_sessions_per_peer": max_sessions_per_peer,
        }
        for name, bound in bounds.items():
            if bound is not None and not bound > 0:
                raise ValueError(f"{name} must be greater than zero, not {bound!r}")
        self.paths = paths = EndpointPaths(path, sse_path)
        if sse_path is not None and (
            paths.streamable in (sse_path, paths.messages) or sse_path == paths.messages
        ):
            raise ValueError(f"HTTP+SSE cannot be served at {sse_path} beside {path}: give another sse_path")
        self.limits = limits or HttpLimits()
        self.origin_policy = OriginPolicy(
            bound_host, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins
        )
        self.authentication = authentication_of(authenticate, auth)
        session_limits = SessionLimits(session_idle, max_sessions, max_sessions_per_peer)
        self._session_limits = session_limits if sessions else None
        self._only_shared_sessions = sessions == "shared"
        self._event_log = event_log
        self.settings = StreamSettings(
            OpenSseResponses(keepalive or 0.0), max_message_bytes, None, json_replies, retry
        )
        self.sessions: SessionTable | None = None
        """The sessions of Streamable HTTP, of the time that it is served or was served last."""
        self.http_sse: HttpSseChannels | None = None
        """The connections of HTTP+SSE, of the same time."""

    def __repr__(self) -> str:
        return f"<HttpService {self.paths.streamable}: {self.sessions!r} {self.http_sse!r}>"

    @asynccontextmanager
    async def open(self, handler: ServerHandler, beside: Beside = nothing_beside) -> AsyncIterator[Endpoint]:
        """Yields what serves the requests. Left in order, it waits until other nodes have their answers.

        ``beside`` serves other paths. When it is left, for whatever reason, all sessions are closed.
        """
        async with open_forwarder(handler.shared) as forwarder:
            endpoint = self._endpoint(handler, forwarder, beside)
            try:
                yield endpoint
                if forwarder is not None:
                    # Other nodes have clients that wait for answers of this one.
                    await forwarder.all_answered()
            finally:
                endpoint.close()

    def start_tasks(self, nursery: trio.Nursery, stopping: trio.Event, endpoint: Endpoint) -> None:
        """Starts the tasks that keep sessions and streams, until ``nursery`` is cancelled.

        Once ``stopping`` is set, ``endpoint`` stops taking new work.
        """
        open_responses = self.settings.open_responses
        start_again(nursery, EVENT_STREAMS, open_responses.keep_alive)
        if self.authentication is not None:
            start_again(nursery, EVENT_STREAMS, open_responses.end_expired, about="whose access ends")
        if self.sessions is not None:
            start_again(nursery, SESSION_EXPIRY, self.sessions.expire)
        start_again(nursery, STOP_STREAMS, _stop, stopping, endpoint)

    def own_paths(self) -> set[str]:
        """Returns all paths that this serves."""
        paths = self.paths
        documents = () if self.authentication is None else self.authentication.documents
        http_sse = () if paths.sse is None else (paths.sse, paths.messages)
        return {*paths.forms, *http_sse, *documents}

    def _endpoint(self, handler: ServerHandler, forwarder: Forwarder | None, beside: Beside) -> Endpoint:
        log_of_events = handler.shared.events if self._event_log == "shared" else self._event_log
        settings, paths = attrs.evolve(self.settings, store=log_of_events), self.paths
        if self.authentication is not None:
            self.authentication.begin(handler)
        self.sessions = self.http_sse = None
        findable = not self._only_shared_sessions or handler.shared.sessions.spans_processes
        if not findable:
            paths = EndpointPaths(paths.streamable, None)
        places = None if forwarder is None else SessionPlaces(handler.shared, forwarder.address)
        if self._session_limits is not None and findable:
            self.sessions = SessionTable(settings, self._session_limits, places)
        if paths.sse is not None:
            self.http_sse = HttpSseChannels(
                settings.open_responses,
                paths.messages,
                settings.longest,
                Budget(self.limits.held_bytes, self.limits.held_bytes_per_address),
                places,
            )
        endpoint = Endpoint(
            handler,
            self.origin_policy,
            settings,
            paths,
            sessions=self.sessions,
            http_sse=self.http_sse,
            authentication=self.authentication,
            remote_sessions=None
            if forwarder is None
            else RemoteSessions(forwarder, settings.store, settings.open_responses),
            beside=beside,
        )
        if forwarder is not None:
            forwarder.serve_with(endpoint)
        return endpoint


async def _stop(stopping: trio.Event, endpoint: Endpoint) -> None:
    await stopping.wait()
    endpoint.stop()
