"""The client side of MCP over HTTP: one channel for Streamable HTTP in every revision, and for HTTP+SSE."""

from mcp_transports.http.client.channel import HttpChannel
from mcp_transports.http.client.http import AccessRefused, HttpRefused, HttpUnavailable
from mcp_transports.http.client.transport import HttpClientTransport, from_url

__all__ = [
    "AccessRefused",
    "HttpChannel",
    "HttpClientTransport",
    "HttpRefused",
    "HttpUnavailable",
    "from_url",
]
