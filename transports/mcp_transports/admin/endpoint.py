"""The admin endpoint: a transport that is served beside those of a server, its requests, and their answers.

============================ ===========================================================================================
``GET /``                    the page, to everyone: it contains nothing of the server
``GET /snapshot``            a snapshot as JSON
``GET /events``              an event stream with a snapshot every interval
``POST /actions``            JSON of `Action`, answered with `ActionOutcome` (`mcp_actors.telemetry.live_view`)
============================ ===========================================================================================

`AdminTransport` listens, `AdminEndpoint` answers requests, `EventStream` is the response to one watcher.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from importlib.resources import files
from ipaddress import ip_address
from typing import Literal, Self
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import Containment, start_again
from mcp_actors.supervision.logging import log, write_to_stderr
from mcp_actors.supervision.task_kinds import ADMIN_ACTION, ADMIN_FEED, ADMIN_HISTORY
from mcp_actors.telemetry.cluster import ClusterView
from mcp_actors.telemetry.live_view import Action, ActionOutcome, Feed, LiveView, ServerView
from mcp_transports._transports import as_engine_errors
from mcp_transports.admin.access import (
    AdminAccess,
    AdminCaller,
    AuthenticatedAccess,
    OwnedListener,
    OwnerAccess,
    TokenAccess,
)
from mcp_transports.http.h1.http_server import HttpListener, HttpServer, open_tcp, open_unix
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.authentication import Authenticate, Protection, authentication_of
from mcp_transports.http.server.origin_policy import LOOPBACK_NAMES, OriginPolicy
from mcp_transports.http.server.responses import (
    PATH_NOT_FOUND,
    RETRY_LATER,
    UNSUPPORTED_MEDIA_TYPE,
    Header,
    Refusal,
    method_not_allowed,
)

__all__ = ["LIMITS", "AdminEndpoint", "AdminPlace", "AdminTransport", "EventStream", "Page"]

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
# Snapshots that a watcher may miss one after the other, while what was sent before is still not read.
MOST_BEHIND = 5

# Of every answer: nothing of it is kept, framed, sniffed or fetched by other pages.
HEADERS = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
_TOO_MANY = Refusal(503, "too many watchers", headers=RETRY_LATER)
_NOT_AN_ACTION = "not an action: send action, node and target"
_JSON = "application/json"

Route = Callable[[Request, Response, AdminCaller], Awaitable[None]]


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
        ValueError: The URL is of another kind; an address that is not loopback comes without ``authenticate`` or
            ``auth``; a token is too short, or is given where it is not asked for; ``interval`` is
            not positive.
        TypeError: ``auth`` is not a `ResourceServer`.
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
            TypeError: The handler is not one of this engine.
        """
        own = ServerView(handler)
        if self._authentication is not None:
            self._authentication.begin(handler)
        async with trio.open_nursery() as nursery:
            start_again(nursery, ADMIN_HISTORY, own.keep_history)
            try:
                if handler.shared.bus.spans_processes:
                    async with ClusterView.open(own, handler.shared) as watch:
                        await self.serve_view(watch, task_status=task_status)
                else:
                    await self.serve_view(own, task_status=task_status)
            finally:
                nursery.cancel_scope.cancel(reason="the admin endpoint ends")

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


