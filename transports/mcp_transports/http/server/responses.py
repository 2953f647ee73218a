"""The answers of HTTP that need no engine: refusals, statuses, and the media types that are accepted.

The statuses are those of MCP 2026-07-28, Streamable HTTP, and of MCP 2025-11-25, Transports. 406, 409 and 415 are the
convention of the protocol's official servers where the specification names no status. The engine marks the answer to a
request that it cannot serve with the error code (`Frame.refusal`), and no other answer: an error that a tool or a
handler made is an ordinary answer with 200 in both eras.

``Content-Type`` and ``Accept`` are read as far as the protocol needs them (RFC 9110 sections 8.3 and 12.5.1): it asks
for JSON in every POST, and for both types in its ``Accept``.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from mcp_actors.errors import INTERNAL_ERROR as INTERNAL_ERROR_CODE
from mcp_actors.errors import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    InsufficientScope,
    Overloaded,
    ServerStopping,
    SharedStateUnavailable,
)
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.response import BAD_REQUEST_CODE, NO_ROOM_AFTER, error_body

__all__ = [
    "EVENTS",
    "JSON",
    "LEGACY_STATUSES",
    "MODERN_STATUSES",
    "RETRY_LATER",
    "USUAL_ACCEPT",
    "Header",
    "Identity",
    "IdentityLater",
    "Refusal",
    "StatusTable",
    "accepts_both",
    "accepts_events",
    "accepts_json",
    "is_json",
    "method_not_allowed",
    "shared_state_unavailable",
]

JSON = "application/json"
EVENTS = "text/event-stream"
# The ``Accept`` headers that official clients send. Each accepts both types, so a caller may look here first.
USUAL_ACCEPT = frozenset({f"{JSON}, {EVENTS}", f"{EVENTS}, {JSON}"})
Header = tuple[str, str]
# The convention of the protocol's official servers, where the protocol names no code of its own.
SESSION_NOT_FOUND_CODE = -32001
RETRY_LATER: tuple[Header, ...] = (("retry-after", NO_ROOM_AFTER),)


def _error_body(refusal: Refusal) -> bytes:
    return error_body(refusal.message, refusal.code) if refusal.message else b""


@attrs.frozen
class Refusal:
    """The answer to a request that is not served. ``authenticate`` of `HttpServerTransport` returns one.

    The body is a JSON-RPC error without an id, because the request was not decoded, unless ``body`` is given.

    Args:
        status: The HTTP status, 400 to 599.
        message: An explanation for the developer of the client. It must not repeat anything of the request.
            Without a message the body is empty.
        code: The JSON-RPC error code in the body.
        headers: Further response headers, as (name, value).
        body: The whole body, in place of the JSON-RPC error.
    """

    status: int
    message: str = ""
    code: int = BAD_REQUEST_CODE
    headers: Sequence[Header] = ()
    # Written as a default that type checkers understand.
    body: bytes = attrs.field(repr=False, default=attrs.Factory(_error_body, takes_self=True))


def is_json(content_type: str | None) -> bool:
    """Whether a body is declared as JSON.

    A body is always read as UTF-8, so no other charset may be declared. The type is required because a web page of
    another origin cannot send it without a preflight (Fetch standard, CORS-safelisted request-header).
    """
    if content_type is None:
        return False
    kind, *parameters = (part.strip(" \t").lower() for part in content_type.split(";"))
    charsets = (value for name, _, value in (each.partition("=") for each in parameters) if name == "charset")
    return kind == JSON and all(charset.strip('"') in ("utf-8", "utf8") for charset in charsets)


def accepts_both(accept: str | None) -> bool:
    """Whether an answer may be JSON as well as an event stream."""
    return accepts_json(accept) and accepts_events(accept)


def accepts_json(accept: str | None) -> bool:
    """Whether an answer may be JSON."""
    return _accepts(accept, JSON)


def accepts_events(accept: str | None) -> bool:
    """Whether an answer may be an event stream."""
    return _accepts(accept, EVENTS)


def _accepts(accept: str | None, wanted: str) -> bool:
    if accept is None:
        return False
    ranges = {wanted, wanted.partition("/")[0] + "/*", "*/*"}
    for part in accept.lower().split(","):
        kind, *parameters = (each.strip(" \t") for each in part.split(";"))
        if kind in ranges and not any(_is_weight_zero(each) for each in parameters):
            return True
    return False


def _is_weight_zero(parameter: str) -> bool:
    """Whether a parameter is ``q=0``, which says that its media range is not acceptable (RFC 9110 section 12.4.2)."""
    name, _, value = parameter.partition("=")
    return name == "q" and value.startswith("0") and not value.strip("0.")


class StatusTable(dict[int | None, int]):
    """The status of an answer by the code of its refusal (`Frame.refusal`), which is ``None`` for all other answers.

    Args:
        by_code: The statuses of some codes, and of ``None``.
        otherwise: The status of all other codes.
    """

    def __init__(self, by_code: Mapping[int | None, int], *, otherwise: int) -> None:
        super().__init__(by_code)
        self._otherwise = otherwise

    def __missing__(self, code: int | None) -> int:
        return self._otherwise


# MCP 2026-07-28, Streamable HTTP: 404 for a method that does not exist (Protocol Version Header), 400 for all other
# requests: versions, headers that differ from the body (Server Validation), missing capabilities. 503 is HTTP's
# own (RFC 9110 section 15.6.4), for a server that has no room for another call.
MODERN_STATUSES = StatusTable(
    {None: 200, METHOD_NOT_FOUND: 404, InsufficientScope.CODE: 403, Overloaded.CODE: 503}, otherwise=400
)


# MCP 2025-11-25, Transports, Sending Messages to the Server: 400 is for bodies that are not a message of the protocol.
# 403 is that of MCP 2025-11-25, Authorization, Error Handling.
LEGACY_STATUSES = StatusTable(
    {None: 200, PARSE_ERROR: 400, INVALID_REQUEST: 400, InsufficientScope.CODE: 403}, otherwise=200
)


Identity = Principal | Refusal | None
"""The caller of a request, the answer to one that is not served, or ``None`` for an unknown caller."""


IdentityLater = partial[Coroutine[Any, Any, Identity]]
"""Called and awaited for an identity. A `partial`, so that it is distinguished by its class."""


SESSION_REQUIRED = Refusal(
    400, "a session is required: send initialize first, then its mcp-session-id header"
)


PATH_NOT_FOUND = Refusal(404, "nothing is served at this path; the URL of a server often ends in /mcp")


HOLDER_LOST = Refusal(
    502,
    "the node that held the session was lost before it answered: what was asked may have been done; begin a new "
    "session to go on",
)


SESSION_NOT_FOUND = Refusal(404, "session not found", SESSION_NOT_FOUND_CODE)


EVENT_NOT_FOUND = Refusal(
    400,
    "nothing is known of that last-event-id in this session, or what followed it is gone: begin anew without it",
)


EVENTS_NOT_ACCEPTED = Refusal(406, "not acceptable: the accept header must name text/event-stream")


REPLIES_NOT_ACCEPTED = Refusal(
    406, "not acceptable: the accept header must name application/json and text/event-stream"
)


STREAM_ALREADY_OPEN = Refusal(409, "conflict: this session has its stream open already")


UNSUPPORTED_MEDIA_TYPE = Refusal(
    415, "unsupported media type: the content-type must be application/json, in UTF-8"
)


INTERNAL_ERROR = Refusal(500, "internal error", INTERNAL_ERROR_CODE)


def _stopping(error: ServerStopping, headers: Sequence[Header]) -> Refusal:
    return Refusal(503, error.message, error.code, headers, error_body(error.message, error.code, error.data))


SERVER_STOPPING = _stopping(ServerStopping(), RETRY_LATER)
"""For what was not begun."""


SERVER_STOPPED = _stopping(ServerStopping.elsewhere(), ())
"""For what another node may go on with."""


TOO_MANY_SESSIONS = Refusal(503, "too many sessions", headers=RETRY_LATER)


TOO_MANY_SESSIONS_OF_PEER = Refusal(
    503,
    "too many sessions of this principal or address: end those that are not needed with DELETE",
    headers=RETRY_LATER,
)


TOO_MANY_MESSAGES = Refusal(503, "too many messages wait to be read", headers=RETRY_LATER)


def shared_state_unavailable(error: SharedStateUnavailable) -> Refusal:
    """Returns the answer to a request that needs the state which several nodes share, while that is away."""
    body = error_body(error.message, error.code, error.data)
    return Refusal(503, error.message, error.code, RETRY_LATER, body)


def method_not_allowed(*allowed: str) -> Refusal:
    """Returns a 405 that names the methods which are ``allowed`` (RFC 9110 section 15.5.6)."""
    names = ", ".join(allowed)
    return Refusal(405, f"method not allowed: send {names}", headers=(("allow", names),))
