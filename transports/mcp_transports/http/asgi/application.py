"""A server as an ASGI 3 application, for uvicorn, hypercorn, granian and others, and for mounts in frameworks.

`AsgiApp` is the application. `request_of` and `BodyReader` turn a scope and the messages behind it into a `Request`,
with the checks that the parser of our own listener makes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote

from mcp_actors.abc.http import AsgiMessage, AsgiReceive, AsgiSend
from mcp_actors.errors import EngineStopped, LocalProtocolError
from mcp_actors.supervision.budget import Budget, holder_of
from mcp_actors.supervision.logging import log
from mcp_transports.http.asgi.asgi_transport import (
    CLOSE_TIME,
    AppServing,
    AsgiStatistics,
    AsgiTransport,
    ServerWasStopped,
)
from mcp_transports.http.asgi.loops import LoopSide, current_side
from mcp_transports.http.asgi.response import (
    AsgiAnswer,
    AsgiListener,
    AsgiResponse,
    body_message,
    refusal_messages,
    start_message,
    websocket_refusal_messages,
)
from mcp_transports.http.asgi.websocket import AsgiWebSocket, AsgiWebSocketChannel
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import HOST, LOWER_NAMES, METHODS, SINGLE_VALUED, Request
from mcp_transports.http.server.responses import JSON, PATH_NOT_FOUND, SERVER_STOPPING, Refusal
from mcp_transports.http.server.service import HttpService

__all__ = ["AsgiApp", "BodyReader", "RequestRefused", "request_of"]

_METHODS = frozenset(METHODS.values())
# A body of this many bytes is what one read brings, and is not counted as held.
_UNCOUNTED = 64 * 1024
# Messages without a byte of the body: servers send one or two.
_MOST_EMPTY = 100
# Messages between two checkpoints: a server that has everything never waits.
_MESSAGES_AT_ONCE = 64
# Characters of a path in the log.
_SHOWN_PATH = 200
# Methods whose body means nothing here, and is not read.
_WITHOUT_BODY = ("GET", "HEAD", "DELETE", "OPTIONS")
# Tries to find a server that serves, while another one of the application ends.
_TRIES = 3


class ServedServer(Protocol):
    """The part of a `mcp_actors.Server` that an application uses."""

    @property
    def limits(self) -> Any: ...

    async def serve(self, *targets: Any, task_status: Any = ...) -> None: ...


class AsgiApp:
    """Serves MCP over HTTP in an ASGI server: both eras of Streamable HTTP, and HTTP+SSE beside it.

    The server runs in the engine's thread, whatever loop the ASGI server has. It begins with the ASGI server's lifespan
    and ends with it. A framework that mounts an application does not run its lifespan: use `lifespan` as that of the
    framework, or around what that has. Without one the server begins at the first request, and ends with the program.

    Mounted at a prefix, it is served below it: ``app.mount("/tools", server.asgi())`` is at ``/tools/mcp``. The public
    documents of ``auth`` have paths from the root of the host, `documents`; mount the same object there, too.

    Args:
        server: The server.
        path: The path of Streamable HTTP, relative to where the application is mounted.
        websocket: The path of WebSocket, relative as ``path``, which it may equal; ``None`` for no WebSockets. The ASGI
            server sends the pings, and limits connections.
        settings: Those of `HttpServerTransport`, all but ``url`` and ``ssl_context``. ``limits`` bounds heads, bodies
            and what waits to be sent; what concerns connections is the ASGI server's. The default of
            ``allowed_hosts`` is ``localhost``, ``127.0.0.1`` and ``[::1]``, because the application does not know
            under which names it is reached.

    Raises:
        ImportError, TypeError, ValueError: As `HttpServerTransport`; so too if ``path`` does not begin with ``/``.
    """

    def __init__(
        self, server: ServedServer, *, path: str = "/mcp", websocket: str | None = None, **settings: Any
    ) -> None:
        if not path.startswith("/"):
            raise ValueError(f"the path of an application begins with '/', unlike {path!r:.80}")
        if websocket is not None and not websocket.startswith("/"):
            raise ValueError(f"the path of WebSocket begins with '/', unlike {websocket!r:.80}")
        self.server = server
        self._service = service = HttpService(path, "localhost", **settings)
        self._drain_time: float = server.limits.drain_grace
        self._bodies = BodyReader(service.limits)
        self._lock = Lock()
        self._serving: AppServing | None = None
        self._websocket = websocket
        paths = service.paths
        self._paths = frozenset((*paths.forms, *((paths.sse, paths.messages) if paths.sse else ())))
        self.documents: tuple[str, ...] = ()
        """The paths of public documents, from the root of the host: the metadata of ``auth``. Empty without it."""
        if service.authentication is not None:
            self.documents = tuple(service.authentication.documents)
        self._transport = AsgiTransport(service, self._drain_time)
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<AsgiApp {self._service.paths.streamable} {self._serving!r}>"

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serves one scope: ``http``, ``websocket`` or ``lifespan``.

        Raises:
            AnswerCutOff: An answer ends where it is, and the server has to close the connection.
            LocalProtocolError: The scope is of another type, it or a message is malformed, or no event loop runs here.
            Exception: What the server's ``receive`` and ``send`` raise.
        """
        kind = _type_of(scope)
        if kind == "http":
            await self._serve_http(scope, receive, send)
        elif kind == "lifespan":
            await self._serve_lifespan(receive, send)
        elif kind == "websocket":
            await self._serve_websocket(scope, receive, send)
        else:
            raise LocalProtocolError(f"an ASGI scope of the type {kind!r:.40} is not served")

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Serves while the block runs: for ``FastAPI(lifespan=…)``, or within a lifespan of the program's own.

        Args:
            app: The framework's application, which is not used.

        Raises:
            Exception: What keeps the server from beginning, its own lifespan for one.
        """
        side = current_side()
        serving = await self._begin(side)
        try:
            yield
        finally:
            await self._end(side, serving)

    def statistics(self) -> AsgiStatistics:
        """Returns a snapshot of the numbers of sessions and streams."""
        return self._transport.statistics()

    # -- serving -----------------------------------------------------------------------------------------------------

    async def _begin(self, side: LoopSide) -> AppServing:
        """Begins to serve for a lifespan, or joins another one that does."""
        serving = self._current(side)
        serving.users += 1
        try:
            await serving.begun(side)
        except BaseException:
            self._give_up(serving)
            raise
        return serving

    async def _end(self, side: LoopSide, serving: AppServing) -> None:
        with self._lock:
            serving.users -= 1
            if serving.users:
                return
        try:
            await serving.end(side)
        except BaseException:
            serving.abandon()
            raise
        finally:
            self._forget(serving)

    def _current(self, side: LoopSide) -> AppServing:
        """Returns what serves, and begins it if nothing serves yet."""
        with self._lock:
            serving = self._serving
            if serving is not None and serving.is_stale(side):
                serving.abandon()
                serving = None
            if serving is None or (serving.state == "ended" and serving.failure is not None):
                self._transport = AsgiTransport(self._service, self._drain_time)
                serving = self._serving = AppServing(
                    side, self.server.serve, self._transport, self._drain_time + CLOSE_TIME
                )
            return serving

    def _give_up(self, serving: AppServing) -> None:
        with self._lock:
            serving.users -= 1
            if serving.users > 0:
                return
        serving.abandon()
        self._forget(serving)

    def _forget(self, serving: AppServing) -> None:
        with self._lock:
            if self._serving is serving:
                self._serving = None

    async def _serve_lifespan(self, receive: AsgiReceive, send: AsgiSend) -> None:
        first = _type_of(await receive())
        if first != "lifespan.startup":
            raise LocalProtocolError(f"a lifespan began with {first!r:.40}")
        side = current_side()
        try:
            serving = await self._begin(side)
        except Exception as error:
            log.error("a server could not be started with its application", exc_info=error)
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        ended = False
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._end(side, serving)
            ended = True
        finally:
            if not ended:
                self._give_up(serving)
        await send({"type": "lifespan.shutdown.complete"})

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _serve_http(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        side = current_side()
        limits = self._service.limits
        try:
            request = request_of(scope, limits, self._paths, self.documents)
            charged = 0
            if request.method not in _WITHOUT_BODY:
                request.body, charged = await self._bodies.read(side, receive, request.peer)
        except RequestRefused as refusal:
            if refusal.reason:
                closes = scope.get("http_version", "1.1").startswith("1")
                for message in refusal_messages(refusal.status, refusal.reason, closes=closes):
                    await send(message)
            return
        if request.path not in self._paths and request.method == "POST" and not self._has_warned:
            self._warn(scope, request)
        try:
            listener = await self._listener(side)
            if listener is None:
                await _send_refusal(send, SERVER_STOPPING)
                return
            answer = AsgiAnswer(side, receive, send)
            response = AsgiResponse(listener, request, answer)
            side.post_together(partial(listener.serve, response))
            await answer.deliver(response)
        finally:
            self._bodies.release(request.peer, charged)

    def _warn(self, scope: AsgiMessage, request: Request) -> None:
        """Logs once where a wrong path would be right. The client does not learn it: paths may be secret."""
        self._has_warned = True
        log.warning(
            "a message was posted to a path at which no MCP is served",
            path=request.target.partition("?")[0][:_SHOWN_PATH],
            served=scope.get("root_path", "").rstrip("/") + self._service.paths.streamable,
        )

    async def _serve_websocket(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        side, service, path = current_side(), self._service, self._websocket
        first = _type_of(await receive())
        if first == "websocket.disconnect":
            return
        if first != "websocket.connect":
            raise LocalProtocolError(f"a WebSocket began with {first!r:.40}")
        _require_of_websocket(scope)
        try:
            request = request_of(scope, service.limits, () if path is None else (path,), ())
        except RequestRefused as refusal:
            await _refuse_websocket(scope, send, Refusal(refusal.status, refusal.reason))
            return
        if path is None or request.path != path:
            await _refuse_websocket(scope, send, PATH_NOT_FOUND)
            return
        listener = await self._listener(side)
        if listener is None:
            await _refuse_websocket(scope, send, SERVER_STOPPING)
            return
        socket = AsgiWebSocket(side, receive, send)
        channel = AsgiWebSocketChannel(socket, scope, request, service.settings.longest)
        side.bridge.engine.post(lambda: channel.begin(listener, service))
        await socket.run(channel)

    async def _listener(self, side: LoopSide) -> AsgiListener | None:
        """Returns what serves requests, begun at the first of them; ``None`` when the server was stopped."""
        listener = self._transport.listener
        serving = self._serving
        if listener is not None and serving is not None and not serving.is_stale(side):
            return listener
        for _ in range(_TRIES):
            try:
                return await self._current(side).begun(side)
            except ServerWasStopped:
                return None
            except EngineStopped:
                continue
        return None


async def _send_refusal(send: AsgiSend, refusal: Refusal) -> None:
    await send(start_message(refusal.status, JSON, refusal.headers, len(refusal.body)))
    await send(body_message(refusal.body, more=False))


async def _refuse_websocket(scope: AsgiMessage, send: AsgiSend, refusal: Refusal) -> None:
    for message in websocket_refusal_messages(scope, refusal):
        await send(message)


def request_of(
    scope: AsgiMessage, limits: HttpLimits, paths: Collection[str], documents: Collection[str]
) -> Request:
    """Returns the request of an ``http`` or ``websocket`` scope, without its body.

    Args:
        scope: The scope.
        limits: The bounds on its head.
        paths: The paths that are served, relative to where the application is mounted.
        documents: The paths of public documents, from the root of the host.

    Raises:
        RequestRefused: The request is malformed, or over a limit.
        LocalProtocolError: The scope is.
    """
    try:
        return _request_of(scope, limits, paths, documents)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise LocalProtocolError(f"an ASGI scope is malformed: {error!r:.200}") from error


def _request_of(
    scope: AsgiMessage, limits: HttpLimits, paths: Collection[str], documents: Collection[str]
) -> Request:
    headers = _headers(scope["headers"], limits)
    method = scope.get("method", "GET")
    if method not in _METHODS:
        raise RequestRefused(501, "the method is not implemented")
    host = headers.get("host")
    if host is not None and not _is_host(host):
        raise RequestRefused(400, "the header host is malformed")
    version = scope.get("http_version", "1.1")
    if host is None and version != "1.0":
        raise RequestRefused(400, "the header host is missing")
    full = path = scope["path"]
    if not (isinstance(path, str) and isinstance(version, str)):
        raise TypeError("path and http_version are strings")
    # A server decodes a path from bytes, so there is nothing in it that no bytes are.
    path.encode()
    if scope.get("root_path"):
        full, path = _paths(scope, paths, documents)
        # A prefix may have characters in it that a URL cannot have.
        full = full if full == path else quote(full)
    raw_query = scope.get("query_string")
    query = raw_query.decode("latin-1") if raw_query else ""
    if len(full) + len(query) > limits.target_bytes:
        raise RequestRefused(414, "the request target is too long")
    return Request(
        method,
        f"{full}?{query}" if query else full,
        path,
        query,
        headers,
        b"",
        version,
        True,
        peer=_peer(scope.get("client")),
        secure=scope.get("scheme") in ("https", "wss"),
    )


class RequestRefused(Exception):
    """A request that is malformed, over a limit, or that there is no room for.

    Args:
        status: The status of the answer.
        reason: Its text. Empty when the client has left.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def _type_of(message: AsgiMessage) -> str:
    """Returns the type of a scope or a message.

    Raises:
        LocalProtocolError: It has none.
    """
    kind = message.get("type") if isinstance(message, Mapping) else None
    if not isinstance(kind, str):
        raise LocalProtocolError(f"an ASGI scope or message has no type: {message!r:.200}")
    return kind


