"""The server's side of MCP over HTTP: the endpoint, on the HTTP/1.1 server in `mcp_transports.http.h1`."""

from __future__ import annotations

from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.asgi_routes import RouteStartFailed
from mcp_transports.http.server.listener import HttpServerStatistics, HttpServerTransport
from mcp_transports.http.server.responses import Refusal
from mcp_transports.http.server.routes import Reply, card_routes, health, metrics_page

__all__ = [
    "HttpLimits",
    "HttpServerStatistics",
    "HttpServerTransport",
    "Refusal",
    "Reply",
    "Request",
    "RouteStartFailed",
    "card_routes",
    "health",
    "metrics_page",
]
