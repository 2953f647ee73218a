"""Snapshots of the upstreams of a gateway, for whoever looks at what lives."""

from __future__ import annotations

import attrs

__all__ = ["UpstreamStatistics"]


@attrs.frozen
class UpstreamStatistics:
    """One upstream."""

    name: str
    state: str
    """``"connected"``, ``"connecting"``, ``"away"`` when the last attempt or connection has failed, or ``"idle"``."""
    server: str | None
    """The name and version that its server told, cut short."""
    version: str | None
    """The protocol version that is spoken with it."""
    connections: int
    in_flight: int
    callers: int
    """Callers with a call in flight."""
    circuit: str
    """``"closed"``, ``"open"`` while requests are refused at once, or ``"half-open"``."""
    failures: int
    """Failures in a row."""
    lost: int
    """Connections that were lost since the gateway serves."""
    retry_after: float | None
    """Seconds until it is tried again, where requests are refused."""
    last_failure: str | None
    """The last failure, cut short."""
