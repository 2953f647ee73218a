"""Decides which ``Host`` and ``Origin`` a listener serves, and with which CORS headers browsers are answered.

MCP 2025-11-25, Transports, Security Warning; MCP 2026-07-28, Streamable HTTP, Security & Endpoint; the CORS protocol of
the Fetch standard. Every web page that a user opens can reach a server on a loopback address: a page may POST to it
across origins, and even read the answers when the page's own name is made to resolve to 127.0.0.1 (DNS rebinding).
``Origin`` shows the first and ``Host`` the second, so both are checked on every request, and the default is narrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from mcp_actors.errors.protocol import see_page

__all__ = ["ALLOWED_HEADERS", "ALLOWED_METHODS", "EXPOSED_HEADERS", "OriginPolicy", "Verdict"]

ALLOWED_METHODS = "GET, POST, DELETE"
ALLOWED_HEADERS = (
    "Content-Type, Accept, Authorization, DPoP, Mcp-Session-Id, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    "Last-Event-ID"
)
EXPOSED_HEADERS = "Mcp-Session-Id, WWW-Authenticate, DPoP-Nonce"

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# A browser leaves these out of Host and Origin.
_DEFAULT_PORTS = {"http": 80, "https": 443}
# The headers of mirrored parameters have names that the tool chooses, and CORS has no wildcard for a part of a name.
_PARAMETER_PREFIX = "mcp-param-"
# Such headers in one preflight: more than any tool's schema annotates. The rest is not allowed.
_MOST_PARAMETERS = 64
# Verdicts that are remembered. Ports vary and names hardly do, so honest clients never fill the table.
_MOST_REMEMBERED = 256
# Characters of a peer's value that are repeated in a refusal.
_MOST_SHOWN = 80

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,254})(?::([0-9]{1,5}))?", re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,31})://(.{1,300})", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", re.ASCII)
_NOT_SHOWN = re.compile(r"[^A-Za-z0-9.:/\[\]_-]", re.ASCII)


class Verdict(NamedTuple):
    """The decision of `OriginPolicy.check` about a request."""

    refusal: str | None
    """The text to answer 403 with, or ``None`` if the request is allowed."""
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of every answer to an allowed request, whatever its status. Empty without an Origin."""


_ALLOWED = Verdict(None)


