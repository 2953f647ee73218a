"""The two kinds of wire under a connection: a socket of the system, and any `trio.abc.Stream` (TLS, memory)."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod

import trio

__all__ = ["RECEIVE_BYTES", "ByteStream", "SocketByteStream", "WrappedByteStream"]

# One read: a loopback segment, and what a kernel's buffer usually holds.
RECEIVE_BYTES = 64 * 1024
# How long saying goodbye over TLS may take.
_GOODBYE_TIME = 1.0


class ByteStream(ABC):
    """Bytes in, bytes out. At most one task receives and one sends."""

    __slots__ = ()

    @property
    def descriptor(self) -> int | None:
        """What a poller waits for before `receive_now`; ``None`` for wires that only `receive`."""
        return None

    def receive_now(self) -> bytes | memoryview | None:
        """What `receive` would return, without waiting; ``None`` when there is nothing yet."""
        raise NotImplementedError

    @abstractmethod
    async def receive(self) -> bytes | memoryview:
        """Waits for bytes; none at the peer's end. A view holds until the next call of any wire of the listener.

        Raises `trio.BrokenResourceError` when the connection broke.
        """

    @abstractmethod
    def send_now(self, data: bytes) -> int:
        """Sends what can be sent without waiting and says how much that was. Raises `trio.BrokenResourceError`."""

    @abstractmethod
    async def send_some(self, data: bytearray) -> int:
        """Waits until some of ``data`` was sent and says how much. Raises `trio.BrokenResourceError`."""

    @abstractmethod
    def half_close(self) -> bool:
        """Tells the peer that nothing more comes; false when that cannot be told without closing."""

    @abstractmethod
    def drop(self) -> None:
        """Closes at once, as far as that needs no waiting; no task may be waiting for this wire."""

    @abstractmethod
    def stream(self) -> trio.abc.Stream:
        """The same connection as a stream, for another protocol; from then on only that is used, until `aclose`."""

    @abstractmethod
    async def aclose(self, *, politely: bool) -> None:
        """Closes, saying goodbye first if ``politely`` and the protocol has a way to. Bounded."""


class SocketByteStream(ByteStream):
    """A plain TCP or Unix socket. Reads into a buffer that all connections of the listener share."""

    __slots__ = ("_buffer", "_descriptor", "_socket")

    def __init__(self, connection: socket.socket, buffer: memoryview) -> None:
        self._socket = connection
        self._descriptor = connection.fileno()
        self._buffer = buffer

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def receive_now(self) -> memoryview | None:
        try:
            return self._buffer[: self._socket.recv_into(self._buffer)]
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def receive(self) -> memoryview:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            data = self.receive_now()
            if data is not None:
                return data

    def send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_some(self, data: bytearray) -> int:
        while True:
            await trio.lowlevel.wait_writable(self._descriptor)
            try:
                # The views must be gone before the caller shortens the bytearray.
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

    def drop(self) -> None:
        self._socket.close()

    def stream(self) -> trio.abc.Stream:
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))

    async def aclose(self, *, politely: bool) -> None:
        self._socket.close()


class WrappedByteStream(ByteStream):
    """Any stream. Nothing can be sent without waiting, so everything goes through the flusher."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes | memoryview:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    def send_now(self, data: bytes) -> int:
        return 0

    async def send_some(self, data: bytearray) -> int:
        piece = bytes(data[:RECEIVE_BYTES])
        await self._stream.send_all(piece)
        return len(piece)

    def half_close(self) -> bool:
        return False

    def drop(self) -> None:
        """Closing a stream may wait, so it is left to `aclose`."""

    def stream(self) -> trio.abc.Stream:
        return self._stream

    async def aclose(self, *, politely: bool) -> None:
        if politely:
            with trio.move_on_after(_GOODBYE_TIME):
                await self._stream.aclose()
                return
        await trio.aclose_forcefully(self._stream)
