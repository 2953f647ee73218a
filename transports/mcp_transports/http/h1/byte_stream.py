"""The byte stream under an HTTP connection: a socket, or any `trio.abc.Stream` (TLS, memory)."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from mcp_transports._poller import Poller

__all__ = ["RECEIVE_BYTES", "ByteStream", "SocketByteStream", "WrappedByteStream"]

# Bytes of one read: a loopback segment, and the usual content of a kernel's buffer.
RECEIVE_BYTES = 64 * 1024
# Has Linux keep the last bytes until the end follows them, which then goes into the same segment (send(2)).
_MORE_FOLLOWS: int = getattr(socket, "MSG_MORE", 0)
# Seconds for the closing messages of TLS, which a peer that is gone never reads.
_CLOSE_TIME = 1.0


Received = Callable[["bytes | memoryview"], bool]
"""Takes bytes, and returns whether more may follow. Must not wait. A view is valid until it returns."""


class ByteStream(ABC):
    """A stream of bytes in both directions. At most one task reads and one task writes.

    Args:
        peer: The peer's address, for the log and for requests.
        secure: Whether the bytes go through TLS.
    """

    __slots__ = ("peer", "secure", "stopped_reading")

    def __init__(self, peer: str, *, secure: bool) -> None:
        self.peer = peer
        self.secure = secure
        self.stopped_reading = False
        """Whether no byte is read any more: the peer ended, the connection broke, or `stop_reading` was called."""

    @abstractmethod
    async def read(self, received: Received) -> None:
        """Gives ``received`` the bytes that arrive, until that returns false or `stopped_reading` is true.

        Raises:
            trio.BrokenResourceError: The connection broke.
        """

    @abstractmethod
    def stop_reading(self) -> None:
        """Makes `read` return without taking another byte."""

    @property
    def has_unread(self) -> bool:
        """Whether bytes of the peer are known to have arrived that were not read."""
        return False

    @abstractmethod
    def send_now(self, data: bytes) -> int:
        """Sends as many bytes as can be sent without waiting, and returns their number.

        Raises:
            trio.BrokenResourceError: The connection broke.
        """

    def send_before_end(self, data: bytes) -> int:
        """Sends as `send_now` does, where `half_close` follows at once: if it can, the peer sees both in one moment."""
        return self.send_now(data)

    @abstractmethod
    async def send_some(self, data: bytearray) -> int:
        """Waits until some of ``data`` was sent, and returns the number of bytes.

        Raises:
            trio.BrokenResourceError: The connection broke.
        """

    @abstractmethod
    def half_close(self) -> bool:
        """Ends the sending direction. Returns false if the protocol below cannot do that without closing both."""

    @abstractmethod
    def close_now(self) -> None:
        """Closes as much as is possible without waiting, once `read` has returned and nothing is being sent."""

    @abstractmethod
    def as_trio_stream(self) -> trio.abc.Stream:
        """Returns the same connection for another protocol, which alone uses it until `aclose`."""

    @abstractmethod
    async def aclose(self, *, graceful: bool) -> None:
        """Closes the stream. If ``graceful``, it sends the closing messages of TLS first, for at most a second."""


class SocketByteStream(ByteStream):
    """A plain TCP or Unix socket, read by a poller into a buffer that all connections of a server share.

    Args:
        connected: The socket, which is not blocking. It is closed by `aclose`.
        poller: Waits for the socket.
        buffer: The memory into which bytes are received.
        peer: The peer's address.
    """

    __slots__ = ("_broken", "_buffer", "_descriptor", "_poller", "_received", "_socket", "_woken")

    _received: Received

    def __init__(self, connected: socket.socket, poller: Poller, buffer: memoryview, peer: str) -> None:
        super().__init__(peer, secure=False)
        self._socket = connected
        self._descriptor = connected.fileno()
        self._poller = poller
        self._buffer = buffer
        self._woken = trio.Event()
        self._broken = False

    async def read(self, received: Received) -> None:
        self._received = received
        self._woken = trio.Event()
        try:
            self._poller.add(self._descriptor, self)
            await self._woken.wait()
        finally:
            self._poller.remove(self._descriptor)
            # Its owner has this stream, and must not wait for the garbage collector.
            del self._received
        if self._broken:
            raise trio.BrokenResourceError("the connection broke")

    def stop_reading(self) -> None:
        self.stopped_reading = True
        self._pause()

    @property
    def has_unread(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:  # none have arrived, or the connection is broken
            return False

    def _pause(self) -> None:
        # Removed at once, because the task that sleeps in `read` runs later.
        self._poller.remove(self._descriptor)
        self._woken.set()

    def readable(self) -> None:
        """Called by the poller."""
        try:
            data = self._buffer[: self._socket.recv_into(self._buffer)]
        except BlockingIOError:
            return
        except OSError:
            self._broken = True
            self.stop_reading()
            return
        if not data:
            self.stop_reading()
        elif not self._received(data):
            self._pause()

    def crashed(self, error: BaseException) -> None:
        """Called by the poller, which has logged ``error``: for the reader the connection is broken."""
        self._broken = True
        self.stop_reading()

    def send_now(self, data: bytes) -> int:
        return self._send(data, 0)

    def send_before_end(self, data: bytes) -> int:
        return self._send(data, _MORE_FOLLOWS)

    def _send(self, data: bytes, flags: int) -> int:
        try:
            return self._socket.send(data, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_some(self, data: bytearray) -> int:
        while True:
            await trio.lowlevel.wait_writable(self._descriptor)
            try:
                # The views must be released before the caller shortens the bytearray.
                with memoryview(data) as whole, whole[: 4 * RECEIVE_BYTES] as piece:
                    return self._socket.send(piece)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def half_close(self) -> bool:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False  # the peer was faster
        return True

    def close_now(self) -> None:
        self._socket.close()

    def as_trio_stream(self) -> trio.abc.Stream:
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))

    async def aclose(self, *, graceful: bool) -> None:
        self._socket.close()


class WrappedByteStream(ByteStream):
    """Any `trio.abc.Stream`. Nothing can be sent on it without waiting."""

    __slots__ = ("_reading", "_stream")

    def __init__(self, stream: trio.abc.Stream, peer: str, *, secure: bool) -> None:
        super().__init__(peer, secure=secure)
        self._stream = stream
        self._reading = trio.CancelScope()

    async def read(self, received: Received) -> None:
        with trio.CancelScope() as self._reading:
            while not self.stopped_reading:
                try:
                    data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
                except trio.BrokenResourceError:
                    self.stopped_reading = True
                    raise
                if not data:
                    self.stopped_reading = True
                elif not received(data):
                    return

    def stop_reading(self) -> None:
        self.stopped_reading = True
        self._reading.cancel()

    def send_now(self, data: bytes) -> int:
        return 0

    async def send_some(self, data: bytearray) -> int:
        piece = bytes(data[:RECEIVE_BYTES])
        await self._stream.send_all(piece)
        return len(piece)

    def half_close(self) -> bool:
        return False

    def close_now(self) -> None:
        """Closing a stream may wait, so it is left to `aclose`."""

    def as_trio_stream(self) -> trio.abc.Stream:
        return self._stream

    async def aclose(self, *, graceful: bool) -> None:
        if graceful:
            with trio.move_on_after(_CLOSE_TIME):
                await self._stream.aclose()
                return
        await trio.aclose_forcefully(self._stream)
