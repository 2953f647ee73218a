"""The messages of an answer in ASGI."""

from __future__ import annotations

import http
from collections.abc import Iterable

from mcp_actors.abc.asgi import AsgiMessage
from mcp_transports.http.h1.response import check_header
from mcp_transports.http.server.error_responses import Refusal
from mcp_transports.http.server.media_types import JSON

__all__ = ["body_message", "refusal_messages", "start_message", "websocket_refusal_messages"]

_WEBSOCKET_ANSWERS = "websocket.http.response"
# RFC 6455 section 7.4.1.
_POLICY = 1008
_JSON_LINE = (b"content-type", JSON.encode())
# RFC 9110 section 6.4.1: answers that never have a body.
_WITHOUT_BODY = (204, 304)


def start_message(
    status: int, content_type: str | None, headers: Iterable[tuple[str, str]], length: int | None
) -> AsgiMessage:
    """Returns the message that begins an answer.

    Args:
        status: The HTTP status.
        content_type: Of the body.
        headers: Further headers.
        length: Bytes of the body; ``None`` for a stream.

    Raises:
        ValueError: A status, a content type or a header must not be sent.
    """
    if not 200 <= status <= 599:
        raise ValueError(f"not the status of an answer: {status}")
    lines: list[tuple[bytes, bytes]] = []
    if content_type is not None:
        lines.append(
            _JSON_LINE if content_type == JSON else (b"content-type", content_type.encode("latin-1"))
        )
    if length is not None and status not in _WITHOUT_BODY:
        lines.append((b"content-length", b"%d" % length))
    for name, value in headers:
        check_header(name, value)
        lines.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    return {"type": "http.response.start", "status": status, "headers": lines}


def body_message(body: bytes, *, more: bool) -> AsgiMessage:
    """Returns the message of a piece of the body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


def refusal_messages(status: int, reason: str, *, closes: bool) -> tuple[AsgiMessage, AsgiMessage]:
    """Returns the answer to a request that was not understood, as our own listener gives it.

    ``closes`` says whether the connection is closed behind it, which HTTP/2 has no header for.
    """
    text = f"{status} {http.HTTPStatus(status).phrase}: {reason}\n".encode()
    start = start_message(status, "text/plain", (), len(text))
    if closes:
        start["headers"].append((b"connection", b"close"))
    return start, body_message(text, more=False)


def websocket_refusal_messages(scope: AsgiMessage, refusal: Refusal) -> list[AsgiMessage]:
    """Returns the answer to a request for a WebSocket: with a status where the server can, else it says 403."""
    if _WEBSOCKET_ANSWERS not in (scope.get("extensions") or {}):
        return [{"type": "websocket.close", "code": _POLICY, "reason": ""}]
    head = start_message(refusal.status, JSON, refusal.headers, len(refusal.body))
    return [
        {**head, "type": f"{_WEBSOCKET_ANSWERS}.start"},
        {"type": f"{_WEBSOCKET_ANSWERS}.body", "body": refusal.body, "more_body": False},
    ]