class OriginPolicy:
    """The hosts and origins that one listener serves. It does no I/O, and only its bounded cache of verdicts changes.

    Args:
        bound_host: The address or name that the listener was asked to bind to, without its port; empty for all
            addresses. For a Unix socket it is ``"localhost"``, because only this machine reaches it.
        allowed_hosts: The values that ``Host`` may have: ``"name"`` or ``"name:*"`` (with any port or none),
            ``"name:port"``, IPv6 addresses in brackets, or ``"*"`` for anything. It replaces the default, which is

            - for a loopback address: ``localhost``, ``127.0.0.1``, ``[::1]`` and that address;
            - for any other address or name: only that one, because an attacker cannot have a page under its own name
              make a browser send that one;
            - for all addresses (``0.0.0.0``, ``::``, empty): nothing. Every request is refused, with a text that names
              the setting, because only the operator knows which names lead here. `refuses_all` is true then.
        allowed_origins: The values that ``Origin`` may have when a browser sends one: ``"scheme://name"`` (with the
            default port of the scheme), ``"scheme://name:port"``, ``"scheme://name:*"``, or ``"*"`` for any, even
            ``null``. It replaces the default, which is ``http`` and ``https`` at the allowed hosts, and for a loopback
            address also at the loopback names with any port, so that a tool like the inspector, itself a local page,
            can connect. ``"*"`` in ``allowed_hosts`` adds no origin.
        allowed_headers: Further request headers that pages may send, an API key for example.
        max_age: Seconds for which a browser may remember a preflight.

    Raises:
        ValueError: An entry could never match, or a string was given in place of a list.
    """

    def __init__(
        self,
        bound_host: str,
        *,
        allowed_hosts: Iterable[str] | None = None,
        allowed_origins: Iterable[str] | None = None,
        allowed_headers: Iterable[str] = (),
        max_age: int = 600,
    ) -> None:
        local = _is_loopback(bound_host)
        hosts = list(
            _default_hosts(bound_host, local)
            if allowed_hosts is None
            else _listed(allowed_hosts, "allowed_hosts")
        )
        self._any_host = "*" in hosts
        # (name, port), with None for a port that is absent and "*" for any.
        self._hosts: set[tuple[str, int | str | None]] = set()
        self._any_origin = False
        # (scheme, name, port), with "*" for any port.
        self._origins: set[tuple[str, str, int | str]] = set()
        for entry in hosts:
            if entry != "*":
                self._allow_host(entry, with_origins=allowed_origins is None)
        if allowed_origins is not None:
            for entry in _listed(allowed_origins, "allowed_origins"):
                self._allow_origin(entry)
        elif local:
            for name in LOOPBACK_NAMES:
                self._origins.update((scheme, name, "*") for scheme in _DEFAULT_PORTS)
        extra = _listed(allowed_headers, "allowed_headers")
        for name in extra:
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"{name!r} in allowed_headers is not the name of a header")
        self._headers = ", ".join([ALLOWED_HEADERS, *extra])
        self._max_age = str(int(max_age))
        self.remembered: dict[tuple[str | None, str | None], Verdict] = {}
        """Verdicts on requests that were allowed, by (Host, Origin), so that a caller may skip `check`."""

    @property
    def refuses_all(self) -> bool:
        """Whether every request is refused, because the listener binds to all addresses and no host is allowed."""
        return not (self._any_host or self._hosts)

    def check(self, host: str | None, origin: str | None) -> Verdict:
        """Decides about the values of the headers ``Host`` and ``Origin``; ``None`` for an absent header."""
        known = self.remembered.get((host, origin))
        if known is not None:
            return known
        verdict = self._decide(host, origin)
        # A peer can send refused values without end, and of any length, so they are not remembered.
        if verdict.refusal is None and len(host or "") + len(origin or "") <= 600:
            if len(self.remembered) >= _MOST_REMEMBERED:
                self.remembered.clear()
            self.remembered[host, origin] = verdict
        return verdict

    def preflight(self, verdict: Verdict, requested: str | None) -> tuple[tuple[str, str], ...]:
        """Returns all headers of the 204 that answers a preflight.

        Args:
            verdict: That of `check`, without a refusal.
            requested: The request's ``Access-Control-Request-Headers``. Of its names those of mirrored parameters are
                allowed, beside the fixed ones.
        """
        names = dict.fromkeys(each.strip(" \t").lower() for each in (requested or "").split(","))
        parameters = [each for each in names if each.startswith(_PARAMETER_PREFIX) and _TOKEN.fullmatch(each)]
        return (
            *verdict.headers,
            ("Access-Control-Allow-Methods", ALLOWED_METHODS),
            ("Access-Control-Allow-Headers", ", ".join([self._headers, *parameters[:_MOST_PARAMETERS]])),
            ("Access-Control-Max-Age", self._max_age),
        )

    def _decide(self, host: str | None, origin: str | None) -> Verdict:
        if not (self._any_host or self._host_is_allowed(host)):
            if self.refuses_all:
                return Verdict(
                    "Forbidden: this server listens on all addresses and was not told its names; "
                    f"list them in the setting allowed_hosts; {see_page('troubleshooting')}"
                )
            return Verdict(
                f"Forbidden: Host {_shown(host)} is not allowed; the setting allowed_hosts lists those that are; "
                f"{see_page('troubleshooting')}"
            )
        if origin is None:
            return _ALLOWED
        if self._any_origin:
            # The answer does not depend on the Origin, so caches need no Vary.
            return Verdict(None, _cors("*"))
        parsed = _parse_origin(origin)
        if parsed is None or not self._origin_is_allowed(*parsed):
            return Verdict(
                f"Forbidden: Origin {_shown(origin)} is not allowed; the setting allowed_origins lists those that "
                f"are; {see_page('troubleshooting')}"
            )
        # The Origin is written anew from its checked parts: no text of the peer gets into a header as it came.
        return Verdict(None, (*_cors(_origin_text(*parsed)), ("Vary", "Origin")))

    def _host_is_allowed(self, host: str | None) -> bool:
        parsed = _parse_authority(host) if host is not None else None
        return parsed is not None and (parsed in self._hosts or (parsed[0], "*") in self._hosts)

    def _origin_is_allowed(self, scheme: str, name: str, port: int | None) -> bool:
        actual = _DEFAULT_PORTS.get(scheme, 0) if port is None else port
        return (scheme, name, actual) in self._origins or (scheme, name, "*") in self._origins

    def _allow_host(self, entry: str, *, with_origins: bool) -> None:
        parsed = _parse_authority(entry.removesuffix(":*"))
        if parsed is None or (entry.endswith(":*") and parsed[1] is not None):
            raise ValueError(f"{entry!r} in allowed_hosts is neither name, name:port, name:* nor *")
        name, port = parsed
        self._hosts.add((name, "*" if port is None else port))
        if port in _DEFAULT_PORTS.values():
            self._hosts.add((name, None))
        if with_origins:
            self._origins.update((scheme, name, "*" if port is None else port) for scheme in _DEFAULT_PORTS)

    def _allow_origin(self, entry: str) -> None:
        if entry == "*":
            self._any_origin = True
            return
        parsed = _parse_origin(entry.removesuffix(":*"))
        if parsed is None or (entry.endswith(":*") and parsed[2] is not None):
            # Any page can make itself the origin "null", in a sandboxed frame: allowing it would allow all.
            raise ValueError(
                f"{entry!r} in allowed_origins is neither scheme://name, scheme://name:port, scheme://name:* nor *"
            )
        scheme, name, port = parsed
        if entry.endswith(":*"):
            self._origins.add((scheme, name, "*"))
        else:
            self._origins.add((scheme, name, _DEFAULT_PORTS.get(scheme, 0) if port is None else port))


