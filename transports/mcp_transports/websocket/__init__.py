"""MCP over WebSocket: one JSON-RPC message per text frame, both eras as on a pipe (protocol §6.6).

The protocol's specification names no such binding; this one follows what its implementations agreed on: the subprotocol
``mcp``, a connection that is a legacy session, modern requests that stand for themselves beside it.

URLs: ``ws://HOST:PORT/PATH`` and ``wss://…``, served or connected to. What a URL cannot say is said to
`mcp_transports.websocket.server.WebSocketServerTransport` and
`mcp_transports.websocket.client.WebSocketClientTransport`. A server never imports the client's side, nor a client the
server's.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from mcp_actors.abc import ClientTransport, FrameChannel, ServerHandler, ServerTransport

__all__ = ["WebSocketTransport", "from_url"]


class WebSocketTransport:
    """Either side of a URL; the side that is used is loaded when it is, and gets the ``options``, its own ones."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._options = options

    def __repr__(self) -> str:
        return f"<WebSocketTransport {self.url}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `WebSocketServerTransport.serve`."""
        side = importlib.import_module("mcp_transports.websocket.server")
        transport: ServerTransport = side.WebSocketServerTransport(self.url, **self._options)
        await transport.serve(handler, task_status=task_status)

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """See `WebSocketClientTransport.connect`."""
        side = importlib.import_module("mcp_transports.websocket.client")
        transport: ClientTransport = side.WebSocketClientTransport(self.url, **self._options)
        return transport.connect()


def from_url(url: str, **options: Any) -> WebSocketTransport:
    """The transport of a WebSocket URL; nothing is opened yet."""
    return WebSocketTransport(url, **options)
