"""The answers of plain handlers, as they are returned and as they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import Header

__all__ = ["Answer", "Reply", "reply_of", "send_reply"]

_TEXT = "text/plain; charset=utf-8"
_BYTES = "application/octet-stream"
_JSON = "application/json"


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
        TypeError: It is none of the types of `Answer`.
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
