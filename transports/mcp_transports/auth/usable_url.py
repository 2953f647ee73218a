"""Reads URLs that came from the network."""

from __future__ import annotations

import httpx2

from mcp_actors.errors import UrlRefused
from mcp_transports.auth.addresses import is_loopback_host

__all__ = ["shown", "usable_url"]

# Characters of a URL that is shown.
SHOWN = 200


def shown(url: str | httpx2.URL) -> str:
    """Returns what may be shown of a URL: neither user nor query, which may hold secrets, and not without end."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return "a malformed URL"
    return str(parsed.copy_with(userinfo=b"", query=None, fragment=None))[:SHOWN]


def usable_url(url: str) -> httpx2.URL:
    """Returns a URL that may be used as far as its text says: ``https``, or ``http`` to this machine.

    Raises:
        UrlRefused: It is no such URL, or has a user or control characters in it.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UrlRefused("a URL has characters that no URL has")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise UrlRefused("a URL is malformed") from None
    if not parsed.host or parsed.userinfo:
        raise UrlRefused(f"{shown(parsed)} must name a host, and no user")
    if parsed.scheme != "https" and not (parsed.scheme == "http" and is_loopback_host(parsed.host)):
        raise UrlRefused(f"{shown(parsed)} is not https, and http is for servers on this machine only")
    return parsed.copy_with(fragment=None)
