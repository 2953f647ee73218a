"""TCP and Unix sockets: their URLs, the server's and the client's side of each.

`SocketServer` accepts connections, and serves each of them in a task of its own.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote, unquote, urlsplit

import attrs
import trio

from mcp_actors.abc import FrameChannel, ServerHandler
from mcp_actors.abc.framing import DEFAULT_HELD_BYTES, DEFAULT_MAX_MESSAGE_BYTES
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.supervision import descriptors
from mcp_actors.supervision.budget import Account, Budget, BudgetStatistics, holder_of
from mcp_actors.supervision.containment import start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import POLLER, SOCKET_CONNECTION
from mcp_transports._poller import open_poller
from mcp_transports._sockets import (
    NONE_ON_WINDOWS,
    REFUSED_TIME,
    ListenError,
    ListeningSocket,
    accept_until,
    advice_about,
    bind_tcp,
    bind_unix,
    check_unix_path,
    is_abstract,
    is_refused_when_full,
    new_unix_socket,
    why_not_connected,
)
from mcp_transports._transports import as_engine_errors
from mcp_transports.sockets.stream import ConnectedSocket, Secured, SocketChannel

__all__ = [
    "DEFAULT_MAX_CONNECTIONS",
    "SocketServer",
    "SocketStatistics",
    "TcpAddress",
    "TcpTransport",
    "UnixTransport",
    "parse_tcp",
    "parse_unix",
    "unix_url",
]

DEFAULT_MAX_CONNECTIONS = 1000
"""A connection costs a descriptor, and a process may usually have 1024 of them; it needs some for itself."""
# Seconds without a byte after which a connection counts as silent: a client begins as soon as it is connected.
_SILENT_TIME = 1.0
# Seconds. Longer than any handshake over a working network; a peer that takes longer is most likely no client.
DEFAULT_CONNECT_TIMEOUT = 10.0
# Seconds until a server that listens, but whose queue of connections is full, is tried again.
_ASK_AGAIN = 0.01


# -- The transports --------------------------------------------------------------------------------


class _SocketTransport(ABC):
    """The part of both transports that does not depend on the kind of address."""

    def __init__(
        self,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None,
        connect_timeout: float,
        max_connections: int,
        max_connections_per_peer: int | None,
        max_message_bytes: int,
        held_bytes: int,
    ) -> None:
        if connect_timeout <= 0 or min(max_connections, max_message_bytes, held_bytes) < 1:
            raise ValueError(
                "max_connections, max_message_bytes, held_bytes and connect_timeout must be greater than zero"
            )
        if max_connections_per_peer is not None and max_connections_per_peer < 1:
            raise ValueError("max_connections_per_peer must be greater than zero")
        self.url = url
        self._ssl_context = ssl_context
        self._connect_timeout = connect_timeout
        self._max_connections = max_connections, max_connections_per_peer
        self._max_message_bytes = max_message_bytes
        self._held_bytes = held_bytes
        self._server: SocketServer | None = None

    def __repr__(self) -> str:
        state = self.statistics()
        shown = "not served" if state is None else f"{state.connections} connections"
        return f"<{type(self).__name__} {self.url}: {shown}>"

    def statistics(self) -> SocketStatistics | None:
        """Returns the statistics of the server's side; ``None`` while it is not served."""
        return None if self._server is None else self._server.statistics()

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs ``handler(channel)`` in a task for every connection.

        Reports its URL, with the real port, once connections are accepted. When ``handler.stopping`` is set it
        accepts no more and returns when the last connection has ended; cancelled, it closes everything at once. What
        happens in a connection, or leaves its handler, ends that connection alone.

        Raises:
            ConnectFailed: it cannot listen there, or not any more.
            LocalProtocolError: this object is served already.
        """
        if self._server is not None:
            raise LocalProtocolError(f"{self.url} is served already")
        most, most_per_peer = self._max_connections
        self._server = server = SocketServer(
            handler,
            ssl_context=self._ssl_context,
            handshake_timeout=self._connect_timeout,
            connections=Budget(min(most, descriptors.room_for_peers()), most_per_peer),
            unfinished=Budget(self._held_bytes),
            max_message_bytes=self._max_message_bytes,
        )
        listeners: list[ListeningSocket] = []
        try:
            listeners = await self._listen()
            task_status.started(self._url_of(listeners[0]))
            with as_engine_errors():
                await server.serve(listeners)
        finally:
            self._server = None
            for listener in listeners:
                listener.close()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens one connection and yields its channel.

        Leaving the block, also by cancellation, closes it within two seconds.

        Raises:
            ConnectFailed: with the address and the reason, among them ``connect_timeout``.
            LocalProtocolError: the ``ssl_context`` is not for clients.
        """
        try:
            with trio.fail_after(self._connect_timeout):
                channel = await self._open()
        except trio.TooSlowError:
            raise ConnectFailed(
                f"cannot connect to {self.url}: no answer within {self._connect_timeout:g} s"
            ) from None
        async with channel:
            yield channel

    @abstractmethod
    async def _listen(self) -> list[ListeningSocket]: ...

    @abstractmethod
    def _url_of(self, first: ListeningSocket) -> str: ...

    @abstractmethod
    async def _open(self) -> SocketChannel: ...

    def _channel(self, stream: ConnectedSocket | Secured) -> SocketChannel:
        return SocketChannel(stream, max_message_bytes=self._max_message_bytes, peer=self.url)


