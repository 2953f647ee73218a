"""The pool of connections to one server, and the sockets under them.

llhttp, through httptools, reads the responses: httpcore2 and h11 made up two thirds of the processor time of a call.
The exceptions are still those of httpcore2, so that a user's HTTP client and connections of our own fail alike.

Of what a server sends, only framing matters here: bodies are not decoded. Nothing that it sends is kept beyond one read
(64 KiB), except for the head, which is bounded.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal, Protocol

import attrs
import httpcore2
import httptools
import trio

from mcp_transports._sockets import why_not_connected

__all__ = [
    "AnySocket",
    "ClientConnection",
    "ConnectedStream",
    "ConnectionPool",
    "HttpAddress",
    "SocketStream",
    "encode_header_lines",
]

# Bytes of a head, of chunk framing without a chunk, or of a trailer. h11 had the same bound.
MAX_FRAMING_BYTES = 100 * 1024
# Names of headers that are remembered as valid: the protocol's, and those that tools mirror.
KNOWN_NAMES = 256
SWITCHING_PROTOCOLS = 101

_FIELD_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
# RFC 9110 section 5.5, except that control characters other than NUL and line ends are let through, as in h11.
_FIELD_VALUE = re.compile(rb"(?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?")

AnySocket = socket.socket | trio.socket.SocketType
State = Literal["idle", "head", "body", "complete", "closed"]

# Bytes of one read: a loopback segment, and the usual content of a kernel's buffer.
RECEIVE_BYTES = 64 * 1024

# Seconds to send the close_notify of TLS on an idle connection: it fits into the buffer of its socket.
TLS_CLOSE_TIMEOUT = 1.0


# -- One connection: requests one after the other --------------------------------------------------


class ConnectedStream(Protocol):
    """The bytes of a connection. Errors are those of httpcore2."""

    @property
    def socket(self) -> AnySocket:
        """The socket under it."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Sends all bytes. Raises `httpcore2.WriteError`."""

    async def receive(self) -> bytes:
        """Waits for bytes; ``b""`` is the end. Raises `httpcore2.ReadError`."""

    def is_readable(self) -> bool:
        """Whether there is something to read, which may be the end."""

    async def aclose(self) -> None: ...


class _Surplus(Exception):
    """Ends llhttp from inside a callback, at bytes behind the response."""


