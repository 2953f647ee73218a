"""A stream on a connected socket of the system, and the channel of lines on top of it, with TLS or without.

`trio.SocketStream` would work too. This one waits first and reads then, which saves a system call and an exception for
each message. It lets a listener's poller wait for all connections, sends what is small without a task switch, and
closes without taking back what it has sent.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import trio

from mcp_actors.abc import Frame, NothingSent
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.supervision.budget import Account
from mcp_transports._poller import Poller, Waiter
from mcp_transports._sockets import (
    enable_keepalive,
    holds_bytes,
    is_unix,
    nothing_is_under_way,
    send_without_delay,
)

__all__ = ["ConnectedSocket", "SocketChannel"]

_RECEIVE_BYTES = 64 * 1024
# How many sends may go through before other tasks run.
_SENDS_PER_CHECKPOINT = 16
# Linux puts so little into one buffer of a Unix socket, so that it is taken as a whole or not at all (its smallest
# sending buffer is a little longer than this). TCP has room for as little whenever nothing else is under way.
_AT_ONCE_BYTES = 2048
# How long a peer that still sends may take to see our end before it is cut off.
_LINGER_TIME = 1.0
# A TCP peer whose machine is gone is noticed after two minutes of silence: 60 s, then 4 questions 15 s apart.
_KEEPALIVE = {"idle": 60, "interval": 15, "probes": 4}

# Seconds that closing may take: TLS sends a closing alert, which a peer that reads nothing does not take, and the end
# of what the peer still sends is waited for.
_CLOSE_TIMEOUT = 2.0


class ConnectedSocket(trio.abc.HalfCloseableStream):
    """Owns ``connected``, a stream socket. One task may send and one may receive, at the same time.

    Args:
        connected: the socket; it is made non-blocking, and on TCP gets TCP_NODELAY and keep-alive probes.
        poller: where `deliver` waits, which costs less than one wait of Trio for each read.
    """

    def __init__(self, connected: socket.socket, poller: Poller | None = None) -> None:
        connected.setblocking(False)
        self.socket = connected
        is_tcp = not is_unix(connected)
        self._takes_whole = not is_tcp and sys.platform == "linux"
        self._closing = False
        self._sending_broke = self._receiving_broke = False
        self._sending_ended = self._receiving_ended = False
        self._more_expected = False
        self.has_received = False
        """Whether the peer has sent anything yet."""
        self._sends = 0
        self._waiter = None if poller is None else Waiter(poller, connected.fileno())
        if is_tcp:
            send_without_delay(connected)
            enable_keepalive(connected, **_KEEPALIVE)

    @classmethod
    def adopt(cls, stream: trio.SocketStream, poller: Poller | None = None) -> ConnectedSocket:
        """Takes the socket out of ``stream``, which must not be used any more."""
        return cls(socket.socket(fileno=stream.socket.detach()), poller)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the peer's end, if it took what was sent to it before.

        Cancelling loses nothing: after the read there is no checkpoint.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: this stream was closed.
            trio.BusyResourceError: another task is receiving.
        """
        connected = self._require_open()
        if self._waiter is not None:
            self._waiter.forget()
        while True:
            await trio.lowlevel.wait_readable(connected)
            data = self._receive_now(max_bytes or _RECEIVE_BYTES)
            if data is not None:
                return data

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Gives ``take`` what arrives, and ``b""`` at the end, until it returns false; raises like `receive_some`.

        With a poller ``take`` is called in the poller's task, and this task sleeps all the while.
        """
        self._require_open()
        if self._waiter is None:
            while take(await self.receive_some()):
                pass
            return

        def readable() -> bool:
            data = self._receive_now(_RECEIVE_BYTES)
            return data is None or take(data)

        await self._waiter.wait(readable)
        self._require_open()

    def _receive_now(self, max_bytes: int) -> bytes | None:
        if self._receiving_broke:
            raise trio.BrokenResourceError("the connection is broken")
        try:
            data = self.socket.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            self._sending_broke = self._receiving_broke = True
            raise trio.BrokenResourceError(f"receiving failed: {error.strerror}") from error
        self.has_received = True
        if not data:
            self._receiving_ended = True
            if self._sending_broke:
                raise trio.BrokenResourceError("the peer closed before it had read all")
        return data

    def send_at_once(self, data: bytes) -> bool:
        """Sends all of ``data`` now or nothing.

        Nothing is sent if it is more than 2 KiB, if TCP has other bytes to deliver, and where the system does not say
        whether it would take all.

        Raises:
            NothingSent: the connection is broken.
        """
        if len(data) > _AT_ONCE_BYTES or self._closing or self._sending_broke or self._sending_ended:
            return False
        connected = self.socket
        try:
            if not self._takes_whole and not nothing_is_under_way(connected):
                return False
            sent = connected.send(data)
        except BlockingIOError:
            return False  # full
        except OSError as error:
            self._sending_broke = True
            raise NothingSent(f"sending failed: {error.strerror}") from error
        if sent == len(data):
            return True
        # Only a system that has run out of memory does this. A torn frame must not be taken for a whole one.
        self._sending_broke = self._receiving_broke = True
        self._shut_down(socket.SHUT_RDWR)
        return False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent.

        Raises:
            trio.BrokenResourceError: the connection is broken; a `~mcp_actors.abc.NothingSent` if nothing was sent.
            trio.ClosedResourceError: this stream, or its sending side, was closed.
        """
        connected = self._require_open()
        self._sends = (self._sends + 1) % _SENDS_PER_CHECKPOINT
        if self._sends:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        if self._sending_ended:
            raise trio.ClosedResourceError("the sending side of this stream was closed")
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                if self._sending_broke:
                    raise _sending_failed("the connection is broken", sent)
                self._require_open()
                try:
                    with view[sent:] as rest:
                        sent += connected.send(rest)
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(connected)
                except OSError as error:
                    self._sending_broke = True
                    raise _sending_failed(f"sending failed: {error.strerror}", sent) from error

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until the socket takes bytes."""
        await trio.lowlevel.wait_writable(self._require_open())

    async def send_eof(self) -> None:
        """Ends what is sent; the peer's answers can still be received. Any number of times."""
        self._require_open()
        await trio.lowlevel.checkpoint()
        if not self._sending_ended:
            self._sending_ended = True
            self._shut_down(socket.SHUT_WR)

    def cut(self) -> None:
        """Breaks the connection: whoever receives from it sees its end. It still has to be closed."""
        self._shut_down(socket.SHUT_RDWR)

    def expect_more(self) -> None:
        """Says that the peer is still sending what will not be read: closing waits for the end of that."""
        self._more_expected = True

    async def aclose(self) -> None:
        """Closes. Legal from any task, any number of times.

        A socket that is closed while bytes of the peer wait in it, or before they come, resets the connection, and the
        peer may lose what was sent to it before (RFC 9112 section 9.6). So if there are some, or `expect_more` was
        called, they are read and dropped until the peer ends too, for at most a second. A second call, or
        cancellation, ends that.
        """
        lingers = not (self._closing or self._receiving_broke or self._receiving_ended) and (
            self._more_expected or holds_bytes(self.socket)
        )
        self._closing = True
        if self._waiter is not None:
            self._waiter.close()
        try:
            if self.socket.fileno() >= 0:
                trio.lowlevel.notify_closing(self.socket)
            if lingers:
                self._shut_down(socket.SHUT_WR)
                with trio.move_on_after(_LINGER_TIME):
                    await self._discard()
        finally:
            if self.socket.fileno() >= 0:
                trio.lowlevel.notify_closing(self.socket)
                self.socket.close()
        if not lingers:
            await trio.lowlevel.checkpoint()

    async def _discard(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self.socket)
                if not self.socket.recv(_RECEIVE_BYTES):
                    return
        except (OSError, trio.ClosedResourceError):
            return  # the peer is gone, or another task closes too

    def _shut_down(self, how: int) -> None:
        try:
            self.socket.shutdown(how)
        except OSError:
            self._sending_broke = True  # the peer was faster

    def _require_open(self) -> socket.socket:
        if self._closing:
            raise trio.ClosedResourceError("this stream was closed")
        return self.socket