class TcpTransport(_SocketTransport):
    """Newline frames over TCP at ``tcp://HOST:PORT``: a `ServerTransport` and a `ClientTransport`.

    A host of ``localhost``, or none, is the loopback of IPv4 and IPv6; ``0.0.0.0`` and ``[::]`` are every interface of
    their family, and to be chosen only with TLS or in a trusted network, because peers are not authenticated. Port 0
    listens at any free one. Clients try all addresses of a host, the next one when an earlier takes long.

    Args:
        url: ``tcp://HOST:PORT``.
        ssl_context: speaks TLS with it, on either side; make it for the side that is used. A peer that ends without
            the closing alert of TLS is taken for a broken connection.
        server_hostname: (clients) whose certificate is expected; the URL's host if absent.
        connect_timeout: (clients) seconds for a connection to come about, TLS included; (servers) for a peer's TLS
            handshake. 10 by default.
        max_connections: (servers) 1000 by default, because a process may usually have 1024 descriptors, and never more
            than it may open, less an eighth. Over it a connection that has sent nothing is closed, the oldest first,
            if it is a second old; otherwise the new one is.
        max_connections_per_peer: (servers) the part of ``max_connections`` that one address may have, of IPv6 a network
            of 64 bits; the half by default, so that one client leaves the other half to others.
        max_message_bytes: the longest message in either direction, 16 MiB by default; see `LineChannel`.
        held_bytes: (servers) bytes of messages that have come in part, from 16 KiB each on, of all connections; 512 MiB
            by default, and for one peer the half. Over it the connection whose message was about to grow is answered
            with the error 429 and closed.

    Raises:
        LocalProtocolError: for a URL that says something else.
        ValueError: for limits and times that are not greater than zero.
    """

    def __init__(
        self,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        max_connections_per_peer: int | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        held_bytes: int = DEFAULT_HELD_BYTES,
    ) -> None:
        self._address = parse_tcp(url)
        self._server_hostname = server_hostname or self._address.host or "localhost"
        super().__init__(
            self._address.url(),
            ssl_context=ssl_context,
            connect_timeout=connect_timeout,
            max_connections=max_connections,
            max_connections_per_peer=max_connections_per_peer,
            max_message_bytes=max_message_bytes,
            held_bytes=held_bytes,
        )

    async def _listen(self) -> list[ListeningSocket]:
        with as_engine_errors():
            return await bind_tcp(self._address.host, self._address.port)

    def _url_of(self, first: ListeningSocket) -> str:
        return self._address.url(first.port)

    async def _open(self) -> SocketChannel:
        host, port = self._address.host or "localhost", self._address.port
        try:
            stream = ConnectedSocket.adopt(await trio.open_tcp_stream(host, port))
        except (OSError, UnicodeError) as error:  # the latter for names that cannot be any host's
            reason = why_not_connected(error) + advice_about(error)
            raise ConnectFailed(f"cannot connect to {self.url}: {reason}") from error
        if self._ssl_context is None:
            return self._channel(stream)
        try:
            secured = trio.SSLStream(stream, self._ssl_context, server_hostname=self._server_hostname)
            await secured.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.BrokenResourceError):
                reason = f"{error.__cause__ or error}{advice_about(error)}"
                raise ConnectFailed(f"cannot connect to {self.url}: no TLS: {reason}") from error
            if isinstance(error, (ssl.SSLError, ValueError)):
                raise LocalProtocolError(f"this ssl_context is not for clients: {error}") from error
            raise
        return self._channel(secured)


