"""A request as the application sees it, the rules for its head, and the URL of an address to listen at.

The rules are those that llhttp does not check: methods, hosts, targets and the names of headers.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

__all__ = [
    "ABSOLUTE_FORM",
    "DEFAULT_PATH",
    "HOST",
    "LOWER_NAMES",
    "METHODS",
    "METHOD_AND_BLANK",
    "SINGLE_VALUED",
    "ListenUrl",
    "MalformedRequest",
    "Request",
]

# The methods that a resource may answer. This server is neither a proxy nor a WebDAV server, so it has no others.
METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")}
METHOD_AND_BLANK = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} ")
# RFC 3986 section 3.2.2 and the port; no user information, which RFC 9110 section 4.2.4 forbids in requests.
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?", re.ASCII)
ABSOLUTE_FORM = re.compile(r"https?://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)
_USUAL_NAMES = """
    Accept Accept-Encoding Accept-Language Authorization Cache-Control Connection Content-Encoding Content-Length
    Content-Type Cookie Expect Forwarded Host Keep-Alive Last-Event-ID MCP-Protocol-Version Mcp-Method Mcp-Name
    Mcp-Session-Id Mcp-Protocol-Version Origin Pragma Referer Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site
    Sec-WebSocket-Extensions Sec-WebSocket-Key Sec-WebSocket-Protocol Sec-WebSocket-Version
    Transfer-Encoding Upgrade User-Agent X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto
"""
# Names need no decoding if they have one of the spellings that clients use.
LOWER_NAMES = {
    spelling.encode(): name.lower() for name in _USUAL_NAMES.split() for spelling in (name, name.lower())
}
# Headers of which a second line is an attempt to be understood in two ways (RFC 9110 section 5.3).
_SINGLE_NAMES = """
    authorization content-length content-location content-type date expect from host if-modified-since
    if-unmodified-since last-event-id max-forwards origin proxy-authorization range referer transfer-encoding
    user-agent
"""
SINGLE_VALUED = frozenset(_SINGLE_NAMES.split())
# For URLs without a path.
DEFAULT_PATH = "/mcp"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Request(msgspec.Struct, gc=False):
    """One complete HTTP request. The fields are decoded only as far as their descriptions say."""

    method: str
    target: str
    """The target as it came: origin-form, absolute-form or ``*``."""
    path: str
    """The target's path, percent-encoding untouched."""
    query: str
    """The part of the target after ``?``; empty without one."""
    headers: dict[str, str]
    """Lower-case names, and latin-1 values without surrounding blanks. Repeated list-valued headers are joined with
    ", " (cookies with "; "). A request that repeats a header with a single value is refused."""
    body: bytes
    version: str
    """``"1.1"`` or ``"1.0"``."""
    keep_alive: bool
    """Whether the client wants to go on with this connection."""
    peer: str = ""
    """``"127.0.0.1:4711"``, ``"[::1]:4711"`` or ``"unix"``."""
    secure: bool = False
    """Whether it came through TLS."""
    head: bytes = b""
    """Of a request that asks for another protocol, the bytes of its head as they came, so that the other protocol can
    read them; empty when an earlier request came in the same read, and for all other requests."""
    principal: Any = None
    """The caller, in the application's form, once it has authenticated it."""
    entry: Any = None
    """Its line in the access log, to which an application adds what the request is about; ``None`` without one."""

    def __repr__(self) -> str:
        # Headers, query and body may hold secrets, which must not get into a log.
        return f"<Request {self.method} {self.path} from {self.peer}>"


class MalformedRequest(msgspec.Struct, gc=False):
    """A request that is malformed or over a limit. The connection is closed after the answer to it."""

    status: int
    reason: str


class ListenUrl:
    """The parts of ``http://HOST:PORT/PATH``, ``https://…`` or ``http+unix://%2Frun%2Fx.sock/PATH``.

    Args:
        url: The URL.
        default_path: The path for a URL without one.

    Raises:
        ValueError: The URL has another scheme, a query, a fragment or a user, or no address.
    """

    def __init__(self, url: str, *, default_path: str = DEFAULT_PATH) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "http+unix"):
            raise ValueError(f"not a URL that HTTP is served at: {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"a URL to listen at has neither query, fragment nor user: {url!r}")
        self.scheme = parts.scheme
        self.secure = parts.scheme == "https"
        self.path = parts.path or default_path
        self.socket_path: str | None = None
        self.host: str | None = None
        self.port = 0
        if parts.scheme == "http+unix":
            self.socket_path = unquote(parts.netloc)
        else:
            self.host = parts.hostname
            self.port = _DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
        if not (self.host or self.socket_path):
            raise ValueError(f"the URL does not say where to listen: {url!r}")

    def url(self, port: int | None = None) -> str:
        """Returns the URL, with ``port``, the one that is really listened at, if that is known."""
        if self.host is None:
            return f"http+unix://{quote(self.socket_path or '', safe='')}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = self.port if port is None else port
        netloc = host if port == _DEFAULT_PORTS[self.scheme] else f"{host}:{port}"
        return f"{self.scheme}://{netloc}{self.path}"
