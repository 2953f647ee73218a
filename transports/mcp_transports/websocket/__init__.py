"""MCP over WebSocket: one JSON-RPC message per text frame, in both eras as over a byte stream.

MCP's specification names no such binding (MCP 2026-07-28, Transports, Custom Transports, allows it). This one follows
what implementations agreed on: the subprotocol ``mcp``, and a connection that is a legacy session, or carries modern
requests that are independent of each other.

URLs: ``ws://HOST:PORT/PATH`` and ``wss://…``, served or connected to. Everything else is an argument of
`mcp_transports.websocket.server.WebSocketServerTransport` and
`mcp_transports.websocket.client.WebSocketClientTransport`. A server never imports the client's side, nor a client the
server's.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from mcp_transports._transports import TwoSidedTransport

__all__ = ["WebSocketTransport", "from_url"]


class WebSocketTransport(TwoSidedTransport):
    """Either side of a URL; ``options`` are those of `WebSocketServerTransport` or of `WebSocketClientTransport`."""

    server_side = "mcp_transports.websocket.server", "WebSocketServerTransport"
    client_side = "mcp_transports.websocket.client", "WebSocketClientTransport"


def from_url(url: str, **options: Any) -> WebSocketTransport:
    """Returns the transport of a WebSocket URL; nothing is opened yet.

    Raises:
        ValueError: the URL names no host.
    """
    if not urlsplit(url).hostname:
        raise ValueError(f"the URL names no host: write {url.partition(':')[0]}://HOST:PORT/PATH")
    return WebSocketTransport(url, **options)
