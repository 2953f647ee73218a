"""A server: accepts from listening sockets and runs a connection for each peer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

import trio

from mcp_actors.supervision.budget import Budget, Limited
from mcp_actors.supervision.containment import Containment, start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import POLLER, SOCKET_CONNECTION, TICKER
from mcp_transports._socket_options import is_unix, send_without_delay
from mcp_transports._sockets import ListenError, accept_until
from mcp_transports.http.h1.byte_stream import ByteStream, SocketByteStream, WrappedByteStream
from mcp_transports.http.h1.connection import Connection
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.listeners import HttpListener, open_tcp, open_unix
from mcp_transports.http.h1.response import error_body
from mcp_transports.http.h1.server_state import App, ConnectionCounts, ServerState

__all__ = ["HttpListener", "HttpServer", "open_tcp", "open_unix", "serve_http"]

# Seconds between two looks at whether the last connection has ended, once nothing is accepted any more.
_LOOK_AGAIN = 0.1
# Connections come and go less often than requests.
_TOO_MANY_RETRY_AFTER = 5  # seconds


def _too_many_answer(message: str) -> bytes:
    body = error_body(message)
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {_TOO_MANY_RETRY_AFTER}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_TOO_MANY: dict[Limited, bytes] = {
    "all": _too_many_answer("too many connections are open"),
    "holder": _too_many_answer("too many connections of this address are open"),
}


class HttpServer:
    """Accepts connections and hands their requests to ``app(request, response)``.

    A connection that fails, whatever the failure is, ends alone. The tasks that serve all connections are started
    again when they fail (`mcp_actors.supervision.containment`).

    Args:
        app: The application. It is called where requests are read, so it must not block; long work is for
            `Response.run`.
        listeners: The listening sockets, which `serve` closes.
        limits: The bounds on peers.
    """

    def __init__(self, app: App, listeners: Sequence[HttpListener], limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self.listeners = list(listeners)
        self._state = ServerState(app, self.limits)
        # Accepted and not closed; those whose task has not run yet are no members of the ticker.
        self._connections = Budget(self.limits.connections, self.limits.connections_per_address)
        self.answers_to_the_end = False
        """Whether connections are accepted until the last answer is given; they get one answer each. For applications
        that say how the server is, or that they take no more, while calls in flight end."""
        # Set while the last answers are given, when no connection is left.
        self._left: trio.Event | None = None

    def __repr__(self) -> str:
        state = self.statistics()
        where = ", ".join(each.url for each in self.listeners)
        return f"<HttpServer on {where}: {state.connections} connections, {state.busy} busy>"

    @property
    def app(self) -> App:
        """The application. A new value is called from the next request on."""
        return self._state.app

    @app.setter
    def app(self, app: App) -> None:
        self._state.app = app

    def statistics(self) -> ConnectionCounts:
        """Returns a snapshot of the counters."""
        return self._state.statistics(self._connections.statistics())

    async def serve(
        self,
        *,
        stopping: trio.Event | None = None,
        task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until ``stopping`` is set and the last busy connection has finished, or until cancelled.

        Once ``stopping`` is set nothing is accepted any more (but see `answers_to_the_end`), idle connections are
        closed, and every answer that begins from then on closes its connection. That may take as long as an answer
        takes: a caller that has a deadline cancels. Cancelled, it closes everything at once. The listeners are closed
        when it returns, however that comes about. When this process retires, it is the same but for idle connections:
        each is closed behind its next answer, and those that are left when ``stopping`` is set at once.

        Raises:
            ListenError: A listening socket is broken; every connection was closed.
        """
        state = self._state
        stopping = trio.Event() if stopping is None else stopping
        try:
            async with trio.open_nursery() as service:
                start_again(service, TICKER, state.ticker.run)
                start_again(service, POLLER, state.poller.run)
                async with trio.open_nursery() as connections:
                    task_status.started(self)
                    arrived = partial(self._arrived, connections)
                    broken = await accept_until(
                        stopping, self.listeners, arrived, lambda: self._connections.held
                    )
                    if self.answers_to_the_end and stopping.is_set():
                        broken = await self._accept_to_the_end(arrived)
                    state.stopping = True
                    self._close_listeners()
                    if broken is not None:
                        connections.cancel_scope.cancel(reason="a listening socket is broken")
                    else:
                        await self._until_left(stopping)
                    for member in list(state.ticker.members):
                        member.stop()
                service.cancel_scope.cancel()
        finally:
            self._close_listeners()
            state.close()
        if broken is not None:
            raise broken

    async def serve_stream(
        self, stream: trio.abc.Stream, peer: str = "stream", *, secure: bool = False
    ) -> None:
        """Serves one connection over any stream, until it ends. For tests and for streams from elsewhere.

        Its times are kept only while `serve` runs, which needs no listeners for that.

        Args:
            stream: It is closed at the end.
            peer: The peer's address, for the log and for requests.
            secure: Whether the stream goes through TLS.
        """
        with Containment(SOCKET_CONNECTION, details={"peer": peer}):
            handover = await Connection(self._state, WrappedByteStream(stream, peer, secure=secure)).serve()
            if handover is not None:
                await handover

    def expire(self, now: float) -> None:
        """Expires every connection whose deadline is not later than ``now``, as the ticker does all the time."""
        self._state.ticker.expire(now)

    async def _accept_to_the_end(
        self, arrived: Callable[[HttpListener, list[tuple[socket.socket, object]]], None]
    ) -> ListenError | None:
        """Accepts until no connection is left, and returns why a listener cannot any more, if so."""
        self._state.stopping = "accepting"
        for member in list(self._state.ticker.members):
            member.stop()
        self._left = left = trio.Event()
        if not self._connections.held:
            left.set()
        return await accept_until(left, self.listeners, arrived, lambda: self._connections.held)

    async def _until_left(self, stopping: trio.Event) -> None:
        """Waits until no connection is left or ``stopping`` is set."""
        while self._connections.held and not stopping.is_set():
            with trio.move_on_after(_LOOK_AGAIN):
                await stopping.wait()

    def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()

    def _arrived(
        self, connections: trio.Nursery, listener: HttpListener, arrived: list[tuple[socket.socket, object]]
    ) -> None:
        self._state.clock.refresh()
        for accepted, address in arrived:
            peer = listener.describe(address)
            over = self._connections.charge(listener.holder_of(peer), 1)
            if over is not None:
                self._turn_away(accepted, over, secure=listener.ssl_context is not None)
            else:
                start(
                    connections, SOCKET_CONNECTION, self._serve_socket, listener, accepted, peer, about=peer
                )

    def _turn_away(self, accepted: socket.socket, over: Limited, *, secure: bool) -> None:
        self._state.rejected += 1
        with accepted:
            if not secure:
                try:
                    accepted.setblocking(False)
                    accepted.send(_TOO_MANY[over])
                    accepted.shutdown(socket.SHUT_WR)
                except OSError as error:
                    log.debug("a peer that was turned away left before", reason=error.strerror)

    async def _serve_socket(self, listener: HttpListener, accepted: socket.socket, peer: str) -> None:
        try:
            with accepted:
                handover = await Connection(self._state, self._byte_stream(listener, accepted, peer)).serve()
                if handover is not None:
                    await handover
        finally:
            self._connections.release(listener.holder_of(peer), 1)
            if self._left is not None and not self._connections.held:
                self._left.set()

    def _byte_stream(self, listener: HttpListener, accepted: socket.socket, peer: str) -> ByteStream:
        accepted.setblocking(False)
        if not is_unix(listener.socket):
            send_without_delay(accepted)
        if listener.ssl_context is None:
            return SocketByteStream(accepted, self._state.poller, self._state.buffer, peer)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        # HTTP frames its messages itself, so without the closing message of TLS nothing is cut off unseen.
        secured = trio.SSLStream(stream, listener.ssl_context, server_side=True, https_compatible=True)
        return WrappedByteStream(secured, peer, secure=True)


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