def _require_of_websocket(scope: AsgiMessage) -> None:
    """Raises `LocalProtocolError` if the members are malformed that only the scope of a WebSocket has."""
    subprotocols, extensions = scope.get("subprotocols"), scope.get("extensions")
    if not isinstance(subprotocols, list | tuple | None) or not isinstance(extensions, Mapping | None):
        raise LocalProtocolError("an ASGI scope is malformed: subprotocols is a list, and extensions a dict")


@lru_cache(maxsize=64)
def _is_host(value: str) -> bool:
    return HOST.fullmatch(value) is not None


def _headers(lines: Collection[tuple[bytes, bytes]], limits: HttpLimits) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    for name, value in lines:
        size += len(name) + len(value)
        key = LOWER_NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key not in headers:
            headers[key] = text
        elif key in SINGLE_VALUED or key.startswith("mcp-"):
            raise RequestRefused(400, f"the header {key} is repeated")
        else:
            headers[key] += ("; " if key == "cookie" else ", ") + text
    if len(lines) > limits.headers:
        raise RequestRefused(431, "too many header lines")
    if size + 4 * len(lines) > limits.head_bytes:
        raise RequestRefused(431, "the request head is too long")
    length = headers.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdecimal()):
            raise RequestRefused(400, "the header content-length is malformed")
        if len(length) > 20 or int(length) > limits.body_bytes:
            raise RequestRefused(413, "the request body is too long")
    return headers


