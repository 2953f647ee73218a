"""Whether a URL leads to where this process itself serves."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["is_own_address"]

# Names of this machine, and what listens at all of its addresses.
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def is_own_address(url: str, listen: Iterable[str]) -> bool:
    """Returns whether whoever connects to ``url`` reaches what listens at one of the URLs ``listen``."""
    return _place(url) in map(_place, listen)


def _place(url: str) -> tuple[str, ...]:
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return (url,)
    # Any free port is not known yet.
    if not host or port == 0:
        return (url,)
    return (parts.scheme, "" if host in _HERE else host, str(port), parts.path)
