"""Opening the listening sockets of URLs ahead of the transports that accept from them, for several processes.

One process opens them with `open_sockets` and keeps them; each process that it starts inherits the descriptors, calls
`inherit` with them, and serves the same URLs as if it had bound them itself. `retire` is called in a process that a
younger one replaces.
"""

from __future__ import annotations

import attrs

from mcp_actors.errors import TransportNotFound
from mcp_transports._sockets import (
    ListeningSocket,
    bind_tcp,
    bind_unix,
    inherit,
    inherit_counts,
    retire,
    tcp_key,
    unix_key,
)
from mcp_transports._transports import as_engine_errors
from mcp_transports.http.h1.request import ListenUrl
from mcp_transports.sockets.transport import parse_tcp, parse_unix

__all__ = ["OpenedSockets", "inherit", "inherit_counts", "open_sockets", "retire"]

_HTTP = ("http", "https", "http+unix", "ws", "wss")


@attrs.frozen
class OpenedSockets:
    """The listening sockets of one address."""

    key: str
    """The name of the address, for `inherit`."""
    sockets: tuple[ListeningSocket, ...]
    """Two for ``localhost`` where it has addresses of IPv4 and of IPv6."""

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the sockets."""
        return [each.socket.fileno() for each in self.sockets]

    def close(self) -> None:
        """Closes the sockets, and removes the path of a Unix socket."""
        for each in self.sockets:
            each.close()


async def open_sockets(urls: list[str]) -> list[OpenedSockets]:
    """Listens at the addresses of URLs; once for those that share a port, as HTTP and WebSocket may.

    Args:
        urls: Those of HTTP, WebSocket, TCP and Unix sockets.

    Raises:
        TransportNotFound: A URL has another scheme: its binding opens its own sockets, if it needs any.
        ConnectFailed: An address cannot be listened at.
        LocalProtocolError: A URL of TCP or of a Unix socket is malformed.
        ValueError: A URL of HTTP or WebSocket is malformed.
    """
    opened: list[OpenedSockets] = []
    try:
        for url in urls:
            host, port, path = _address(url)
            key = tcp_key(host, port) if path is None else unix_key(path)
            if path is None and port and any(each.key == key for each in opened):
                continue
            with as_engine_errors():
                sockets = await bind_tcp(host, port) if path is None else [await bind_unix(path)]
            opened.append(OpenedSockets(key, tuple(sockets)))
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def _address(url: str) -> tuple[str | None, int, str | None]:
    """Returns host and port, or the path of a Unix socket, as the binding of ``url`` reads them."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme in _HTTP:
        if scheme in ("ws", "wss"):
            scheme = f"http{scheme[2:]}"
        parts = ListenUrl(f"{scheme}:{rest}")
        return parts.host, parts.port, parts.socket_path
    if scheme == "tcp":
        address = parse_tcp(f"tcp:{rest}")
        return address.host, address.port, None
    if scheme == "unix":
        return None, 0, parse_unix(url)
    raise TransportNotFound(
        f"{url!r} cannot be served by several processes: that takes http:, ws:, tcp:, unix: or http+unix:"
    )
