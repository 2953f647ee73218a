"""The routes of an HTTP listener beside MCP: which path leads to which function or application.

`RouteTable` is asked about every path at which no MCP is served. What a function returns becomes a `Reply`. Two routes
are made here: `health`, which orchestrators and load balancers ask, and `metrics_page`, which Prometheus scrapes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import attrs
import msgspec
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.abc.http import AsgiApplication
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.task_kinds import HTTP_RESPONSE
from mcp_actors.types import Implementation
from mcp_actors.types.cards import (
    CARD_SUFFIX,
    CARD_TYPE,
    CATALOG_PATH,
    CATALOG_TYPE,
    card_of,
    catalog_of,
    etag_of,
    is_card_name,
)
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.asgi_routes import AsgiRequest, lifespans
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.origin_policy import OriginPolicy, Verdict
from mcp_transports.http.server.responses import Header, Refusal, method_not_allowed

__all__ = [
    "Answer",
    "Beside",
    "HealthRoute",
    "PublicDocument",
    "Reply",
    "RouteTable",
    "Routes",
    "card_routes",
    "health",
    "metrics_page",
    "nothing_beside",
    "reply_of",
    "send_reply",
]

Beside = Callable[[HttpExchange, Verdict], bool]
"""Answers a request, now or later, if its path is one of its own, and returns whether it is. Never waits."""
_TEXT = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"
_JSON = "application/json"
# No cache may answer in place of the server.
_HEALTH_HEADERS = (("cache-control", "no-store"),)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RouteHandler = Callable[[Request], "Answer | Awaitable[Answer]"]
Routes = Mapping[str, "RouteHandler | AsgiApplication | HealthRoute | PublicDocument"]
"""By path: what is served there. See `RouteTable`."""
_KEY = re.compile(r"(?:([A-Z]+) )?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)", re.ASCII)
_READING = ("GET", "HEAD")
# Plain functions that run at a time, so that some that hang leave the threads of tools and of the program alone.
_MOST_THREADS = 20
_FORMS = (
    "a function of one argument, the request, or an ASGI application, which takes scope, receive and send"
)


def nothing_beside(exchange: HttpExchange, verdict: Verdict) -> bool:
    """Serves no path."""
    return False


@attrs.frozen
class Reply:
    """An answer with a status, a content type or headers of its own.

    Args:
        body: Text is sent in UTF-8; a dict or a list as JSON.
        status: The HTTP status.
        content_type: By default ``text/plain`` for text, ``application/octet-stream`` for bytes, and
            ``application/json`` for the rest.
        headers: Further headers, as (name, value). The server writes ``Content-Length``, ``Date``, ``Connection`` and
            ``Transfer-Encoding`` itself.
        closes: Whether the connection ends behind the answer, so that the next request may reach another process.
    """

    body: str | bytes | dict[str, Any] | list[Any] = b""
    status: int = 200
    content_type: str | None = None
    headers: Sequence[Header] = ()
    closes: bool = False


Answer = Reply | str | bytes | dict[str, Any] | list[Any] | None
"""The result of a handler; ``None`` is sent as 204, with no body."""


def reply_of(answer: object) -> Reply:
    """Returns what a handler returned as a `Reply`.

    Raises:
        TypeError: It has another type than those of `Answer`.
    """
    if isinstance(answer, Reply):
        return answer
    if answer is None:
        return Reply(status=204)
    if isinstance(answer, str | bytes | dict | list):
        return Reply(answer)
    raise TypeError(
        f"a route returned a {type(answer).__name__}: return str, bytes, a dict, a list, None or a Reply"
    )


def send_reply(response: Response, reply: Reply, headers: Sequence[Header]) -> None:
    """Answers a request; ``headers`` are sent before those of the reply.

    Raises:
        ValueError: The status or a header must not be sent. Nothing was sent then.
        TypeError: The body cannot be written as JSON.
    """
    body, usual = reply.body, _JSON
    if isinstance(body, str):
        data, usual = body.encode(), _TEXT
    elif isinstance(body, bytes):
        data, usual = body, _BYTES
    else:
        data = msgspec.json.encode(body)
    if reply.closes:
        response.close_after()
    content_type = reply.content_type or (usual if data else None)
    response.answer(reply.status, data, content_type=content_type, headers=(*headers, *reply.headers))


class HealthRoute:
    """The handler of the route `health`. It answers GET and HEAD from any client and for any ``Host``.

    Load balancers send the address as ``Host``, so the names that are served do not matter here. The answer is a JSON
    object that reveals nothing else of the server:

    - ``live``: always true, since it was answered.
    - ``draining``: whether the server was stopped: at first it still takes everything
      (`mcp_actors.Limits.drain_delay`), then it lets calls in flight end.
    - ``missing``: what the server needs and cannot use at the moment, where there is something: the shared state, or
      all servers behind a gateway. Paths, hosts and ports are left out.
    - ``ready``: whether it is not draining, and nothing is missing. It is never false at the start, because a listener
      accepts connections only once everything was started.

    The same is answered at three paths, with different statuses:

    ================= ==============================================================================================
    ``/health``       503 while it is draining, else 200: what is missing makes no node leave its load balancer,
                      because requests that need nothing of it are still served, and all nodes would leave at once
    ``/health/ready`` 503 while it is not ready, else 200: for where such a node is to get nothing
    ``/health/live``  200
    ================= ==============================================================================================

    A listener with this route accepts connections until the last call has ended, so that it can say so, unless it was
    draining for a while before; new work is answered with 503.
    """

    def __repr__(self) -> str:
        return "<health>"

    def reply(self, handler: ServerHandler, kind: str = "") -> Reply:
        """Returns what is true now; ``kind`` is the last part of the path, ``"live"`` or ``"ready"``, or empty."""
        draining, missing = handler.leaving.is_set(), handler.missing()
        ready = not (draining or missing)
        state: dict[str, Any] = {"live": True, "ready": ready, "draining": draining}
        if missing:
            state["missing"] = missing
        fails = {"": draining, "ready": not ready, "live": False}[kind]
        return Reply(state, 503 if fails else 200, headers=_HEALTH_HEADERS)


health = HealthRoute()
"""The handler of a route that reports the health of the server: ``routes={"/health": health}``."""


class MetricsText(Protocol):
    """The metrics of a server, such as `mcp_actors.telemetry.Metrics`."""

    def text(self) -> str:
        """Returns them in the text format of Prometheus, 0.0.4; may be called in any thread."""


@attrs.frozen
class MetricsRoute:
    """The handler of a route that shows metrics; see `metrics_page`."""

    metrics: MetricsText

    def __call__(self, request: Request) -> Reply:
        """Returns the page. It blocks for as long as the metrics do."""
        return Reply(self.metrics.text(), content_type=_METRICS_TYPE, headers=_HEALTH_HEADERS, closes=True)


def metrics_page(metrics: MetricsText) -> Callable[[Request], Reply]:
    """Returns the handler of a route that shows metrics: ``routes={"/metrics": metrics_page(metrics)}``.

    It answers GET and HEAD as other routes do: with the names by which the listener is served, and without a token. It
    shows the names of tools and how often they are called, so do not put it on a listener that is open to others:
    serve it at one of its own. It runs in a worker thread, so a long page delays no call. The connection ends behind
    it: of several processes that share the address, the next scrape may then reach another one. It is answered, as
    `health` is, also when no further connection is allowed.

    Args:
        metrics: What the server was given: ``Server(telemetry=metrics)``.
    """
    return MetricsRoute(metrics)


_DOCUMENT_CORS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET"),
    ("Access-Control-Allow-Headers", "Content-Type, If-None-Match"),
    ("Access-Control-Expose-Headers", "ETag"),
)
_DOCUMENT_CACHING = ("Cache-Control", "public, max-age=3600")


@attrs.frozen
class PublicDocument:
    """The handler of a route with a document that everybody may read; see `card_routes`.

    It answers GET, HEAD and the preflights of pages of every origin, without a token, and only for a ``Host`` that is
    served. A client that has the document, by its entity tag, is answered with 304 and no body.
    """

    content_type: str
    make: Callable[[str], Any]
    """Makes the JSON value of the URL under which the listener is asked, without a path."""

    def answer(self, exchange: HttpExchange, policy: OriginPolicy) -> None:
        """Answers one request."""
        request = exchange.request
        refusal = policy.check(request.headers.get("host"), None).refusal
        exchange.headers = ()
        if refusal is not None:
            exchange.refuse(Refusal(403, refusal))
        elif request.method == "OPTIONS":
            exchange.answer(204, headers=(("allow", "GET, HEAD, OPTIONS"), *_DOCUMENT_CORS))
        elif request.method not in _READING:
            exchange.refuse(method_not_allowed(*_READING, "OPTIONS"))
        else:
            scheme = "https" if request.secure else "http"
            document = msgspec.json.encode(self.make(f"{scheme}://{request.headers.get('host', '')}"))
            tag = etag_of(document)
            headers = (*_DOCUMENT_CORS, _DOCUMENT_CACHING, ("ETag", tag))
            known = request.headers.get("if-none-match", "")
            if known == "*" or tag in [each.strip().removeprefix("W/") for each in known.split(",")]:
                exchange.response.answer(304, headers=headers)
            else:
                exchange.response.answer(200, document, content_type=self.content_type, headers=headers)


def card_routes(
    name: str,
    info: Callable[[], Implementation],
    paths: Collection[str],
    *,
    url: str | None = None,
    versions: Sequence[str] = (),
) -> dict[str, PublicDocument]:
    """Returns the routes with the card of a server (SEP-2127, a draft), and with the catalogue that names it.

    They are at ``PATH/server-card`` for each path of MCP, and at ``/.well-known/ai-catalog.json``. A card has what the
    server says of itself, whoever asks: name, version, title, description, icons, and where it is. Tools, prompts and
    resources are not in it.

    Args:
        name: The name of the server in reverse-DNS form, such as ``com.example/weather``.
        info: Returns what the server says of itself: ``lambda: server.info``.
        paths: The paths of Streamable HTTP.
        url: The URL by which clients know the server, such as that of a proxy before it. By default it is that of the
            request: its ``Host``, with ``https`` where it came through TLS.
        versions: The revisions that are spoken.

    Raises:
        ValueError: ``name`` has another form.
    """
    if not is_card_name(name):
        raise ValueError(
            f"{name!r} is not the name of a card: a namespace, a slash, a name: com.example/weather"
        )

    def card(path: str, asked: str) -> dict[str, Any]:
        return card_of(name, info(), [(url or asked + path, versions)])

    def catalog(asked: str) -> dict[str, Any]:
        return catalog_of([(name, (url or asked + path).rstrip("/") + CARD_SUFFIX) for path in paths])

    routes = {
        path.rstrip("/") + CARD_SUFFIX: PublicDocument(CARD_TYPE, partial(card, path)) for path in paths
    }
    return {**routes, CATALOG_PATH: PublicDocument(CATALOG_TYPE, catalog)}


@attrs.frozen
class _Mount:
    """An ASGI application and the state from its startup for its requests."""

    path: str
    app: AsgiApplication
    state: dict[str, Any] = attrs.field(factory=dict)


class RouteTable:
    """The routes of one listener. The rules are those of the package's description.

    Args:
        routes: The routes.
        taken: The paths that the listener serves itself.

    Raises:
        ValueError: A key is malformed, or its path is taken.
        TypeError: A value is of another kind than these three.
    """

    def __init__(self, routes: Routes, taken: Collection[str]) -> None:
        self._methods: dict[str, dict[str, RouteHandler]] = {}
        self._health: dict[str, tuple[HealthRoute, str]] = {}
        self._documents: dict[str, PublicDocument] = {}
        mounts: list[_Mount] = []
        self._threads = trio.CapacityLimiter(_MOST_THREADS)
        for key, route in routes.items():
            found = _KEY.fullmatch(key)
            if found is None:
                raise ValueError(
                    f"{key!r} in routes is neither a path, as /page, nor one with a method, as POST /page"
                )
            method, path = found[1], found[2]
            if path in taken:
                raise ValueError(f"{path} in routes is a path of MCP itself: give another one")
            if isinstance(route, PublicDocument):
                if method is not None:
                    raise ValueError(
                        f"a document answers GET and HEAD: write {path!r} in routes, without {method}"
                    )
                self._documents[path] = route
            elif isinstance(route, HealthRoute):
                self._add_health(method, path, route)
            elif _arguments(route) == 3:
                _require_mountable(method, path, taken)
                mounts.append(_Mount(path.rstrip("/"), _as_app(route)))
            elif _arguments(route) == 1:
                self._add_handler(method, path, _as_handler(route))
            else:
                raise TypeError(f"the value of {key!r} in routes is {route!r}: give {_FORMS}")
        for path, (route, _) in list(self._health.items()):
            for kind in ("live", "ready"):
                below = f"{path.rstrip('/')}/{kind}"
                if below not in self._methods and below not in taken:
                    self._health.setdefault(below, (route, kind))
        # The longest first, so that the first one that fits is the right one.
        self._mounts = sorted(mounts, key=lambda each: len(each.path), reverse=True)

    def __repr__(self) -> str:
        paths = (
            *self._health,
            *self._documents,
            *self._methods,
            *(f"{each.path}/…" for each in self._mounts),
        )
        return f"<RouteTable {', '.join(paths)}>"

    @property
    def has_health(self) -> bool:
        """Whether there is a health route, which is answered also while the server drains."""
        return bool(self._health)

    @property
    def answered_when_full(self) -> Collection[str]:
        """The paths that say how the server is, which are asked for most when it is full."""
        pages = {
            path
            for path, methods in self._methods.items()
            if any(isinstance(each, MetricsRoute) for each in methods.values())
        }
        return pages | set(self._health)

    def started(self) -> AbstractAsyncContextManager[None]:
        """Starts the applications for the length of an ``async with`` block.

        Entering it raises `RouteStartFailed` if one of them could not start.
        """
        return lifespans([(each.path or "/", each.app, each.state) for each in self._mounts])

    def serving(self, policy: OriginPolicy, handler: ServerHandler) -> Beside:
        """Returns what answers the requests for these routes while ``handler`` serves."""
        return partial(self._serve, policy, handler)

    def _serve(
        self, policy: OriginPolicy, handler: ServerHandler, exchange: HttpExchange, verdict: Verdict
    ) -> bool:
        path = exchange.request.path
        if (found := self._health.get(path)) is not None:
            if exchange.request.method in _READING:
                route, kind = found
                send_reply(exchange.response, route.reply(handler, kind), ())
            else:
                exchange.refuse(method_not_allowed(*_READING))
            return True
        if (document := self._documents.get(path)) is not None:
            document.answer(exchange, policy)
            return True
        methods = self._methods.get(path)
        mount = self._mount_of(path) if methods is None else None
        if methods is None and mount is None:
            return False
        if verdict.refusal is not None:
            exchange.refuse(Refusal(403, verdict.refusal))
        elif mount is not None:
            asked = AsgiRequest(
                exchange.request, exchange.response, mount.path, mount.state, exchange.headers
            )
            _run(exchange, partial(_serve_app, asked, mount.app, exchange))
        elif methods is not None:
            self._serve_handler(exchange, methods, verdict, policy)
        return True

    def _serve_handler(
        self, exchange: HttpExchange, methods: dict[str, RouteHandler], verdict: Verdict, policy: OriginPolicy
    ) -> None:
        request = exchange.request
        handler = methods.get(request.method)
        if handler is not None:
            _run(exchange, partial(self._call, exchange, handler))
        elif request.method == "OPTIONS":
            requested = request.headers.get("access-control-request-headers")
            exchange.headers = policy.preflight(verdict, requested)
            exchange.answer(204, headers=(("allow", ", ".join((*methods, "OPTIONS"))),))
        else:
            exchange.refuse(method_not_allowed(*methods))

    async def _call(self, exchange: HttpExchange, handler: RouteHandler) -> None:
        request = exchange.request
        answer: object
        if _is_async(handler):
            waiting: Any = handler(request)
            answer = await waiting
        else:
            answer = await trio.to_thread.run_sync(
                handler, request, abandon_on_cancel=True, limiter=self._threads
            )
        send_reply(exchange.response, reply_of(answer), exchange.headers)

    def _mount_of(self, path: str) -> _Mount | None:
        for each in self._mounts:
            if path == each.path or path.startswith(f"{each.path}/"):
                return each
        return None

    def _add_health(self, method: str | None, path: str, route: HealthRoute) -> None:
        if method is not None:
            raise ValueError(f"health answers GET and HEAD: write {path!r} in routes, without {method}")
        if path in self._methods:
            raise ValueError(f"{path} is twice in routes")
        self._health[path] = route, ""

    def _add_handler(self, method: str | None, path: str, handler: RouteHandler) -> None:
        if path in self._health:
            raise ValueError(f"{path} is twice in routes")
        methods = self._methods.setdefault(path, {})
        for each in _READING if method is None else (method,):
            if each in methods:
                raise ValueError(f"{each} {path} is twice in routes")
            methods[each] = handler


def _run(exchange: HttpExchange, serve: Callable[[], Awaitable[None]]) -> None:
    """Runs ``serve`` in a task of the request's connection, which is cancelled when the client leaves."""
    exchange.response.run(partial(_contained, exchange, serve))