class UnixTransport(_SocketTransport):
    """Newline frames over a Unix socket: a `ServerTransport` and a `ClientTransport`.

    A socket that a dead server left is replaced; a live server's, or anything that is not a socket, never. It is
    removed when serving ends, unless another one is in its place by then.

    Args:
        url: ``unix:///absolute/path``, ``unix:relative/path``, percent-encoded where need be, or ``unix:@name`` for
            Linux's abstract names, to which every user of the machine may connect.
        mode: (servers) the socket's permissions, 0o600 by default: only this user connects.
        connect_timeout: (clients) seconds that a busy server has to accept; 10 by default.
        max_connections: (servers) as for `TcpTransport`. Peers have no addresses here, so that one may have all of
            them.
        max_message_bytes: the longest message in either direction, 16 MiB by default; see `LineChannel`.
        held_bytes: (servers) bytes of messages that have come in part, from 16 KiB each on, of all connections; 512 MiB
            by default, and for one peer the half. Over it the connection whose message was about to grow is answered
            with the error 429 and closed.

    Raises:
        LocalProtocolError: for a URL of another kind, and for a path that is too long for the system.
        ValueError: for limits and times that are not greater than zero.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: int = 0o600,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        held_bytes: int = DEFAULT_HELD_BYTES,
    ) -> None:
        self._path = parse_unix(url)
        with as_engine_errors():
            check_unix_path(self._path)
        self._mode = mode
        super().__init__(
            unix_url(self._path),
            ssl_context=None,
            connect_timeout=connect_timeout,
            max_connections=max_connections,
            max_connections_per_peer=None,
            max_message_bytes=max_message_bytes,
            held_bytes=held_bytes,
        )

    async def _listen(self) -> list[ListeningSocket]:
        with as_engine_errors():
            return [await bind_unix(self._path, mode=self._mode)]

    def _url_of(self, first: ListeningSocket) -> str:
        return self.url

    async def _open(self) -> SocketChannel:
        # trio.open_unix_socket takes a full queue of connections for success.
        refused_until = trio.current_time() + REFUSED_TIME if is_refused_when_full() else -math.inf
        while True:
            connecting = new_unix_socket()
            try:
                code = connecting.connect_ex(self._path)
                if not code:
                    await trio.lowlevel.checkpoint()
                    return self._channel(ConnectedSocket(connecting))
            except BaseException:
                connecting.close()
                raise
            connecting.close()
            may_be_full = code == errno.ECONNREFUSED and trio.current_time() < refused_until
            if code != errno.EAGAIN and not may_be_full:
                raise ConnectFailed(f"cannot connect to {self.url}: {_why_not(self._path, code)}")
            await trio.sleep(_ASK_AGAIN)


def _why_not(path: str, code: int) -> str:
    if code == errno.ECONNREFUSED and not is_abstract(path):
        try:
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                return "that is no socket"
        except OSError:
            return os.strerror(code)
        return "nobody listens there any more"
    return os.strerror(code) + ("; is the server running there?" if code == errno.ENOENT else "")


# -- The server of one or more listeners -----------------------------------------------------------


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
        # By the time at which they came, with their holders, and with those that are not silent any more in between.
        self._silent: dict[ConnectedSocket, tuple[float, str | None]] = {}
        # They are not charged any more, although their tasks have not ended yet.
        self._cut: set[ConnectedSocket] = set()
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
            if not self._admit(accepted, holder):
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

    def _admit(self, accepted: socket.socket, holder: str | None) -> bool:
        """Charges a new connection, after it has cut one that was silent where that is the only way."""
        over = self._connections.charge(holder, 1)
        if over is None:
            if descriptors.leaves_room(accepted.fileno()):
                return True
            self._connections.release(holder, 1)
        if not self._cut_silent(holder if over == "holder" else None):
            return False
        return self._connections.charge(holder, 1) is None

    def _cut_silent(self, holder: str | None) -> bool:
        """Cuts the connection that has been silent longest, of one holder or, with ``None``, of anybody."""
        latest = trio.current_time() - _SILENT_TIME
        for stream, (came_at, whose) in list(self._silent.items()):
            if stream.has_received:
                del self._silent[stream]
            elif came_at > latest:
                return False
            elif holder is None or holder == whose:
                del self._silent[stream]
                self._cut.add(stream)
                self._connections.release(whose, 1)
                stream.cut()
                return True
        return False

    async def _serve_one(self, accepted: socket.socket, peer: str, holder: str | None) -> None:
        account = Account(self._unfinished, holder_of(peer))
        stream: ConnectedSocket | None = None
        try:
            stream = ConnectedSocket(accepted, self._poller)
            self._silent[stream] = trio.current_time(), holder
            channel = await self._open_channel(stream, peer, account)
            if channel is not None:
                self._accepted += 1
                async with channel:
                    await self._handler(channel)
        finally:
            account.keep(0)
            if stream is not None:
                self._silent.pop(stream, None)
            if stream in self._cut:
                self._cut.remove(stream)
            else:
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


# -- The URLs ``tcp:`` and ``unix:`` ---------------------------------------------------------------


@attrs.frozen
class TcpAddress:
    """Host and port; the host without brackets, ``None`` for loopback."""

    host: str | None
    port: int

    def url(self, port: int | None = None) -> str:
        """Returns the URL, with ``port``, the one that is really listened at, if that is known."""
        host = self.host or "localhost"
        return f"tcp://{f'[{host}]' if ':' in host else host}:{self.port if port is None else port}"


def parse_tcp(url: str) -> TcpAddress:
    """Reads ``tcp://HOST:PORT``; no host means loopback. Raises `LocalProtocolError` for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise LocalProtocolError(f"{url!r}: {error}") from error
    if parts.scheme != "tcp" or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise LocalProtocolError(f"a TCP address is written tcp://HOST:PORT and nothing more, not {url!r}")
    if port is None:
        raise LocalProtocolError(
            f"{url!r} says no port: tcp://HOST:PORT, to listen also with 0 for any free one"
        )
    return TcpAddress(host or None, port)


