"""The refusals that HTTP answers without asking the engine.

The statuses are those of MCP 2026-07-28, Streamable HTTP, and of MCP 2025-11-25, Transports. 406, 409 and 415 are the
convention of the protocol's official servers where the specification names no status.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mcp_actors.errors import INTERNAL_ERROR as INTERNAL_ERROR_CODE
from mcp_actors.errors import SharedStateUnavailable
from mcp_transports.http.h1.no_room import BAD_REQUEST_CODE, NO_ROOM_AFTER, error_body

__all__ = ["RETRY_LATER", "Header", "Refusal", "method_not_allowed", "shared_state_unavailable"]

Header = tuple[str, str]

# The convention of the protocol's official servers, where the protocol names no code of its own.
SESSION_NOT_FOUND_CODE = -32001


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


RETRY_LATER: tuple[Header, ...] = (("retry-after", NO_ROOM_AFTER),)

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
    404,
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
SERVER_STOPPING = Refusal(503, "the server is stopping", headers=RETRY_LATER)
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