async def _contained(exchange: HttpExchange, serve: Callable[[], Awaitable[None]]) -> None:
    response = exchange.response
    with Containment(HTTP_RESPONSE, lambda _: response.fail(), {"exchange": exchange}):
        await serve()


async def _serve_app(asked: AsgiRequest, app: AsgiApplication, exchange: HttpExchange) -> None:
    try:
        await asked.run(app)
    except OSError:
        if not exchange.response.gone:
            raise


def _require_mountable(method: str | None, path: str, taken: Collection[str]) -> None:
    if method is not None:
        raise ValueError(f"an ASGI application gets every method: write {path!r} in routes, without {method}")
    if path != "/" and path.endswith("/"):
        raise ValueError(
            f"write {path.rstrip('/')!r} in routes: an ASGI application gets all paths below it too"
        )
    below = [each for each in taken if each.startswith(f"{path}/")]
    if path != "/" and below:
        raise ValueError(f"{path} in routes would have {min(below)} of MCP below it: give another path")


def _arguments(route: object) -> int | None:
    """Returns the number of arguments that a value of the routes takes, ``None`` if that cannot be said."""
    if not callable(route) or isinstance(route, type):
        return None
    try:
        parameters = inspect.signature(route).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = 0
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            return None
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty:
            needed += 1
    return needed


def _as_app(route: Any) -> AsgiApplication:
    app: AsgiApplication = route
    return app


def _as_handler(route: Any) -> RouteHandler:
    handler: RouteHandler = route
    return handler


def _is_async(handler: Any) -> bool:
    """Whether calling ``handler`` makes a coroutine: an ``async def``, a partial of one, or an object that has one."""
    while isinstance(handler, partial):
        handler = handler.func
    called = getattr(type(handler), "__call__", None)  # noqa: B004 - that of the class is the one that is called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
