"""The URLs of authorization: canonical forms, well-known places, and which ones may be used at all.

Resources and issuers are compared and sent as the texts that they came as: a URL that was taken apart and put together
again is often another one (RFC 8414 section 3.3, RFC 9728 section 3.3). `UrlPolicy` has the rules for URLs that came
from the network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import SplitResult, unquote, urlsplit

import attrs

from mcp_actors.errors import UrlRefused

__all__ = [
    "UrlPolicy",
    "authorization_server_urls",
    "canonical_resource",
    "covers",
    "is_loopback",
    "origin",
    "protected_resource_urls",
    "require_usable",
    "same_origin",
]

# Characters of a URL that came from the network.
MAX_URL = 4096

# The resource of a WebSocket is that of the HTTP request which opens it.
_HTTP = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_PORTS = {"http": 80, "https": 443}
# Printable ASCII but for what no such URL has, a fragment included. `urlsplit` drops line feeds and tabs silently.
_CLEAN = re.compile(r"[!$%&'()*+,\-./0-9:;=?@A-Z_a-z~\[\]]+")
_CUT = 80


def canonical_resource(url: str) -> str:
    """Returns the canonical URI of a server at ``url`` (MCP 2026-07-28, Authorization, Canonical Server URI).

    Scheme and host are in lower case, a default port, a fragment, a user and a lone ``/`` are left out.

    Raises:
        ValueError: It is not a URL of HTTP or WebSocket.
    """
    parts, beginning = _taken_apart(url)
    path = "" if parts.path == "/" else parts.path
    return f"{beginning}{path}{'?' + parts.query if parts.query else ''}"


def origin(url: str) -> str:
    """Returns scheme, host and port of a URL in one spelling: lower case, without a default port.

    Raises:
        ValueError: It is not a URL of HTTP or WebSocket.
    """
    return _taken_apart(url)[1]


def same_origin(one: str, other: str) -> bool:
    """Returns whether two URLs have the same scheme, host and port. A text that is not a URL differs from any."""
    try:
        return origin(one) == origin(other)
    except ValueError:
        return False


def protected_resource_urls(server_url: str) -> list[str]:
    """Returns where the metadata of a server may be, in order (RFC 9728 section 3.1; SEP-985).

    Raises:
        ValueError: It is not a URL of HTTP or WebSocket.
    """
    parts, beginning = _taken_apart(server_url)
    root = f"{beginning}/.well-known/oauth-protected-resource"
    path = parts.path.rstrip("/")
    return [root + path, root] if path else [root]


def authorization_server_urls(issuer: str) -> list[str]:
    """Returns where the metadata of an authorization server may be, in order (RFC 8414 section 3, OpenID Connect).

    Raises:
        ValueError: It is not a URL of HTTP.
    """
    parts, beginning = _taken_apart(issuer)
    path = parts.path.rstrip("/")
    found = [
        f"{beginning}/.well-known/oauth-authorization-server{path}",
        f"{beginning}/.well-known/openid-configuration{path}",
    ]
    return [*found, f"{beginning}{path}/.well-known/openid-configuration"] if path else found


def covers(resource: str, server_url: str) -> bool:
    """Returns whether a resource, as metadata names it, is that of the server that a user configured.

    It has the same origin, and its path is that of the server or leads to it: ``/mcp`` covers ``/mcp/x``, and not
    ``/mcpx``.
    """
    try:
        require_usable(resource, "", plain=True)
        named, named_origin = _taken_apart(resource)
        server, server_origin = _taken_apart(server_url)
    except (ValueError, UrlRefused):
        return False
    if named_origin != server_origin:
        return False
    if named.query and named.query != server.query:
        return False
    above, below = _segments(named.path), _segments(server.path)
    # With dots in it a path leads elsewhere than its beginning says.
    dotted = any(unquote(each) in (".", "..") for each in (*above, *below))
    return above == below if dotted else above == below[: len(above)]


def is_loopback(url: str) -> bool:
    """Returns whether the host of a URL is ``localhost`` or an address of this machine's loopback interface."""
    try:
        return _is_loopback_host(urlsplit(url).hostname)
    except ValueError:
        return False


def require_usable(url: str, what: str, *, plain: bool = False) -> str:
    """Returns a URL that came from the network if it may be used, as far as its text says.

    It is ``https``, or ``http`` to this machine; it has a host and no user, and no character that no URL has.

    Args:
        url: The URL.
        what: Its name for the error, such as ``"token_endpoint"``.
        plain: Whether ``http`` to any host will do, because nothing is sent there.

    Raises:
        UrlRefused: It must not be used.
    """
    reason = _fault(url, plain)
    if reason is not None:
        # Neither a query nor a user, which may have a password.
        bare = re.sub(r"//[^/]*@", "//", url.partition("?")[0])
        shown = re.sub(r"[^\x21-\x7e]", "?", bare[:_CUT])
        raise UrlRefused(f"{what} {shown!r} is not used: {reason}")
    return url


def _fault(url: str, plain: bool) -> str | None:
    if len(url) > MAX_URL:
        return f"it has more than {MAX_URL} characters"
    if not _CLEAN.fullmatch(url):
        return "it has characters that no URL has"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "it is no URL"
    if parts.scheme not in _PORTS:
        return "only https is, or http to this machine"
    if not host:
        return "it has no host"
    if "@" in parts.netloc:
        return "it names a user"
    if parts.scheme == "http" and not plain and not _is_loopback_host(host):
        return "plain http is only used to this machine: the server must say https"
    return None


def _is_loopback_host(host: str | None) -> bool:
    if host is None or host == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _segments(path: str) -> list[str]:
    whole = path.rstrip("/")
    return whole.split("/") if whole else [""]


def _taken_apart(url: str) -> tuple[SplitResult, str]:
    """Returns the parts of a URL and its origin."""
    parts = urlsplit(url)
    scheme, host, port = _HTTP.get(parts.scheme), parts.hostname, parts.port
    if scheme is None or not host:
        raise ValueError(f"{url[:_CUT]!r} is no URL of a server: it begins with https://, and a host follows")
    shown = f"[{host}]" if ":" in host else host
    return parts, f"{scheme}://{shown}" + ("" if port in (None, _PORTS[scheme]) else f":{port}")


def _checked_hosts(_policy: UrlPolicy, _: object, hosts: Collection[str]) -> None:
    if isinstance(hosts, str):
        raise TypeError(f"allowed_hosts= must be a collection of host names, such as {[hosts]!r}")


@attrs.frozen(kw_only=True)
class UrlPolicy:
    """The rules for URLs that came from the network (MCP 2026-07-28, Security Best Practices, SSRF).

    Args:
        allowed_hosts: Host names whose addresses are not checked, such as an authorization server in a private network.
        checks_addresses: Whether addresses that are not global are refused, unless the address of the configured server
            is one itself. Switch it off only where a proxy for outgoing connections decides.

    Raises:
        TypeError: ``allowed_hosts`` is one text.
    """

    allowed_hosts: Collection[str] = attrs.field(default=(), validator=_checked_hosts)
    checks_addresses: bool = True
