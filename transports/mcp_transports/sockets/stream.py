"""A stream on a connected socket of the system.

`trio.SocketStream` would do. This one waits first and reads then, which saves a system call and an exception for each
message, sends small things on Unix sockets without a task switch, and closes without taking back what it has sent.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

import trio

__all__ = ["ConnectedSocket"]

_RECEIVE_BYTES = 64 * 1024
# How many sends may go through without another task having had its turn.
_SENDS_PER_TURN = 16
# Linux puts so little into one buffer of a Unix socket, so that it is taken as a whole or not at all (its smallest
# sending buffer is a little longer than this). TCP promises nothing of the kind.
_AT_ONCE_BYTES = 2048
# How long a peer that still sends may take to see our end before it is cut off.
_LINGER_TIME = 1.0
# A TCP peer whose machine is gone is noticed after two minutes of silence: 60 s, then 4 questions 15 s apart.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class ConnectedSocket(trio.abc.HalfCloseableStream):
    """Owns ``connected``, a stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._is_unix = connected.family == socket.AF_UNIX
        self._broken = False
        self._sending_ended = False
        self._receiving_ended = False
        self._turn = 0
        if not self._is_unix:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)

    @classmethod
    def adopt(cls, stream: trio.SocketStream) -> ConnectedSocket:
        """Takes the socket out of ``stream``, which must not be used any more."""
        return cls(socket.socket(fileno=stream.socket.detach()))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the peer's end. Cancelling loses nothing: after the read is no checkpoint."""
        connected = self._require_open()
        while True:
            await trio.lowlevel.wait_readable(connected)
            try:
                data = connected.recv(max_bytes or _RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                self._broken = True
                raise trio.BrokenResourceError(f"receiving failed: {error.strerror}") from error
            if not data:
                self._receiving_ended = True
            return data

    def send_at_once(self, data: bytes) -> bool:
        """Sends all of ``data`` now or nothing: little on a Unix socket, never on TCP."""
        if not self._is_unix or self._broken or self._sending_ended or len(data) > _AT_ONCE_BYTES:
            return False
        try:
            sent = self.socket.send(data)
        except OSError:
            return False  # full, broken or closed: `send_all` waits, or tells why
        # No kernel does this; one that did would have torn the frame.
        self._broken = sent != len(data)
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent."""
        connected = self._require_open()
        self._turn = (self._turn + 1) % _SENDS_PER_TURN
        if self._turn:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        if self._sending_ended:
            raise trio.ClosedResourceError("the sending side of this stream was closed")
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                if self._broken:
                    raise trio.BrokenResourceError("the connection is broken")
                self._require_open()
                try:
                    with view[sent:] as rest:
                        sent += connected.send(rest)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(connected)
                except OSError as error:
                    self._broken = True
                    raise trio.BrokenResourceError(f"sending failed: {error.strerror}") from error

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the socket takes bytes."""
        await trio.lowlevel.wait_writable(self._require_open())

    async def send_eof(self) -> None:
        """Ends what is sent; the peer's answers can still be received. Any number of times."""
        connected = self._require_open()
        await trio.lowlevel.checkpoint()
        self._shut_down(connected)

    async def aclose(self) -> None:
        """Closes. Legal from any task, any number of times.

        A socket that is closed while bytes of the peer wait in it tells the peer to forget what we have sent before.
        So if there are some, and nobody cancels, they are thrown away until the peer ends too, for at most a second.
        """
        connected = self.socket
        if connected.fileno() < 0:
            await trio.lowlevel.checkpoint()
            return
        try:
            trio.lowlevel.notify_closing(connected)
            if not (self._broken or self._receiving_ended) and _holds_bytes(connected):
                self._shut_down(connected)
                with trio.move_on_after(_LINGER_TIME):
                    await self._discard(connected)
            else:
                connected.close()
                await trio.lowlevel.checkpoint()
        finally:
            if connected.fileno() >= 0:
                trio.lowlevel.notify_closing(connected)
                connected.close()

    async def _discard(self, connected: socket.socket) -> None:
        try:
            while connected.fileno() >= 0:
                await trio.lowlevel.wait_readable(connected)
                if not connected.recv(_RECEIVE_BYTES):
                    return
        except BlockingIOError:
            return
        except (OSError, trio.ClosedResourceError, trio.BusyResourceError):
            return  # the peer is gone, or another task closes too

    def _shut_down(self, connected: socket.socket) -> None:
        self._sending_ended = True
        try:
            connected.shutdown(socket.SHUT_WR)
        except OSError:
            self._broken = True  # the peer was faster

    def _require_open(self) -> socket.socket:
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError("this stream was closed")
        return self.socket


def _holds_bytes(connected: socket.socket) -> bool:
    """Whether the kernel holds bytes of the peer that nobody has read."""
    held = fcntl.ioctl(connected, termios.FIONREAD, b"\0\0\0\0")
    return bool(struct.unpack("i", held)[0])
