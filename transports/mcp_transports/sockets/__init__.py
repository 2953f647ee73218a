"""MCP over stream sockets: one connection is one peer, one line is one message.

The framing is that of "MCP 2026-07-28, Transports, stdio"; sockets are a custom transport in the words of that page.

URLs: ``tcp://HOST:PORT``, and ``unix:///path``, ``unix:relative/path`` or ``unix:@abstract``, served or connected to.
Everything else is an argument of `TcpTransport` and `UnixTransport`.

Calls are cancelled by message. A peer that shuts down only its sending side still gets the answers to its calls, so
``printf '…' | nc -N HOST PORT`` works. A lost connection cannot be resumed: legacy sessions end with it.
"""

from __future__ import annotations

from typing import Any

from mcp_transports.sockets.stream import SocketChannel
from mcp_transports.sockets.transport import (
    DEFAULT_MAX_CONNECTIONS,
    SocketStatistics,
    TcpTransport,
    UnixTransport,
)

__all__ = [
    "DEFAULT_MAX_CONNECTIONS",
    "SocketChannel",
    "SocketStatistics",
    "TcpTransport",
    "UnixTransport",
    "from_url",
]


def from_url(url: str, **options: Any) -> TcpTransport | UnixTransport:
    """Returns the transport of a ``tcp:`` or ``unix:`` URL; nothing is opened yet.

    ``options`` are those of the transport's constructor, which also says what it raises.
    """
    if url.partition(":")[0].lower() == "unix":
        return UnixTransport(url, **options)
    return TcpTransport(url, **options)
