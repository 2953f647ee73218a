"""Opening the listening sockets of URLs ahead of the transports that accept from them, for several processes.

One process opens them with `open_sockets` and keeps them; each process that it starts inherits the descriptors, calls
`inherit` with them, and serves the same URLs as if it had bound them itself. `adopt` does so with sockets that another
program has opened. `retire` is called in a process that a younger one replaces.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

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

__all__ = ["OpenedSockets", "adopt", "inherit", "inherit_counts", "open_sockets", "retire"]

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


def adopt(urls: list[str], descriptors: Iterable[int]) -> None:
    """Takes over the descriptors of listening sockets that a program has opened which knows nothing of URLs.

    Args:
        urls: Those that are going to be served: a socket is for the one with its port, or with its path.
        descriptors: Those of the sockets.

    Raises:
        ValueError: A socket is for none of the URLs, or it is no stream socket that listens.
        OSError: A descriptor is not open, or not that of a socket.
        TransportNotFound, LocalProtocolError: As `open_sockets`.
    """
    wanted = {_place(*_address(url)): _address(url) for url in urls}
    found: dict[str, list[list[int]]] = {}
    for descriptor in descriptors:
        # The object is given up again, and its descriptor taken by `inherit`.
        adopted = socket.socket(fileno=descriptor)
        try:
            name, is_stream = adopted.getsockname(), adopted.type == socket.SOCK_STREAM
        finally:
            adopted.detach()
        place = str(name[1]) if isinstance(name, tuple) else _path_of(name)
        if place not in wanted or not is_stream:
            raise ValueError(f"that at {place!r} is for no address of this server")
        host, port, path = wanted[place]
        key = tcp_key(host, port) if path is None else unix_key(path)
        # All of one address belong to one listener, as those of localhost do.
        found.setdefault(key, [[]])[0].append(descriptor)
    inherit(found)


def _place(host: str | None, port: int, path: str | None) -> str:
    return str(port) if path is None else path


def _path_of(name: str | bytes) -> str:
    return f"\0{name[1:].decode()}" if isinstance(name, bytes) else name


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