def _listed(entries: Iterable[str], setting: str) -> list[str]:
    if isinstance(entries, str):
        raise ValueError(f"{setting} is a list: write [{entries!r}], not the one string")
    return list(entries)


def _default_hosts(bound_host: str, local: bool) -> list[str]:
    names = list(LOOPBACK_NAMES) if local else []
    address = _address(bound_host)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if bound_host and not (address is not None and address.is_unspecified):
        bare = bound_host.strip("[]")
        names.append(f"[{bare.partition('%')[0]}]" if ":" in bare else bare)
    return names


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback if address is not None else host.lower().removesuffix(".") == "localhost"


def _parse_authority(text: str) -> tuple[str, int | None] | None:
    """Returns (name, port) of ``name[:port]``: in lower case, IPv6 compressed and in brackets, no trailing dot."""
    match = _AUTHORITY.fullmatch(text.lower()) if text.isascii() else None
    if match is None:
        return None
    name, digits = match[1], match[2]
    if digits is not None and not 0 < int(digits) < 65536:
        return None
    if name.startswith("["):
        address = _address(name)
        if not isinstance(address, IPv6Address):
            return None
        name = f"[{address.compressed}]"
    else:
        name = name.removesuffix(".")
        if not name:
            return None
    return name, int(digits) if digits is not None else None


def _parse_origin(text: str) -> tuple[str, str, int | None] | None:
    match = _ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    authority = _parse_authority(match[2]) if match is not None else None
    return (match[1], *authority) if match is not None and authority is not None else None


def _origin_text(scheme: str, name: str, port: int | None) -> str:
    return (
        f"{scheme}://{name}"
        if port is None or port == _DEFAULT_PORTS.get(scheme)
        else f"{scheme}://{name}:{port}"
    )


def _cors(origin: str) -> tuple[tuple[str, str], ...]:
    return (("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", EXPOSED_HEADERS))


def _shown(value: str | None) -> str:
    """Returns a peer's value as a refusal repeats it: short, and without control characters or markup."""
    if value is None:
        return "(absent)"
    return f"'{_NOT_SHOWN.sub('?', value[:_MOST_SHOWN])}'"