def parse_unix(url: str) -> str:
    """Returns the path in ``unix:///absolute/path`` or ``unix:relative/path``, or the abstract name in ``unix:@name``.

    Percent-encoding is decoded. An abstract name begins with NUL, as the system expects it.

    Raises:
        LocalProtocolError: the URL has another form, or the system has no Unix sockets.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "unix":
        raise LocalProtocolError(f"a Unix socket is written unix:///PATH, not {url!r}")
    if sys.platform == "win32":
        raise LocalProtocolError(f"{url!r}: {NONE_ON_WINDOWS}")
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith(("/", "@", "%2F", "%2f")):
            raise LocalProtocolError(
                f"{url!r}: write unix:///{rest} for an absolute path, unix:{rest} for a relative one"
            )
    path = unquote(rest)
    if not path or "\0" in path:
        raise LocalProtocolError(
            f"{url!r} names no socket: write unix:///PATH, unix:RELATIVE/PATH or unix:@NAME"
        )
    return f"\0{path[1:]}" if rest.startswith("@") else path


def unix_url(path: str) -> str:
    """Returns the URL that `parse_unix` reads as ``path``."""
    if path.startswith("\0"):
        return f"unix:@{quote(path[1:])}"
    shown = quote(path, safe="/")
    return f"unix://{shown}" if path.startswith("/") else f"unix:{shown}"
