"""The address of an admin endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

import attrs

from mcp_transports.http.server.origin_policy import LOOPBACK_NAMES

__all__ = ["AdminPlace"]


@attrs.frozen
class AdminPlace:
    """A Unix socket, or a host and a port."""

    scheme: str
    path: str | None
    """The path of a Unix socket."""
    host: str
    """``localhost`` for a Unix socket, which only this machine reaches."""
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """Returns the address that a URL names.

        Raises:
            ValueError: It is neither ``unix:PATH`` nor ``http://HOST:PORT``.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix":
            path = url.partition(":")[2]
            path = "/" + path.lstrip("/") if path.startswith("//") else path
            if path.strip("/") and not parts.query and not parts.fragment:
                return cls("unix", path, "localhost", 0)
        elif parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/"):
            extras = (parts.query, parts.fragment, parts.username, parts.password)
            if not any(extras):
                return cls(parts.scheme, None, parts.hostname, parts.port or 0)
        raise ValueError(
            f"an admin endpoint is at unix:PATH or http://127.0.0.1:PORT, without a path behind that, not at {url!r}"
        )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> Sequence[str]:
        """The names by which browsers may call it."""
        return LOOPBACK_NAMES if self.is_local else (self._bracketed,)

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def url(self, port: int | None = None) -> str:
        """Returns the URL, with the real port if that is known."""
        if self.path is not None:
            return f"unix:{self.path}"
        return f"{self.scheme}://{self._bracketed}:{self.port if port is None else port}"
