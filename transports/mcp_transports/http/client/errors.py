"""The errors for HTTP responses that do not answer the request; their texts say what to do next."""

from __future__ import annotations

from mcp_actors.errors import ConnectFailed, RemoteProtocolError

__all__ = ["AccessRefused", "HttpRefused", "error_for_status"]

# Characters of a body that an error shows.
MAX_TEXT = 200

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


def error_for_status(
    peer: str, status: int, body: bytes, *, location: str | None = None, challenge: str | None = None
) -> HttpRefused | AccessRefused:
    """Returns the error for a response of ``peer`` that does not answer the request.

    Args:
        peer: the server's URL, as it may be shown.
        status: the HTTP status.
        body: the beginning of the body.
        location: the URL that a redirection leads to. Redirections are not followed, because the body and the
            headers may hold secrets, and an answer that was not encrypted might lead anywhere.
        challenge: the ``WWW-Authenticate`` header.
    """
    text = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    text = " ".join(text.split())[:MAX_TEXT]
    quoted = f": {text}" if text and not text.startswith("<") else ""
    if status == 401:
        message = f"{peer} asks for authorization (HTTP 401{quoted}); give the transport headers or a client with auth"
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
    message = f"{peer} answered with HTTP {status}{quoted}" + (f" ({advice})" if advice else "")
    return HttpRefused(message, status=status, text=text)
