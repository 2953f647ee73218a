"""ASGI applications at the routes of a listener: their lifespans, and their requests (ASGI, HTTP, version 2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import trio

from mcp_actors.abc.http import AsgiApplication, AsgiMessage
from mcp_actors.errors import McpError
from mcp_actors.supervision.containment import outliving, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ROUTE_LIFESPAN
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.responses import Header

__all__ = ["AsgiRequest", "RouteStartFailed", "lifespans"]

ASGI_VERSIONS = {"version": "3.0", "spec_version": "2.4"}
# Seconds that all applications together have to shut down. What they still hold then ends with the process.
_SHUTDOWN_TIME = 10.0
# Characters of an application's explanation that a log line or an error shows.
_MOST_SHOWN = 500
# The HTTP server writes these itself: how long an answer is, and when its connection ends, is its own affair.
_WRITTEN_BY_SERVER = frozenset(("connection", "content-length", "date", "keep-alive", "transfer-encoding"))
# Bytes that are sent before the client has to have read what came earlier.
_PIECE = 256 * 1024
_WITHOUT_BODY = (204, 304)


class AsgiRequest:
    """A request that an application answers.

    Args:
        request: The request, complete.
        response: Its response.
        root_path: The path where the application is served, without a slash at its end.
        state: What the application's startup has put there.
        headers: The headers of the origin policy, which are added unless the application sends one of the same name.
    """

    def __init__(
        self,
        request: Request,
        response: Response,
        root_path: str,
        state: dict[str, Any],
        headers: Sequence[Header],
    ) -> None:
        self._request = request
        self._response = response
        self._root_path = root_path
        self._state = state
        self._policy_headers = headers
        self._received = False
        self._head: AsgiMessage | None = None
        self._complete = trio.Event()

    def __repr__(self) -> str:
        return f"<AsgiRequest {self._request!r}>"

    async def run(self, app: AsgiApplication) -> None:
        """Runs the application. Cancelled when the client leaves, the application is cancelled too.

        Raises:
            RuntimeError: The application returned without an answer, or before its end.
        """
        await app(self._scope(), self._receive, self._send)
        if not self._response.ended:
            raise RuntimeError("an ASGI application returned before its answer was complete")

    def _scope(self) -> AsgiMessage:
        request = self._request
        return {
            "type": "http",
            "asgi": ASGI_VERSIONS,
            "http_version": request.version,
            "method": request.method,
            "scheme": "https" if request.secure else "http",
            "path": unquote(request.path),
            "raw_path": request.path.encode("latin-1"),
            "query_string": request.query.encode("latin-1"),
            "root_path": self._root_path,
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()
            ],
            "client": _address(request.peer),
            "server": None,
            "state": dict(self._state),
            "extensions": {},
        }

    async def _receive(self) -> AsgiMessage:
        if not self._received:
            self._received = True
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        # A client that leaves before that cancels this task.
        await self._complete.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        kind = message["type"]
        if kind == "http.response.start" and self._head is None:
            self._head = message
        elif kind == "http.response.body" and self._head is not None:
            await self._send_body(
                self._head, bytes(message.get("body", b"")), more=bool(message.get("more_body", False))
            )
        else:
            raise RuntimeError(f"an ASGI application sent {kind!r} where it is not allowed")

    async def _send_body(self, head: AsgiMessage, body: bytes, *, more: bool) -> None:
        response = self._response
        if response.gone:
            raise OSError("the client has left")
        if response.ended:
            raise RuntimeError("an ASGI application sent a body after the end of its answer")
        try:
            if not response.started:
                first, body = (body[:_PIECE], body[_PIECE:]) if more else (body, b"")
                self._begin(head, first, more)
            while more and body:
                # In pieces, so that one that is longer than what may be unsent drops no client.
                await response.drained()
                response.write(body[:_PIECE])
                body = body[_PIECE:]
            if not more and not response.ended:
                await response.drained()
                response.end(body)
            if response.ended:
                self._complete.set()
                await trio.lowlevel.checkpoint()
            else:
                # A client that reads slowly slows the application down.
                await response.drained()
        except trio.BrokenResourceError as error:
            # ASGI: what is sent to a client that has left raises OSError.
            raise OSError("the client has left, or takes nothing") from error

    def _begin(self, head: AsgiMessage, body: bytes, more: bool) -> None:
        status = int(head["status"])
        content_type, headers = self._headers_of(head)
        if status in _WITHOUT_BODY:
            self._response.answer(status, content_type=content_type, headers=headers)
        elif more or self._request.method == "HEAD":
            # The body that GET would have got is not known here, so the answer to HEAD does not say how long it is.
            self._response.start(status, content_type=content_type, headers=headers, first=body)
            if not more:
                self._response.end()
        else:
            self._response.answer(status, body, content_type=content_type, headers=headers)

    def _headers_of(self, head: AsgiMessage) -> tuple[str | None, list[Header]]:
        content_type: str | None = None
        headers: list[Header] = []
        names: set[str] = set()
        for raw_name, raw_value in head.get("headers", ()):
            name = bytes(raw_name).decode("latin-1").lower()
            value = bytes(raw_value).decode("latin-1").strip(" \t")
            if name == "content-type":
                content_type = value
            elif name not in _WRITTEN_BY_SERVER:
                headers.append((name, value))
                names.add(name)
        headers += [
            (name, value)
            for name, value in self._policy_headers
            if name.lower() == "vary" or name.lower() not in names
        ]
        return content_type, headers


def _address(peer: str) -> tuple[str, int] | None:
    host, _, port = peer.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


class RouteStartFailed(McpError):
    """An ASGI application at a route said that it could not start. The message says which one, and why."""


class RouteLifespan:
    """One run of an application's lifespan.

    Args:
        path: Where the application is served.
        app: The application.
        state: What it puts there in its startup is seen by its requests.
    """

    def __init__(self, path: str, app: AsgiApplication, state: dict[str, Any]) -> None:
        self.path = path
        self._app = app
        self._state = state
        self._start_requested = False
        self._started = trio.Event()
        self._stopping = trio.Event()
        self._ended = trio.Event()
        self._failure: str | None = None

    async def begin(self, nursery: trio.Nursery) -> None:
        """Waits until the application has started, or turned out to have no lifespan.

        Raises:
            RouteStartFailed: It could not start.
        """
        start(nursery, ROUTE_LIFESPAN, self._run, about=self.path)
        await self._started.wait()
        if self._failure is not None:
            raise RouteStartFailed(f"the application at {self.path} could not start: {self._failure}")

    async def end(self) -> None:
        """Waits until the application has shut down."""
        self._stopping.set()
        await self._ended.wait()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": ASGI_VERSIONS, "state": self._state}
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self._started.is_set():
                raise
            # ASGI, Lifespan Protocol: an application that raises has no lifespan, and is served all the same.
            log.debug("an application has no lifespan", path=self.path, reason=repr(error)[:_MOST_SHOWN])
        finally:
            self._started.set()
            self._ended.set()

    async def _receive(self) -> AsgiMessage:
        if not self._start_requested:
            self._start_requested = True
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        if self._ended.is_set():
            await trio.sleep_forever()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: AsgiMessage) -> None:
        kind, said = message["type"], str(message.get("message", ""))[:_MOST_SHOWN]
        if kind == "lifespan.startup.failed":
            self._failure = said or "it gave no reason"
            self._started.set()
        elif kind == "lifespan.startup.complete":
            self._started.set()
        elif kind == "lifespan.shutdown.failed":
            log.error("an application could not shut down", path=self.path, reason=said)
            self._ended.set()
        elif kind == "lifespan.shutdown.complete":
            self._ended.set()
        else:
            raise ValueError(f"not a message of a lifespan: {kind!r}")


@asynccontextmanager
async def lifespans(apps: Sequence[tuple[str, AsgiApplication, dict[str, Any]]]) -> AsyncIterator[None]:
    """Starts applications in their order, and shuts them down in the opposite one where the block ends.

    Args:
        apps: For each its path, the application, and the state that its requests will see.

    Raises:
        RouteStartFailed: One of them could not start. Those before it were shut down.
    """
    if not apps:
        yield
        return
    begun: list[RouteLifespan] = []
    # They go on while the block is cancelled: an application closes in order what it has opened.
    async with outliving(ROUTE_LIFESPAN) as nursery:
        try:
            for path, app, state in apps:
                state.clear()
                lifespan = RouteLifespan(path, app, state)
                await lifespan.begin(nursery)
                begun.append(lifespan)
            yield
        finally:
            with trio.move_on_after(_SHUTDOWN_TIME, shield=True) as bound:
                for each in reversed(begun):
                    await each.end()
            if bound.cancelled_caught:
                log.error("applications at routes take too long to shut down", seconds=_SHUTDOWN_TIME)
