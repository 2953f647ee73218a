"""The rules for URLs that came from the network."""

from __future__ import annotations

from collections.abc import Collection

import attrs

__all__ = ["UrlPolicy"]


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
