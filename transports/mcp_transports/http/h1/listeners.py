"""Listening sockets for HTTP: those of `mcp_transports._sockets`, with a TLS context and a URL."""

from __future__ import annotations

import socket
import ssl

from mcp_transports._sockets import BACKLOG, ListeningSocket, bind_tcp, bind_unix

__all__ = ["HttpListener", "open_tcp", "open_unix"]


class HttpListener(ListeningSocket):
    """A listening socket, which `serve_http` closes. A caller that never serves it closes it with `close`."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        ssl_context: ssl.SSLContext | None = None,
        path: str | None = None,
        inherited: bool = False,
    ) -> None:
        super().__init__(listening, path=path, inherited=inherited)
        self.ssl_context = ssl_context

    @property
    def url(self) -> str:
        """The URL for clients, without a path: ``http://127.0.0.1:8000``, ``unix:/run/x.sock``."""
        return self.where("http" if self.ssl_context is None else "https")


async def open_tcp(
    host: str | None, port: int, *, ssl_context: ssl.SSLContext | None = None, backlog: int = BACKLOG
) -> list[HttpListener]:
    """Listens on every address of ``host``, as `bind_tcp` does.

    Args:
        host: As for `bind_tcp`.
        port: As for `bind_tcp`.
        ssl_context: The context of TLS; ``None`` for plain HTTP.
        backlog: As for `bind_tcp`.

    Raises:
        ListenError: The name has no address, or an address cannot be listened at.
    """
    opened = await bind_tcp(host, port, backlog=backlog)
    return [HttpListener(each.socket, ssl_context=ssl_context, inherited=each.inherited) for each in opened]


async def open_unix(path: str, *, mode: int = 0o600, backlog: int = BACKLOG) -> HttpListener:
    """Listens on a Unix socket as `bind_unix` does: only this user may connect unless ``mode`` says otherwise.

    Raises:
        InvalidSocketPath: The path is too long for the system, or is none.
        ListenError: Something is in the way.
    """
    opened = await bind_unix(path, mode=mode, backlog=backlog)
    return HttpListener(opened.socket, path=opened.path, inherited=opened.inherited)
