"""The rules for URLs that came from the network."""

from __future__ import annotations

from collections.abc import Collection

import attrs

__all__ = ["UrlPolicy"]


@attrs.frozen(kw_only=True)
class UrlPolicy:
    """The rules for URLs that came from the network (MCP 2026-07-28, Security Best Practices, SSRF).

    Args:
        allowed_hosts: Host names whose addresses are not checked, such as an authorization server in a private network.
        checks_addresses: Whether addresses that are not global are refused, unless the address of the configured server
            is one itself. Switch it off only where a proxy for outgoing connections decides.
    """

    allowed_hosts: Collection[str] = ()
    checks_addresses: bool = True
