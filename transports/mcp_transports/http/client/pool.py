"""The pool of connections to one server, and the sockets under them."""

from __future__ import annotations

import select
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable

import attrs
import httpcore2
import trio

from mcp_transports.http.client.connection import ClientConnection, ConnectedStream

__all__ = ["ConnectionPool", "HttpAddress", "SocketStream"]

# Bytes of one read: a loopback segment, and the usual content of a kernel's buffer.
RECEIVE_BYTES = 64 * 1024

# Seconds to send the close_notify of TLS on an idle connection: it fits into the buffer of its socket.
TLS_CLOSE_TIMEOUT = 1.0


class SocketStream:
    """A socket without TLS, for a `ClientConnection`.

    It waits for the socket itself, because a `trio.SocketStream` lets other tasks run after each write, and asks for an
    answer before there can be one.

    Args:
        connected: the socket, which is not blocking. It is closed by `aclose`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.is_readable = _look_at(connected)
        """Returns whether there is something to read, which may be the end."""

    async def send_all(self, data: bytes) -> None:
        """Sends all bytes, and waits only if the kernel takes no more. Cancelled, a part may have been sent.

        Raises:
            httpcore2.WriteError: the connection broke.
        """
        sent = self._send(data)
        if sent < len(data):
            with memoryview(data) as rest:
                while sent < len(data):
                    await trio.lowlevel.wait_writable(self.socket)
                    sent += self._send(rest[sent:])

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def receive(self) -> bytes:
        """Waits for bytes; ``b""`` is the end.

        Raises:
            httpcore2.ReadError: the connection broke.
        """
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise httpcore2.ReadError(str(error)) from error

    async def aclose(self) -> None:
        self.socket.close()


def _look_at(connected: socket.socket) -> Callable[[], bool]:
    """Returns what says at once whether ``connected`` has something to read."""
    if sys.platform == "win32":
        # There `select` has no limit on the number of a descriptor, which elsewhere is why `poll` is needed.
        return lambda: bool(select.select((connected,), (), (), 0)[0])
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return lambda: bool(poll.poll(0))


class TlsStream:
    """A socket with TLS, for a `ClientConnection`."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.socket = stream.transport_stream.socket
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """Sends all bytes. Cancelled, a part may have been sent.

        Raises:
            httpcore2.WriteError: the connection broke.
        """
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise httpcore2.WriteError(str(error)) from error

    async def receive(self) -> bytes:
        """Waits for bytes; ``b""`` is the end.

        Raises:
            httpcore2.ReadError: the connection broke.
        """
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as error:
            raise httpcore2.ReadError(str(error)) from error

    def is_readable(self) -> bool:
        """Whether there is something to read, which may be the end."""
        return self.socket.is_readable()

    async def aclose(self) -> None:
        await self._stream.aclose()


@attrs.frozen(kw_only=True)
class HttpAddress:
    """The address of a server: host and port, or a Unix socket."""

    host: str
    port: int
    unix_path: str | None
    tls: ssl.SSLContext | None
    """The context of TLS; ``None`` for plain HTTP."""
    connect_timeout: float
    """Seconds for a connection to be made, TLS included."""

    async def connect(self) -> ConnectedStream:
        """Opens a connection. Cancelled, it leaves no socket open.

        Raises:
            httpcore2.ConnectTimeout: the connection took longer than ``connect_timeout``.
            httpcore2.ConnectError: the connection failed.
        """
        try:
            with trio.fail_after(self.connect_timeout):
                stream = await self._open()
                if self.tls is not None:
                    return TlsStream(await self._start_tls(stream, self.tls))
                connected = socket.socket(fileno=stream.socket.detach())
                connected.setblocking(False)
                return SocketStream(connected)
        except trio.TooSlowError:
            raise httpcore2.ConnectTimeout(f"no connection within {self.connect_timeout:g} s") from None
        except (OSError, trio.BrokenResourceError) as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def _open(self) -> trio.SocketStream:
        if self.unix_path is not None:
            return await trio.open_unix_socket(self.unix_path)
        return await trio.open_tcp_stream(self.host, self.port)

    async def _start_tls(
        self, stream: trio.SocketStream, context: ssl.SSLContext
    ) -> trio.SSLStream[trio.SocketStream]:
        context.set_alpn_protocols(["http/1.1"])
        encrypted = trio.SSLStream(stream, context, server_hostname=self.host, https_compatible=True)
        try:
            await encrypted.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return encrypted


class ConnectionPool:
    """Connections to one address. The one that was used last is used first, so that those of a burst can expire.

    Args:
        address: the server's address.
        max_connections: the number of connections that may be open.
        keepalive_expiry: seconds for which an idle connection is kept.
    """

    def __init__(self, address: HttpAddress, *, max_connections: int, keepalive_expiry: float) -> None:
        self._address = address
        self._max_connections = max_connections
        self._keepalive_expiry = keepalive_expiry
        # Each with the time since which it is idle, the oldest first.
        self._idle: deque[tuple[float, ClientConnection]] = deque()
        self._open = 0
        self._released = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<ConnectionPool {self._open} open, {len(self._idle)} idle>"

    async def acquire(self) -> ClientConnection:
        """Returns a connection for one request, after which it is to be given to `release`.

        It waits while as many as allowed are in use, and raises the errors of `HttpAddress.connect`. Cancelled, it
        has taken no connection.
        """
        while True:
            while self._idle:
                since, connection = self._idle.pop()
                if trio.current_time() - since < self._keepalive_expiry and not connection.has_ended():
                    return connection
                await self._close_connection(connection)
            if self._open < self._max_connections:
                break
            await self._released.park()
        self._open += 1
        try:
            return ClientConnection(await self._address.connect())
        except BaseException:
            self._note_closed()
            raise

    async def release(self, connection: ClientConnection) -> None:
        """Keeps a connection if it can carry another request, and closes it otherwise, even when cancelled."""
        connection.finish()
        if not connection.is_idle:
            await self._close_connection(connection)
            return
        now = trio.current_time()
        self._idle.append((now, connection))
        self._released.unpark()
        while self._idle and now - self._idle[0][0] >= self._keepalive_expiry:
            await self._close_connection(self._idle.popleft()[1])

    async def _close_connection(self, connection: ClientConnection) -> None:
        try:
            await connection.aclose()
        finally:
            self._note_closed()

    def _note_closed(self) -> None:
        self._open -= 1
        self._released.unpark()

    async def aclose(self) -> None:
        """Closes all idle connections. Those in use are closed by the requests that use them."""
        while self._idle:
            with trio.move_on_after(TLS_CLOSE_TIMEOUT, shield=True):
                await self._close_connection(self._idle.pop()[1])
