"""The URL of an address to listen at, in parts."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

__all__ = ["DEFAULT_PATH", "ListenUrl"]

# For URLs without a path.
DEFAULT_PATH = "/mcp"

_DEFAULT_PORTS = {"http": 80, "https": 443}


class ListenUrl:
    """The parts of ``http://HOST:PORT/PATH``, ``https://…`` or ``http+unix://%2Frun%2Fx.sock/PATH``.

    Args:
        url: The URL.
        default_path: The path of a URL that has none.

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
