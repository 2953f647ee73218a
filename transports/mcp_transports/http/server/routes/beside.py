"""The place of routes in the endpoint: they are asked about a path that is none of MCP."""

from __future__ import annotations

from collections.abc import Callable

from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.origin_policy import Verdict

__all__ = ["Beside", "nothing_beside"]

Beside = Callable[[HttpExchange, Verdict], bool]
"""Answers a request, now or later, if its path is one of its own, and returns whether it is. Never waits."""


def nothing_beside(exchange: HttpExchange, verdict: Verdict) -> bool:
    """Serves no path."""
    return False