class ClientConnection:
    """A connection, on which `exchange` is called for one request, then `read` for its response, then `finish`.

    Args:
        stream: the connected bytes; they are closed with the connection.
    """

    __slots__ = (
        "_failure",
        "_framing_bytes",
        "_has_received",
        "_is_kept",
        "_parser",
        "_parts",
        "_state",
        "_was_sent",
        "headers",
        "status",
        "stream",
    )

    def __init__(self, stream: ConnectedStream) -> None:
        self.stream = stream
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """The headers of the response, with names in lower case."""
        self._parser = httptools.HttpResponseParser(self)
        # RFC 9112 section 2.2 allows it, and servers of a few lines need it.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._parts: list[bytes] = []
        self._framing_bytes = 0
        self._failure: httpcore2.RemoteProtocolError | None = None
        self._is_kept = False
        self._was_sent = False
        self._has_received = False
        self._state: State = "complete"

    def __repr__(self) -> str:
        return f"<ClientConnection {self._state}>"

    @property
    def is_idle(self) -> bool:
        """Whether the connection can carry another request."""
        return self._state == "idle"

    @property
    def is_closed(self) -> bool:
        """Whether it was closed on this side."""
        return self._state == "closed"

    @property
    def was_sent(self) -> bool:
        """Whether all of the last request was sent, so that the server may have carried it out."""
        return self._was_sent

    @property
    def is_unanswered(self) -> bool:
        """Whether no byte has come since the last request was begun."""
        return not self._has_received

    def has_ended(self) -> bool:
        """Whether the server has closed an idle connection, or has sent unsolicited bytes."""
        return self.stream.is_readable()

    async def exchange(self, request: bytes, sent: trio.Event | None = None) -> None:
        """Sends a request and waits for the head of its response: `status` and `headers`.

        Args:
            request: the head and the body.
            sent: is set when all of the request was sent.

        Raises:
            httpcore2.ReadError: the connection broke.
            httpcore2.RemoteProtocolError: the server ended the connection, or sent something that is not HTTP/1.1.
        """
        self.status, self.headers, self._framing_bytes = 0, [], 0
        self._state, self._is_kept = "head", False
        self._has_received = False
        try:
            await self.stream.send_all(request)
        except httpcore2.WriteError:
            # A server may answer a request of which it has not read all, and close the connection.
            self._was_sent = False
        else:
            self._was_sent = True
            if sent is not None:
                sent.set()
        while self._state == "head":
            await self._feed()

    async def read(self) -> bytes:
        """Waits for the next bytes of the body; ``b""`` is its end. Raises as `exchange` does."""
        while not self._parts:
            if self._state != "body":
                return b""
            await self._feed()
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Ends the exchange: the connection is idle, if the response was read to its end and it can be used again."""
        if self._state == "complete" and self._is_kept and self._was_sent:
            self._state = "idle"
        self._parts = []

    async def aclose(self) -> None:
        """Closes the connection, also when cancelled. May be called twice."""
        if self._state != "closed":
            self._state, self._parts = "closed", []
            # It refers to this object.
            del self._parser
            await self.stream.aclose()

    async def _feed(self) -> None:
        if self._failure is not None:
            raise self._failure
        data = await self.stream.receive()
        if not data:
            self._end()
            return
        self._has_received = True
        parts = self._parts
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._stopped(error)
        else:
            if parts:
                self._framing_bytes = 0
            elif self._state != "complete":
                self._framing_bytes += len(data)
                if self._framing_bytes > MAX_FRAMING_BYTES:
                    raise httpcore2.RemoteProtocolError(
                        "the head of the response, or its framing, is too long"
                    )

    def _stopped(self, error: Exception) -> None:
        """Takes note of the bytes that llhttp stopped at. What came before them counts."""
        if self._state == "complete":
            self._is_kept = False
        elif isinstance(error, httptools.HttpParserCallbackError):
            # A mistake of this module, or `KeyboardInterrupt`.
            raise error.__context__ or error
        else:
            self._failure = httpcore2.RemoteProtocolError(str(error))
            if not self._parts:
                raise self._failure from error

    def _end(self) -> None:
        """Takes note of the end of the bytes, which is that of a body without a length."""
        if self._state == "head":
            raise httpcore2.RemoteProtocolError("Server disconnected without sending a response.")
        framing = {name: value for name, value in self.headers if name in _FRAMING}
        if b"content-length" in framing or framing.get(b"transfer-encoding", b"").lower().endswith(
            b"chunked"
        ):
            raise httpcore2.RemoteProtocolError("the connection ended in the middle of the body")
        self._state = "complete"

    # -- called by llhttp ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begins a response, or another one after an interim response."""
        if self._state != "head":
            raise _Surplus
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header line, or drops one of a trailer, as RFC 9110 section 6.5.1 allows."""
        if self._state == "head":
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Ends the head, unless it is that of an interim response (RFC 9110 section 15.2)."""
        status = self._parser.get_status_code()
        if status >= 200 or status == SWITCHING_PROTOCOLS:
            self.status, self._state = status, "body"

    def on_body(self, data: bytes) -> None:
        """Takes a part of the body, without framing."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Ends a response, at its last byte."""
        if self._state == "body":
            self._state = "complete"
            self._is_kept = self.status != SWITCHING_PROTOCOLS and self._parser.should_keep_alive()


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@lru_cache(KNOWN_NAMES)
def _line_start(name: bytes) -> bytes:
    if not _FIELD_NAME.fullmatch(name):
        raise httpcore2.LocalProtocolError(f"Illegal header name {name!r}")
    return name + b": "


def encode_header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the lines of headers.

    Raises:
        httpcore2.LocalProtocolError: a name or a value cannot be sent, because it would end its line, for example.
    """
    lines = []
    for name, value in headers:
        if not _FIELD_VALUE.fullmatch(value):
            # The value may be a secret.
            raise httpcore2.LocalProtocolError(f"Illegal value of the header {name!r}")
        lines.append(_line_start(name) + value)
    return b"\r\n".join(lines) + b"\r\n" if lines else b""


# -- Sockets, and the pool of connections ----------------------------------------------------------


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
        except OSError as error:
            raise httpcore2.ConnectError(why_not_connected(error)) from error
        except trio.BrokenResourceError as error:
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

    async def acquire(self, *, is_new: bool = False) -> ClientConnection:
        """Returns a connection for one request, after which it is to be given to `release`.

        It waits while as many as allowed are in use, and raises the errors of `HttpAddress.connect`. Cancelled, it
        has taken no connection.

        Args:
            is_new: whether it has to be one on which nothing was sent yet.
        """
        while True:
            while self._idle and not (is_new and self._open < self._max_connections):
                since, connection = self._idle.pop()
                is_old = is_new or trio.current_time() - since >= self._keepalive_expiry
                if not is_old and not connection.has_ended():
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
