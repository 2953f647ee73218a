"""Accepts connections and serves each of them in a task of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.budget import Account, Budget, BudgetStatistics, holder_of
from mcp_actors.logging import log
from mcp_actors.supervision import start, start_again
from mcp_actors.task_kinds import POLLER, SOCKET_CONNECTION
from mcp_transports._accepting import accept_until
from mcp_transports._sockets import ListenError, ListeningSocket
from mcp_transports._waiting import open_poller
from mcp_transports.sockets.channel import SocketChannel
from mcp_transports.sockets.stream import ConnectedSocket

__all__ = ["SocketServer", "SocketStatistics"]


@attrs.frozen
class SocketStatistics:
    """A snapshot of a listener."""

    connections: int
    """Open now, those in their TLS handshake included."""
    accepted: int
    """Handed to the server since it began."""
    turned_away: int
    """Closed at once, because too many were open, of one address or in all."""
    handshakes_failed: int
    """Closed before their first frame, because the TLS handshake failed."""
    by_peer: BudgetStatistics
    """Open connections by address."""
    unfinished: BudgetStatistics
    """Bytes of messages that have come in part, by address."""


class SocketServer:
    """Serves the connections that come to some listeners, each in a task that nothing else depends on."""

    def __init__(
        self,
        handler: ServerHandler,
        *,
        ssl_context: ssl.SSLContext | None,
        handshake_timeout: float,
        connections: Budget,
        unfinished: Budget,
        max_message_bytes: int,
    ) -> None:
        self._handler = handler
        self._ssl_context = ssl_context
        self._handshake_timeout = handshake_timeout
        self._connections = connections
        self._unfinished = unfinished
        self._max_message_bytes = max_message_bytes
        self._poller = open_poller()
        self._accepted = self._turned_away = self._failed = 0

    def statistics(self) -> SocketStatistics:
        """Returns a snapshot of the counters."""
        return SocketStatistics(
            self._connections.held,
            self._accepted,
            self._turned_away,
            self._failed,
            self._connections.statistics(),
            self._unfinished.statistics(),
        )

    async def serve(self, listeners: Sequence[ListeningSocket]) -> None:
        """Accepts until the server stops, then lets open connections end; cancelled, closes everything.

        Raises:
            ListenError: A listening socket is broken; every connection was closed.
        """
        try:
            async with trio.open_nursery() as service:
                start_again(service, POLLER, self._poller.run, about="of sockets")
                broken = await self._serve_all(listeners)
                service.cancel_scope.cancel(reason="every connection has ended")
        finally:
            self._poller.close()
        if broken is not None:
            raise broken

    async def _serve_all(self, listeners: Sequence[ListeningSocket]) -> ListenError | None:
        async with trio.open_nursery() as connections:
            arrived = partial(self._arrived, connections)
            broken = await accept_until(
                self._handler.stopping, listeners, arrived, lambda: self._connections.held
            )
            for listener in listeners:
                listener.close()
            if broken is not None:
                connections.cancel_scope.cancel(reason="a listening socket is broken")
        return broken

    def _arrived(
        self,
        connections: trio.Nursery,
        listener: ListeningSocket,
        arrived: list[tuple[socket.socket, object]],
    ) -> None:
        for accepted, address in arrived:
            peer = listener.describe(address)
            holder = listener.holder_of(peer)
            if self._connections.charge(holder, 1) is not None:
                self._turned_away += 1
                accepted.close()
            else:
                start(
                    connections,
                    SOCKET_CONNECTION,
                    self._serve_one,
                    accepted,
                    peer,
                    holder,
                    about=f"of {peer}",
                )

    async def _serve_one(self, accepted: socket.socket, peer: str, holder: str | None) -> None:
        account = Account(self._unfinished, holder_of(peer))
        try:
            channel = await self._open_channel(ConnectedSocket(accepted, self._poller), peer, account)
            if channel is not None:
                self._accepted += 1
                async with channel:
                    await self._handler(channel)
        finally:
            account.keep(0)
            self._connections.release(holder, 1)

    async def _open_channel(
        self, stream: ConnectedSocket, peer: str, account: Account
    ) -> SocketChannel | None:
        longest = self._max_message_bytes
        if self._ssl_context is None:
            return SocketChannel(stream, max_message_bytes=longest, peer=peer, account=account)
        secured = trio.SSLStream(stream, self._ssl_context, server_side=True)
        try:
            with trio.fail_after(self._handshake_timeout):
                await secured.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            self._failed += 1
            log.debug("no TLS handshake", peer=peer, reason=str(error.__cause__ or error))
            await trio.aclose_forcefully(stream)
            return None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return SocketChannel(secured, max_message_bytes=longest, peer=peer, account=account)
