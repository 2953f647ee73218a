"""What is answered without asking the engine: the rows of the status tables (protocol §6.3, §6.4) that HTTP decides."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

import attrs

from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response

__all__ = ["Exchange", "Header", "Refusal", "Rest"]

JSON = "application/json"

Header = tuple[str, str]
# What is left to do about a request when it has to wait for something: run in a task of its connection.
Rest = Callable[[], Awaitable[None]]

# The convention of the protocol's official implementations, where it names no code of its own.
BAD_REQUEST = -32000
SESSION_NOT_FOUND = -32001


@attrs.frozen
class Refusal:
    """Why a request is not served: its status, and a text that the peer's developer can act upon.

    The body is a JSON-RPC error without an id, since nothing was read of the request, unless ``body`` says otherwise.
    Nothing of the request may be part of ``message``.
    """

    status: int
    message: str = ""
    code: int = BAD_REQUEST
    headers: Sequence[Header] = ()
    body: bytes = attrs.field(repr=False)

    @body.default
    def _error(self) -> bytes:
        if not self.message:
            return b""
        error = {"jsonrpc": "2.0", "error": {"code": self.code, "message": self.message}}
        return json.dumps(error, separators=(",", ":")).encode()


# A stop, or a bound that was reached: the same request may be served a moment later, here or elsewhere.
_LATER = (("retry-after", "1"),)

SESSION_REQUIRED = Refusal(
    400, "a session is required: send initialize first, then its mcp-session-id header"
)
UNKNOWN_EVENT = Refusal(
    404,
    "nothing is known of that last-event-id in this session, or what followed it is gone: begin anew without it",
)
FORGOTTEN = Refusal(404, "session not found", SESSION_NOT_FOUND)
NOT_HERE = Refusal(404, "nothing is served at this path")
NO_EVENT_STREAM = Refusal(406, "not acceptable: the accept header must name text/event-stream")
NO_JSON_NO_STREAM = Refusal(
    406, "not acceptable: the accept header must name application/json and text/event-stream"
)
STREAM_TAKEN = Refusal(409, "conflict: this session has its stream open already")
NOT_JSON = Refusal(415, "unsupported media type: the content-type must be application/json, in UTF-8")
INTERNAL_ERROR = Refusal(500, "internal error", -32603)
STOPPING = Refusal(503, "the server is stopping", headers=_LATER)
TOO_MANY_SESSIONS = Refusal(503, "too many sessions", headers=_LATER)
TOO_MANY_MESSAGES = Refusal(503, "too many messages wait to be read", headers=_LATER)


def not_allowed(*methods: str) -> Refusal:
    """405 with the methods that are."""
    allowed = ", ".join(methods)
    return Refusal(405, f"method not allowed: send {allowed}", headers=(("allow", allowed),))


class Exchange:
    """One request and the one way to answer it: whatever is answered carries what the guard wants on it (CORS)."""

    __slots__ = ("headers", "request", "response")

    def __init__(self, request: Request, response: Response, headers: Sequence[Header] = ()) -> None:
        self.request = request
        self.response = response
        self.headers = headers

    def __repr__(self) -> str:
        return f"<Exchange {self.request.method} {self.request.path}>"

    def answer(self, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
        """The whole answer; a peer that is gone gets none."""
        self.response.answer(
            status, body, content_type=JSON if body else None, headers=(*self.headers, *headers)
        )

    def refuse(self, refusal: Refusal) -> None:
        self.answer(refusal.status, refusal.body, refusal.headers)
