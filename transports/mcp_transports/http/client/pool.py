"""The pool of connections to one server, on each of which httpcore2 speaks HTTP/1.1."""

from __future__ import annotations

import ssl
from collections import deque
from typing import Any

import attrs
import httpcore2
import trio

__all__ = ["ConnectionPool", "HttpAddress"]

# Seconds to send the close_notify of TLS on an idle connection: it fits into the buffer of its socket.
TLS_CLOSE_TIMEOUT = 1.0


class HttpStream(httpcore2.AsyncNetworkStream):
    """A socket under Trio, for `httpcore2.AsyncHTTP11Connection`.

    The first write after a read is held back until the second, so that the head of a request and its body are one
    write, and one packet if they are short. Timeouts are ignored, because the engine has deadlines of its own.
    """

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._held = b""
        self._holds_next = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end.

        Raises:
            httpcore2.ReadError: the connection broke, or was closed.
        """
        try:
            if self._held:
                await self._write_held()
            self._holds_next = True
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(str(error)) from error

    async def _write_held(self) -> None:
        """Writes a head that no body followed. A server may have answered before it closed the connection."""
        held, self._held = self._held, b""
        try:
            await self._stream.send_all(held)
        except trio.BrokenResourceError:
            pass

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends all bytes, or holds them back until the next call. Cancelled, a part may have been sent.

        Raises:
            httpcore2.WriteError: the connection broke, or was closed.
        """
        if not buffer:
            return
        if self._holds_next:
            self._held, self._holds_next = buffer, False
            return
        data, self._held = self._held + buffer, b""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """Returns the socket, or whether it has something to read; see `httpcore2.AsyncNetworkStream`."""
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if info == "socket":
            return stream.socket
        return stream.socket.is_readable() if info == "is_readable" else None


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

    @property
    def origin(self) -> httpcore2.Origin:
        return httpcore2.Origin(b"http" if self.tls is None else b"https", self.host.encode(), self.port)

    async def connect(self) -> HttpStream:
        """Opens a connection. Cancelled, it leaves no socket open.

        Raises:
            httpcore2.ConnectTimeout: the connection took longer than ``connect_timeout``.
            httpcore2.ConnectError: the connection failed.
        """
        try:
            with trio.fail_after(self.connect_timeout):
                stream = await self._open()
                return HttpStream(stream if self.tls is None else await self._start_tls(stream, self.tls))
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
        self._idle: deque[tuple[float, httpcore2.AsyncHTTP11Connection]] = deque()
        self._open = 0
        self._released = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<ConnectionPool {self._open} open, {len(self._idle)} idle>"

    async def acquire(self) -> httpcore2.AsyncHTTP11Connection:
        """Returns a connection for one request, after which it is to be given to `release`.

        It waits while as many as allowed are in use, and raises the errors of `HttpAddress.connect`. Cancelled, it
        has taken no connection.
        """
        while True:
            while self._idle:
                since, connection = self._idle.pop()
                if trio.current_time() - since < self._keepalive_expiry and not connection.has_expired():
                    return connection
                await self._close_connection(connection)
            if self._open < self._max_connections:
                break
            await self._released.park()
        self._open += 1
        try:
            return httpcore2.AsyncHTTP11Connection(self._address.origin, await self._address.connect())
        except BaseException:
            self._note_closed()
            raise

    async def release(self, connection: httpcore2.AsyncHTTP11Connection) -> None:
        """Keeps a connection if it can carry another request, and closes it otherwise, even when cancelled."""
        if not connection.is_idle():
            await self._close_connection(connection)
            return
        now = trio.current_time()
        self._idle.append((now, connection))
        self._released.unpark()
        while self._idle and now - self._idle[0][0] >= self._keepalive_expiry:
            await self._close_connection(self._idle.popleft()[1])

    async def _close_connection(self, connection: httpcore2.AsyncHTTP11Connection) -> None:
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
