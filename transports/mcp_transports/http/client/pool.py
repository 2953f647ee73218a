"""The connections to one server that are kept for the next request, each HTTP/1.1 as httpcore2 speaks it."""

from __future__ import annotations

import ssl
from collections import deque
from typing import Any

import attrs
import httpcore2
import trio

__all__ = ["ConnectionPool", "HttpAddress"]

# Seconds for the goodbye of TLS on a connection that carries nothing: it fits into the buffer of its socket.
GOODBYE_TIMEOUT = 1.0


class HttpStream(httpcore2.AsyncNetworkStream):
    """A socket under Trio, for `httpcore2.AsyncHTTP11Connection`.

    What is written first after something was read waits for what follows it, so that the head of a request and its
    body are one write, and one packet if they are short. Timeouts are not looked at: the engine has clocks of its own.
    """

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._held = b""
        self._begins = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if self._held:
                await self._write_held()
            self._begins = True
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(str(error)) from error

    async def _write_held(self) -> None:
        """A head that no body followed. The server may have answered before it hung up."""
        held, self._held = self._held, b""
        try:
            await self._stream.send_all(held)
        except trio.BrokenResourceError:
            pass

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if self._begins:
            self._held, self._begins = buffer, False
            return
        data, self._held = self._held + buffer, b""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """What httpcore2 documents; of that the socket, and whether something came on it."""
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if info == "socket":
            return stream.socket
        return stream.socket.is_readable() if info == "is_readable" else None


@attrs.frozen(kw_only=True)
class HttpAddress:
    """Where connections lead: a host and port, or a Unix socket; with TLS if there is a context for it."""

    host: str
    port: int
    path: str | None
    tls: ssl.SSLContext | None
    # Seconds for a connection to come about, TLS included.
    timeout: float

    @property
    def origin(self) -> httpcore2.Origin:
        return httpcore2.Origin(b"http" if self.tls is None else b"https", self.host.encode(), self.port)

    async def connect(self) -> HttpStream:
        """Raises `httpcore2.ConnectTimeout` and `httpcore2.ConnectError`; cancelled, it leaves no socket open."""
        try:
            with trio.fail_after(self.timeout):
                stream = await self._open()
                return HttpStream(stream if self.tls is None else await self._secured(stream, self.tls))
        except trio.TooSlowError:
            raise httpcore2.ConnectTimeout(f"no connection within {self.timeout:g} s") from None
        except (OSError, trio.BrokenResourceError) as error:
            raise httpcore2.ConnectError(str(error)) from error

    async def _open(self) -> trio.SocketStream:
        if self.path is not None:
            return await trio.open_unix_socket(self.path)
        return await trio.open_tcp_stream(self.host, self.port)

    async def _secured(
        self, stream: trio.SocketStream, context: ssl.SSLContext
    ) -> trio.SSLStream[trio.SocketStream]:
        context.set_alpn_protocols(["http/1.1"])
        secured = trio.SSLStream(stream, context, server_hostname=self.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return secured


class ConnectionPool:
    """At most ``most`` connections to one place; those that carry nothing are kept for ``expiry`` seconds.

    The one that was used last is used first, so that those a burst needed can be let go of.
    """

    def __init__(self, place: HttpAddress, *, most: int, expiry: float) -> None:
        self._place = place
        self._most = most
        self._expiry = expiry
        # Each with the time since which it carries nothing, the oldest first.
        self._idle: deque[tuple[float, httpcore2.AsyncHTTP11Connection]] = deque()
        self._open = 0
        self._room = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<ConnectionPool {self._open} open, {len(self._idle)} idle>"

    async def take(self) -> httpcore2.AsyncHTTP11Connection:
        """A connection for one request; waits for room if there are as many as there may be. `give_back` it.

        Raises as `HttpAddress.connect` does.
        """
        while True:
            while self._idle:
                since, connection = self._idle.pop()
                if trio.current_time() - since < self._expiry and not connection.has_expired():
                    return connection
                await self._drop(connection)
            if self._open < self._most:
                break
            await self._room.park()
        self._open += 1
        try:
            return httpcore2.AsyncHTTP11Connection(self._place.origin, await self._place.connect())
        except BaseException:
            self._leave()
            raise

    async def give_back(self, connection: httpcore2.AsyncHTTP11Connection) -> None:
        """Keeps a connection that can take another request and closes any other; also when it is cancelled."""
        if not connection.is_idle():
            await self._drop(connection)
            return
        now = trio.current_time()
        self._idle.append((now, connection))
        self._room.unpark()
        while self._idle and now - self._idle[0][0] >= self._expiry:
            await self._drop(self._idle.popleft()[1])

    async def _drop(self, connection: httpcore2.AsyncHTTP11Connection) -> None:
        try:
            await connection.aclose()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._open -= 1
        self._room.unpark()

    async def aclose(self) -> None:
        """Closes those that carry nothing; the others are closed by who uses them."""
        while self._idle:
            with trio.move_on_after(GOODBYE_TIMEOUT, shield=True):
                await self._drop(self._idle.pop()[1])
