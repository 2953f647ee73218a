"""What an HTTP server refuses, as typed errors that say what to do next."""

from __future__ import annotations

from mcp_actors.errors import ConnectFailed, RemoteProtocolError

__all__ = ["AccessRefused", "HttpRefused", "refusal"]

# Longer pages say nothing more to a person.
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
    """A request was answered with an HTTP status that is no answer to it: ``status``, and ``text``, its first words."""

    def __init__(self, message: str, *, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.text = text

    @property
    def suggests_older_binding(self) -> bool:
        """Whether a server that speaks HTTP+SSE only may answer ``initialize`` so (protocol §6.5)."""
        return self.status in (400, 404, 405, 406, 415)


class AccessRefused(ConnectFailed):
    """The server wants to know who asks, or does not let them in.

    ``status`` is 401 or 403, ``www_authenticate`` the challenge that came with it, ``text`` the body's first words.
    """

    def __init__(self, message: str, *, status: int, www_authenticate: str | None, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.www_authenticate = www_authenticate
        self.text = text


def refusal(
    peer: str, status: int, body: bytes, *, location: str | None = None, challenge: str | None = None
) -> HttpRefused | AccessRefused:
    """Why ``peer`` answered with ``status``, in words for the one who has to do something about it.

    ``location`` is where a redirection leads. None is followed: the body and the headers may hold secrets, and a
    server that was given as http might lead to anywhere.
    """
    text = "".join(c if c.isprintable() else " " for c in body.decode("utf-8", "replace"))
    text = " ".join(text.split())[:MAX_TEXT]
    said = f": {text}" if text and not text.startswith("<") else ""
    if status == 401:
        what = f"{peer} asks for authorization (HTTP 401{said}); give the transport headers or a client with auth"
        return AccessRefused(what, status=status, www_authenticate=challenge, text=text)
    if status == 403:
        what = f"{peer} does not let us in (HTTP 403{said})"
        return AccessRefused(what, status=status, www_authenticate=challenge, text=text)
    if location is not None:
        what = f"{peer} redirects (HTTP {status}) to {location}; redirections are not followed, use that URL"
        return HttpRefused(what, status=status, text=text)
    advice = _ADVICE.get(status) or ("it failed; its log may say why" if status >= 500 else None)
    what = f"{peer} answered with HTTP {status}{said}" + (f" ({advice})" if advice else "")
    return HttpRefused(what, status=status, text=text)
