"""The client side of MCP over HTTP: one channel for Streamable HTTP in every revision, and for HTTP+SSE."""

from mcp_transports.http.client.channel import HttpChannel
from mcp_transports.http.client.client_transport import HttpClientTransport, from_url
from mcp_transports.http.client.http import AccessRefused, HttpRefused, HttpUnavailable

__all__ = [
    "AccessRefused",
    "HttpChannel",
    "HttpClientTransport",
    "HttpRefused",
    "HttpUnavailable",
    "from_url",
]