def _paths(scope: AsgiMessage, paths: Collection[str], documents: Collection[str]) -> tuple[str, str]:
    """Returns the path from the root of the host, and the one that is served.

    Servers and frameworks disagree whether ``path`` begins with ``root_path``: ASGI says so, as Starlette does since
    0.33, and older ones leave it out.
    """
    path: str = scope["path"]
    root: str = scope["root_path"].rstrip("/")
    if not root:
        return path, path
    if path == root or path.startswith(f"{root}/"):
        full, relative = path, path[len(root) :] or "/"
    else:
        full, relative = root + path, path
    if full in documents:
        return full, full
    if relative not in paths and path in paths:
        return root + path, path
    return full, relative


def _peer(client: tuple[str, int] | None) -> str:
    if not client or not client[0]:
        return "unix"
    host, port = client[0], client[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class BodyReader:
    """Reads the bodies of requests, and charges them to their peers. Used by any number of loops and threads.

    Args:
        limits: The bounds on bodies.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self.budget = Budget(limits.held_bytes, limits.held_bytes_per_address)

    async def read(self, side: LoopSide, receive: AsgiReceive, peer: str) -> tuple[bytes, int]:
        """Returns the body of a request, and how many bytes of it are charged, which `release` takes back.

        Raises:
            RequestRefused: It is too long or too slow, there is no room for it, or the client has left.
            LocalProtocolError: A message is malformed.
        """
        limits = self._limits
        parts: list[bytes] = []
        size = charged = messages = empty = 0
        began = 0.0
        try:
            while True:
                message = await side.within(limits.body_time, receive)
                if _type_of(message) != "http.request":
                    raise RequestRefused(400, "")
                body = message.get("body", b"")
                if not isinstance(body, bytes):
                    if not isinstance(body, bytearray | memoryview):
                        raise LocalProtocolError(f"a body of ASGI is bytes, not {type(body).__name__}")
                    body = bytes(body)
                size += len(body)
                if size > limits.body_bytes:
                    raise RequestRefused(413, "the request body is too long")
                if size > _UNCOUNTED:
                    self._charge(peer, size - charged)
                    charged = size
                parts.append(body)
                if not message.get("more_body", False):
                    break
                began = began or time.monotonic()
                messages += 1
                empty += not body
                if messages % _MESSAGES_AT_ONCE == 0:
                    await side.checkpoint()
                elapsed = time.monotonic() - began
                if empty > _MOST_EMPTY:
                    raise RequestRefused(400, "the request body does not come")
                if elapsed > limits.body_time and size < limits.body_rate * elapsed:
                    raise RequestRefused(408, "the request body is too slow")
        except TimeoutError:
            self.release(peer, charged)
            raise RequestRefused(408, "the request body is too slow") from None
        except BaseException:
            self.release(peer, charged)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts), charged

    def release(self, peer: str, amount: int) -> None:
        """Takes back what was charged."""
        if amount:
            with self._lock:
                self.budget.release(holder_of(peer), amount)

    def _charge(self, peer: str, amount: int) -> None:
        with self._lock:
            over = self.budget.charge(holder_of(peer), amount)
        if over is not None:
            whose = "one address" if over == "holder" else "all clients together"
            limit = self.budget.limit_of(over)
            raise RequestRefused(
                503, f"too many bytes in bodies of unanswered requests of {whose}: the limit is {limit}"
            )
