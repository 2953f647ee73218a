"""Listening sockets, and the server that accepts from them."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Sequence

import trio

from mcp_transports.http.h1.byte_stream import ByteStream, SocketByteStream, WrappedByteStream
from mcp_transports.http.h1.connection import Connection
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.listeners import HttpListener, open_tcp, open_unix
from mcp_transports.http.h1.server_state import App, ConnectionCounts, ServerState

__all__ = ["HttpListener", "HttpServer", "open_tcp", "open_unix", "serve_http"]

_logger = logging.getLogger("mcp_transports.http")
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-type: text/plain\r\n"
    b"content-length: 31\r\nconnection: close\r\n\r\n503: too many connections open\n"
)


class HttpServer:
    """Accepts connections and hands their requests to ``app(request, response)``.

    ``app`` is called in the reader of a connection and must not block; what needs time goes to ``response.run``.
    """

    def __init__(self, app: App, listeners: Sequence[HttpListener], limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self.listeners = list(listeners)
        self._hub = ServerState(app, self.limits)

    def __repr__(self) -> str:
        state = self.statistics()
        where = ", ".join(each.url for each in self.listeners)
        return f"<HttpServer on {where}: {state.connections} connections, {state.busy} busy>"

    def statistics(self) -> ConnectionCounts:
        """What is going on now, and what was."""
        return self._hub.statistics()

    async def serve(
        self,
        *,
        stopping: trio.Event | None = None,
        task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until ``stopping`` is set and the last busy connection has finished, or until cancelled.

        Once ``stopping`` is set nothing is accepted any more, idle connections are closed, and every answer that
        begins from then on closes its connection. Whoever needs a deadline for that cancels. Cancelled, it closes
        everything at once. The listeners are closed when it returns, however that comes about.
        """
        hub = self._hub
        stopping = trio.Event() if stopping is None else stopping
        try:
            async with trio.open_nursery() as service:
                service.start_soon(hub.keep_time)
                service.start_soon(hub.poller.run)
                async with trio.open_nursery() as connections:
                    async with trio.open_nursery() as accepting:
                        for listener in self.listeners:
                            accepting.start_soon(self._accept, listener, connections)
                        task_status.started(self)
                        await stopping.wait()
                        accepting.cancel_scope.cancel()
                    hub.stopping = True
                    self._close_listeners()
                    for member in list(hub.members):
                        member.stop()
                service.cancel_scope.cancel()
        finally:
            self._close_listeners()
            hub.close()

    async def serve_stream(
        self, stream: trio.abc.Stream, peer: str = "stream", *, secure: bool = False
    ) -> None:
        """Serves one connection over any stream, until it ends. For tests and for streams from elsewhere.

        Its times are kept only while `serve` runs, which needs no listeners for that.
        """
        await Connection(self._hub, WrappedByteStream(stream), peer, secure=secure).serve()

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()

    async def _accept(self, listener: HttpListener, connections: trio.Nursery) -> None:
        while True:
            arrived = await listener.accept_many()
            self._hub.refresh()
            for accepted, address in arrived:
                if self._hub.open >= self.limits.connections:
                    self._turn_away(accepted, secure=listener.ssl_context is not None)
                else:
                    connections.start_soon(self._connection(listener, accepted, address).serve)

    def _turn_away(self, accepted: socket.socket, *, secure: bool) -> None:
        self._hub.rejected += 1
        with accepted:
            if not secure:
                try:
                    accepted.setblocking(False)
                    accepted.send(_TOO_MANY)
                    accepted.shutdown(socket.SHUT_WR)
                except OSError as error:
                    _logger.debug("a connection that was turned away did not hear of it: %s", error)

    def _connection(self, listener: HttpListener, accepted: socket.socket, address: object) -> Connection:
        accepted.setblocking(False)
        peer = listener.describe(address)
        if listener.socket.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire: ByteStream
        if listener.ssl_context is None:
            wire = SocketByteStream(accepted, self._hub.buffer)
        else:
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
            wire = WrappedByteStream(_secured(stream, listener.ssl_context))
        return Connection(self._hub, wire, peer, secure=listener.ssl_context is not None)


def _secured(stream: trio.SocketStream, context: ssl.SSLContext) -> trio.abc.Stream:
    # HTTP frames its messages itself, so a missing goodbye of TLS cuts nothing off unseen.
    return trio.SSLStream(stream, context, server_side=True, https_compatible=True)


async def serve_http(
    app: App,
    listeners: Sequence[HttpListener],
    *,
    limits: HttpLimits | None = None,
    stopping: trio.Event | None = None,
    task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves HTTP on ``listeners`` (see `open_tcp` and `open_unix`); `HttpServer.serve` says how it ends.

    ``task_status.started`` gets the `HttpServer`, for its statistics.
    """
    await HttpServer(app, listeners, limits).serve(stopping=stopping, task_status=task_status)
