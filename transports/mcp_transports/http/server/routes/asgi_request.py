"""One HTTP request for an ASGI application, on our own HTTP server (ASGI, HTTP & WebSocket, version 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import trio

from mcp_actors.abc.asgi import AsgiApplication, AsgiMessage
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import Header
from mcp_transports.http.server.routes.lifespans import ASGI_VERSIONS

__all__ = ["AsgiRequest"]

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
        headers: The headers of the origin policy, which are added where the application has none of the same name.
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
