"""The admin endpoint, served beside the transports of a server."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Literal, Self
from urllib.parse import urlsplit

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import start_again
from mcp_actors.supervision.logging import write_to_stderr
from mcp_actors.supervision.task_kinds import ADMIN_FEED
from mcp_actors.telemetry.cluster import ClusterView
from mcp_actors.telemetry.live_view import Feed, LiveView, ServerView
from mcp_transports._transports import as_engine_errors
from mcp_transports.admin.endpoint import (
    AdminAccess,
    AdminEndpoint,
    AuthenticatedAccess,
    OwnerAccess,
    TokenAccess,
)
from mcp_transports.admin.owner import OwnedListener
from mcp_transports.http.h1.http_server import HttpListener, HttpServer, open_tcp, open_unix
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.server.authentication import Authenticate, Protection, authentication_of
from mcp_transports.http.server.origin_policy import LOOPBACK_NAMES, OriginPolicy

__all__ = ["LIMITS", "AdminPlace", "AdminTransport"]


# -- The address of an admin endpoint --------------------------------------------------------------------


@attrs.frozen
class AdminPlace:
    """A Unix socket, or a host and a port."""

    scheme: str
    path: str | None
    """The path of a Unix socket."""
    host: str
    """``localhost`` for a Unix socket, which only this machine reaches."""
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Returns the address that a URL names.

        Raises:
            ValueError: It is neither ``unix:PATH`` nor ``http://HOST:PORT``.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix":
            path = url.partition(":")[2]
            path = "/" + path.lstrip("/") if path.startswith("//") else path
            if path.strip("/") and not parts.query and not parts.fragment:
                return cls("unix", path, "localhost", 0)
        elif parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/"):
            extras = (parts.query, parts.fragment, parts.username, parts.password)
            if not any(extras):
                return cls(parts.scheme, None, parts.hostname, parts.port or 0)
        raise ValueError(
            f"an admin endpoint is at unix:PATH or http://127.0.0.1:PORT, without a path behind that, not at {url!r}"
        )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> Sequence[str]:
        """The names by which browsers may call it."""
        return LOOPBACK_NAMES if self.is_local else (self._bracketed,)

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def url(self, port: int | None = None) -> str:
        """Returns the URL, with the real port if that is known."""
        if self.path is not None:
            return f"unix:{self.path}"
        return f"{self.scheme}://{self._bracketed}:{self.port if port is None else port}"


# ----------------------------------------------------------------------------------------------------

LIMITS = HttpLimits(
    head_bytes=16 * 1024,
    headers=64,
    body_bytes=4096,
    held_bytes=1024 * 1024,
    head_time=5.0,
    body_time=5.0,
    connections=128,
    connections_per_address=128,
    pipelined_requests=4,
    pipelined_bytes=16 * 1024,
    max_buffered=4 * 1024 * 1024,
    write_timeout=10.0,
)
"""The bounds on peers: a few operators with short requests."""
MOST_WATCHERS = 32
_TOKEN_BYTES = 32


class AdminTransport:
    """An admin endpoint, for ``mcp-actors top`` and browsers. Give it to `Server.serve` or `Server.run` beside a URL.

    It shows what runs, and lets operators cancel calls and end sessions, each of which is logged with who did it. A
    failure of it never ends the server, and it never keeps a server from ending. Where the server shares its state
    with other processes, it shows those of them that have one, too.

    Args:
        url: ``unix:/run/x.sock``, whose file only this user may open, and at which this user and root are served; or
            ``http://127.0.0.1:PORT``, where everybody is asked for a token.
        token: The token, of at least 16 characters. By default it is random, and is shown once on standard error, as
            a URL for a browser.
        authenticate: Says who asks, in place of a token, as for `~mcp_transports.http.server.HttpServerTransport`;
            ``None`` from it refuses the request.
        auth: A `mcp_actors.auth.ResourceServer`, in place of a token.
        ssl_context: For ``https://``.
        allowed_hosts: See `~mcp_transports.http.server.origin_policy.OriginPolicy`; for addresses beyond loopback.
        interval: Seconds between two snapshots, for all watchers together: 1, as a person reads no faster.
        max_watchers: Watchers at a time. Over it: 503.
        say: Called with the line that tells the token; must not wait. By default it goes to standard error.

    Raises:
        ValueError: The URL is none of these; an address that is not loopback comes without ``authenticate`` or
            ``auth``; a token is too short, or is given where none is asked for; ``interval`` is not positive.
        TypeError: ``auth`` is no `ResourceServer`.
        ImportError: ``auth`` needs the extra ``auth``, which is missing.
    """

    is_companion: Literal[True] = True

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authenticate: Authenticate | None = None,
        auth: Protection | None = None,
        ssl_context: ssl.SSLContext | None = None,
        allowed_hosts: Iterable[str] | None = None,
        interval: float = 1.0,
        max_watchers: int = MOST_WATCHERS,
        say: Callable[[str], object] = write_to_stderr,
    ) -> None:
        if not interval > 0:
            raise ValueError(f"interval is a number of seconds greater than 0, not {interval!r}")
        self._place = place = AdminPlace.of(url)
        if (place.scheme == "https") != (ssl_context is not None):
            raise ValueError("https needs an ssl_context, and the others have none")
        self._ssl_context = ssl_context
        self._authentication = authentication_of(authenticate, auth)
        self._allowed_hosts = None if allowed_hosts is None else list(allowed_hosts)
        if token is not None and (place.path is not None or self._authentication is not None):
            raise ValueError("a token is for a loopback address without authenticate= or auth= alone")
        if self._authentication is None and not place.is_local:
            raise ValueError(
                f"{url} is no loopback address: serve at unix:PATH or http://127.0.0.1:PORT, "
                "or, in a program, give authenticate= or auth="
            )
        self._shows_token = place.path is None and self._authentication is None and token is None
        self._token = secrets.token_urlsafe(_TOKEN_BYTES) if self._shows_token else token or ""
        self._access = self._make_access()
        self._interval, self._max_watchers, self._say = interval, max_watchers, say
        self._serving = False

    def __repr__(self) -> str:
        return f"<AdminTransport {self._place.url()}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until cancelled, as the end of the server does.

        Raises:
            ConnectFailed: It cannot listen there.
            LocalProtocolError: This object is served already, or the path of the socket is too long.
            TypeError: The handler is none of this engine.
        """
        own = ServerView(handler)
        if self._authentication is not None:
            self._authentication.begin(handler)
        if handler.shared.bus.spans_processes:
            async with ClusterView.open(own, handler.shared) as watch:
                await self.serve_view(watch, task_status=task_status)
        else:
            await self.serve_view(own, task_status=task_status)

    async def serve_view(
        self, watch: LiveView, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """As `serve`, for anything that can be looked at: several processes, for example.

        Args:
            watch: What is shown.
            task_status: Is given the URL, once connections are accepted.

        Raises:
            ConnectFailed, LocalProtocolError: As `serve` does.
        """
        if self._serving:
            raise LocalProtocolError(f"{self!r} is served already")
        self._serving = True
        try:
            with as_engine_errors():
                await self._serve(watch, task_status)
        finally:
            self._serving = False

    async def _serve(self, watch: LiveView, task_status: trio.TaskStatus[str]) -> None:
        listeners = await self._open()
        feed = Feed(watch, self._interval)
        endpoint = AdminEndpoint(feed, self._access, self._policy(listeners[0].port), self._max_watchers)
        server = HttpServer(endpoint, listeners, LIMITS)
        async with trio.open_nursery() as nursery:
            start_again(nursery, ADMIN_FEED, feed.run)
            where = self._place.url(listeners[0].port)
            if self._shows_token:
                self._say(f"live view at {where}/#{self._token}")
            task_status.started(where)
            try:
                await server.serve()
            finally:
                nursery.cancel_scope.cancel(reason="the admin endpoint ends")

    async def _open(self) -> list[HttpListener]:
        place = self._place
        if place.path is not None:
            opened = await open_unix(place.path)
            return [OwnedListener(opened.socket, path=opened.path, inherited=opened.inherited)]
        return await open_tcp(place.host, place.port, ssl_context=self._ssl_context)

    def _make_access(self) -> AdminAccess:
        if self._authentication is not None:
            return AuthenticatedAccess(self._authentication)
        return OwnerAccess() if self._place.path is not None else TokenAccess(self._token)

    def _policy(self, port: int | None) -> OriginPolicy:
        """Returns what allows the page of this very address, and no page of another port."""
        place, allowed = self._place, self._allowed_hosts
        origins = [] if port is None else [f"{place.scheme}://{name}:{port}" for name in place.names]
        if allowed is not None:
            origins += [f"{place.scheme}://{name}" for name in allowed if name != "*"]
        return OriginPolicy(place.host, allowed_hosts=allowed, allowed_origins=origins)