def _sending_failed(why: str, sent: int) -> trio.BrokenResourceError:
    return trio.BrokenResourceError(why) if sent else NothingSent(why)


Secured = trio.SSLStream[ConnectedSocket]


class SocketChannel(LineChannel):
    """Frames over ``stream``."""

    def __init__(
        self,
        stream: ConnectedSocket | Secured,
        *,
        max_message_bytes: int,
        peer: str,
        account: Account | None = None,
    ) -> None:
        super().__init__(stream, stream, max_message_bytes=max_message_bytes, peer=peer, account=account)
        self._stream = stream
        self._plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream

    @property
    def needs_pings(self) -> bool:
        """True: a host that is gone, or a process that hangs, sends nothing."""
        return True

    async def receive(self) -> Frame:
        """Waits for one frame; see `LineChannel.receive`."""
        try:
            return await super().receive()
        except trio.BrokenResourceError as error:
            self._note_violation(error)
            raise

    async def receive_many(self) -> list[Frame]:
        """Waits for at least one frame and returns all that one read brought; see `LineChannel.receive_many`."""
        try:
            return await super().receive_many()
        except trio.BrokenResourceError as error:
            self._note_violation(error)
            raise

    def _note_violation(self, error: trio.BrokenResourceError) -> None:
        # A peer that sends too long a message is still sending it, and would not see the last error if we just closed.
        if isinstance(error.__cause__, RemoteProtocolError):
            self._plain.expect_more()

    async def send_eof(self) -> None:
        """Ends the sending direction and goes on receiving.

        Raises:
            trio.ClosedResourceError: this channel was closed, or is one over TLS, which has no half-closed connections.
        """
        if isinstance(self._stream, trio.SSLStream):
            raise trio.ClosedResourceError("TLS has no half-closed connections here")
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Closes within two seconds, whatever the peer does; at once if cancelled."""
        try:
            with trio.move_on_after(_CLOSE_TIMEOUT):
                await super().aclose()
        except trio.ClosedResourceError:
            pass  # another task closes too and was faster
