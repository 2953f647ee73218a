"""The errors for HTTP responses that do not answer the request; their texts say what to do next."""

from __future__ import annotations

import msgspec

from mcp_actors.errors import ConnectFailed, RemoteProtocolError, Unavailable

__all__ = [
    "MAX_ERROR_BYTES",
    "AccessRefused",
    "HttpRefused",
    "HttpUnavailable",
    "error_for_status",
    "is_outage",
    "names_forgotten_session",
]

# Characters of a body that an error shows.
MAX_TEXT = 200
# Bytes that are read of a body that is not a JSON-RPC message.
MAX_ERROR_BYTES = 4096
# Seconds of a Retry-After header that are believed: more of them would be no wait but a refusal.
MAX_RETRY_AFTER = 3600
# What servers say of a session that they do not know, where they should answer 404 (MCP 2025-11-25, Transports, Session
# Management): "No valid session ID provided", "Session not found", "Server not initialized".
_FORGOTTEN = ("session", "not initialized")

_ADVICE = {
    400: "does it speak MCP at this path?",
    404: "check the path; MCP endpoints often end in /mcp or /sse",
    405: "check the path; nothing here takes a POST",
    406: "it offers neither JSON nor an event stream",
    413: "the message is too long for it",
    415: "it takes no JSON",
    421: "it does not serve this host name",
    429: "it is asked too much; try again later",
    502: "the server behind the proxy does not answer",
    503: "it is overloaded or being restarted; try again later",
    504: "the server behind the proxy does not answer in time",
}


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


class HttpRefused(RemoteProtocolError):
    """The server refused a request with an HTTP status."""

    def __init__(self, message: str, *, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.text = text
        """The first words of the body."""

    @property
    def suggests_http_sse(self) -> bool:
        """Whether a server that speaks HTTP+SSE only may answer ``initialize`` with this status.

        MCP 2025-11-25, Transports, Backwards Compatibility, names 400, 404 and 405; servers also send 406 and 415.
        """
        return self.status in (400, 404, 405, 406, 415)


class HttpUnavailable(HttpRefused, Unavailable):
    """The server, or what stands before it, answered 408, 425, 429 or 5xx: the same request may succeed later."""

    def __init__(
        self, message: str, *, status: int, text: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, text=text)
        self.retry_after = retry_after


class AccessRefused(ConnectFailed):
    """The server demands authorization, or denies access."""

    def __init__(self, message: str, *, status: int, www_authenticate: str | None, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, 401 or 403."""
        self.www_authenticate = www_authenticate
        """The challenge that came with it, if any."""
        self.text = text
        """The first words of the body."""


def is_outage(status: int) -> bool:
    """Whether a status says that the same request may succeed later, and nothing about the protocol that is spoken."""
    return status in (408, 425, 429) or status >= 500


class _Answer(msgspec.Struct):
    """As much of a JSON-RPC error as says which request it answers."""

    id: int | str | None = None


def names_forgotten_session(data: bytes, request: int | str | None) -> bool:
    """Whether the body of a 400 says that the session is not known; an error that answers ``request`` never does."""
    text = data[:MAX_ERROR_BYTES].decode("utf-8", "replace").lower()
    if not any(words in text for words in _FORGOTTEN):
        return False
    try:
        answered = msgspec.json.decode(data, type=_Answer).id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return True
    return answered is None or answered != request


def error_for_status(
    peer: str,
    status: int,
    body: bytes,
    *,
    location: str | None = None,
    challenge: str | None = None,
    retry_after: str | None = None,
) -> HttpRefused | AccessRefused:
    """Returns the error for a response of ``peer`` that does not answer the request.

    Args:
        peer: the server's URL, as it may be shown.
        status: the HTTP status.
        body: the beginning of the body.
        location: the URL that a redirection leads to. Redirections are not followed, because the body and the
            headers may hold secrets, and an answer that was not encrypted might lead anywhere.
        challenge: the ``WWW-Authenticate`` header.
        retry_after: the ``Retry-After`` header; only seconds are understood (RFC 9110 section 10.2.3).
    """
    text = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    text = " ".join(text.split())[:MAX_TEXT]
    said = _message_in(body)
    quoted = f": {said or text}" if text and not text.startswith("<") else ""
    if status == 401:
        message = (
            f"{peer} asks for authorization (HTTP 401{quoted}); give Client(auth=OAuth()), "
            "or auth=BearerToken(…) for a key of the server's own"
        )
        return AccessRefused(message, status=status, www_authenticate=challenge, text=text)
    if status == 403:
        message = f"{peer} does not let us in (HTTP 403{quoted})"
        return AccessRefused(message, status=status, www_authenticate=challenge, text=text)
    if location is not None:
        message = (
            f"{peer} redirects (HTTP {status}) to {location}; redirections are not followed, use that URL"
        )
        return HttpRefused(message, status=status, text=text)
    advice = _ADVICE.get(status) or ("it failed; its log may say why" if status >= 500 else None)
    if said and status >= 500:
        advice = None  # an MCP server says itself what is the matter
    message = f"{peer} answered with HTTP {status}{quoted}" + (f" ({advice})" if advice else "")
    if is_outage(status):
        return HttpUnavailable(message, status=status, text=text, retry_after=_seconds(retry_after))
    return HttpRefused(message, status=status, text=text)


def _message_in(body: bytes) -> str:
    """Returns the message of a JSON-RPC error, which is for people; empty for any other body."""
    try:
        message = msgspec.json.decode(body, type=_Refused).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return "".join(c if c.isprintable() else " " for c in message)[:MAX_TEXT]


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None or not (retry_after.isascii() and retry_after.isdecimal()):
        return None
    # A number of more digits than the limit has is not read.
    return float(min(int(retry_after[:5]), MAX_RETRY_AFTER))