class AdminEndpoint:
    """Answers requests; an application of `mcp_transports.http.h1.http_server.HttpServer`.

    Args:
        feed: What is shown.
        access: Who may see it.
        policy: The values of ``Host`` and ``Origin`` that are served.
        most_watchers: Event streams at a time.
    """

    def __init__(self, feed: Feed, access: AdminAccess, policy: OriginPolicy, most_watchers: int) -> None:
        self._feed = feed
        self._access = access
        self._policy = policy
        self._most_watchers = most_watchers
        self._page = Page()
        self._routes: dict[str, tuple[str, Route]] = {
            "/snapshot": ("GET", self._snapshot),
            "/events": ("GET", self._events),
            "/actions": ("POST", self._act),
        }

    def __repr__(self) -> str:
        return f"<AdminEndpoint {self._feed!r}>"

    def __call__(self, request: Request, response: Response) -> None:
        verdict = self._policy.check(request.headers.get("host"), request.headers.get("origin"))
        method, route = self._routes.get(request.path, ("GET", None))
        if verdict.refusal is not None:
            _refuse(response, Refusal(403, verdict.refusal))
        elif route is None and request.path != "/":
            _refuse(response, PATH_NOT_FOUND)
        elif request.method != method:
            _refuse(response, method_not_allowed(method))
        elif route is None:
            self._page.answer(response, HEADERS)
        else:
            response.run(partial(self._serve, route, request, response))

    async def _serve(self, route: Route, request: Request, response: Response) -> None:
        with Containment(ADMIN_ACTION, lambda _: response.fail(), {"path": request.path}):
            who = await self._access.caller(request)
            if isinstance(who, Refusal):
                _refuse(response, who)
            else:
                await route(request, response, who)

    async def _snapshot(self, request: Request, response: Response, who: AdminCaller) -> None:
        response.answer(200, await self._feed.latest(), content_type=_JSON, headers=HEADERS)

    async def _events(self, request: Request, response: Response, who: AdminCaller) -> None:
        if len(self._feed.watchers) >= self._most_watchers:
            _refuse(response, _TOO_MANY)
            return
        response.start(content_type="text/event-stream", headers=HEADERS)
        EventStream(response, self._feed, who).begin()

    async def _act(self, request: Request, response: Response, who: AdminCaller) -> None:
        # A form of another site cannot send this type.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            _refuse(response, UNSUPPORTED_MEDIA_TYPE)
            return
        try:
            action = msgspec.json.decode(request.body, type=Action)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            outcome, status = ActionOutcome(False, _NOT_AN_ACTION), 400
        else:
            outcome = await self._feed.watch.act(action, who.name)
            status = 200 if outcome.done else 409
        response.answer(status, msgspec.json.encode(outcome), content_type=_JSON, headers=HEADERS)


def _refuse(response: Response, refusal: Refusal) -> None:
    response.answer(
        refusal.status,
        refusal.body,
        content_type=_JSON if refusal.body else None,
        headers=(*HEADERS, *refusal.headers),
    )


class EventStream:
    """Shows every snapshot to one client, and drops it when it does not read.

    Args:
        response: Has begun.
        feed: Where the snapshots come from.
        caller: Whose it is. It ends when their access does.
    """

    def __init__(self, response: Response, feed: Feed, caller: AdminCaller) -> None:
        self._response = response
        self._feed = feed
        self._name = caller.name
        self._ends = trio.current_time() + caller.seconds_left
        self._behind = 0

    def __repr__(self) -> str:
        return f"<EventStream to {self._name}, {self._behind} behind>"

    def begin(self) -> None:
        """Shows snapshots from now on, until the client leaves or is dropped."""
        self._response.on_gone = lambda: self._feed.remove(self)
        self._feed.add(self)

    def show(self, snapshot: bytes) -> None:
        """Sends a snapshot, or leaves it out while the client has not read what was sent before."""
        response = self._response
        if response.gone:
            self._feed.remove(self)
        elif trio.current_time() > self._ends:
            self._feed.remove(self)
            response.abort()
        elif response.full:
            self._behind += 1
            if self._behind > MOST_BEHIND:
                log.warning("a watcher that does not read was dropped", who=self._name)
                self._feed.remove(self)
                response.abort()
        else:
            self._behind = 0
            try:
                response.write(b"data: %b\n\n" % snapshot)
            except trio.BrokenResourceError:
                self._feed.remove(self)


class Page:
    """The page, and the policy that allows its own script and style by their hashes, and talks to its own server."""

    def __init__(self) -> None:
        text = files(__package__).joinpath("page.html").read_text("utf-8")
        self._body = text.encode()
        script, style = (_hash(text, part) for part in ("script", "style"))
        self.policy = (
            f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
        """The value of ``Content-Security-Policy``."""

    def answer(self, response: Response, headers: Sequence[Header]) -> None:
        """Answers with the page."""
        response.answer(
            200,
            self._body,
            content_type="text/html; charset=utf-8",
            headers=(*headers, ("content-security-policy", self.policy), ("x-frame-options", "DENY")),
        )


def _hash(text: str, part: str) -> str:
    (found,) = re.findall(f"<{part}>(.*?)</{part}>", text, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
