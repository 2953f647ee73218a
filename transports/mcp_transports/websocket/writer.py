"""The sending side of an open WebSocket: bursts of messages, and between them the control frames that are queued.

Pongs, pings and Close frames are queued by the protocol; a short task writes them as soon as nothing else is being
written. So reading never waits for a write.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

import trio

from mcp_actors.abc import Frame
from mcp_actors.supervision import start
from mcp_actors.task_kinds import WEBSOCKET_CONTROL
from mcp_transports.sockets.stream import ConnectedSocket
from mcp_transports.websocket.protocol import WebSocketProtocol

__all__ = ["FrameWriter"]

# Bytes. A longer write goes out in such pieces, so that a peer's progress with it is seen.
_PIECE = 64 * 1024

# Streams whose bytes are those of the socket.
_BARE = trio.SocketStream, ConnectedSocket


def _no_crash(error: BaseException) -> None:
    """Takes an error of a task that has outlived its channel."""


class FrameWriter:
    """Writes to one stream what ``protocol`` wants sent, in tasks of ``nursery`` where no task waits for it.

    ``on_crash(error)`` is called when such a task fails in a way that is not the peer's doing.
    """

    __slots__ = (
        "_descriptor",
        "_flushing",
        "_nursery",
        "_on_crash",
        "_protocol",
        "_stream",
        "_unwritten",
        "_waiting",
        "_writing",
        "progress",
        "torn",
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        protocol: WebSocketProtocol,
        nursery: trio.Nursery,
        on_crash: Callable[[BaseException], object],
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._nursery = nursery
        self._on_crash = on_crash
        # Where a socket lies bare, a small frame can be sent without a task being woken for it.
        self._descriptor = stream.socket.fileno() if isinstance(stream, _BARE) else -1
        # A lock, which costs next to nothing until a second task wants it.
        self._writing = False
        self._waiting: trio.lowlevel.ParkingLot | None = None
        # What a system call left of a frame.
        self._unwritten = b""
        self._flushing = False
        self.torn = False
        """Whether a write did not end, perhaps inside of a frame; true also while one goes on."""
        self.progress = 0
        """Grows with every piece that the stream took."""

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._writing

    async def send(self, encode: Callable[[Sequence[Frame]], bytes], frames: Sequence[Frame]) -> None:
        """Writes what ``encode(frames)`` returns, once nothing else is being written.

        Cancelled while it waits, nothing was written; cancelled later, the stream may be torn inside a frame.

        Raises:
            trio.BrokenResourceError: the stream is broken or torn.
            trio.ClosedResourceError: the stream was closed.
        """
        await self._acquire()
        try:
            data = encode(frames)
            if self.torn:
                raise trio.BrokenResourceError("an earlier send did not end, perhaps inside a frame")
            await self._write(data)
        finally:
            self._release()

    def can_write_now(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be written at once, past the queue."""
        return (
            self._descriptor >= 0 and size <= _PIECE and not (self.torn or self._unwritten or self._writing)
        )

    def write_now(self, data: bytes) -> bool:
        """Writes all with one system call, or nothing, or a part, whose remainder is then written before all else."""
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            return False  # no room, or no connection: the writer finds out which
        if sent < len(data):
            self._unwritten = data[sent:]
            self.flush_soon()
        return True

    def flush_soon(self) -> None:
        """Has a task write the control frames that are queued."""
        if not self._flushing:
            self._flushing = True
            self.start(self._flush_in_a_task)

    def start(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in a task of the connection."""
        start(self._nursery, WEBSOCKET_CONTROL, fn, on_crash=self._on_crash)

    async def _flush_in_a_task(self) -> None:
        try:
            await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the next receive or send raises it
        finally:
            self._flushing = False

    async def flush(self) -> None:
        """Writes the control frames that are queued, behind what is being written; raises as `send` does.

        Writes nothing to a stream that is torn.
        """
        await self._acquire()
        try:
            while not self.torn and (self._unwritten or self._protocol.has_control_to_send):
                await self._write(b"")
        finally:
            self._release()

    def close_soon(self) -> None:
        """Has a task close the stream at once, whatever is being written."""
        start(self._nursery, WEBSOCKET_CONTROL, trio.aclose_forcefully, self._stream)

    def release(self) -> None:
        """Forgets the channel, which has this writer, once the stream is closed."""
        self._on_crash = _no_crash

    async def _acquire(self) -> None:
        if self._writing:
            self._waiting = self._waiting or trio.lowlevel.ParkingLot()
            await self._waiting.park()
        self._writing = True

    def _release(self) -> None:
        """Lets the task that has waited longest write, if there is one."""
        if self._waiting:
            self._waiting.unpark()
        else:
            self._writing = False

    async def _write(self, data: bytes) -> None:
        """Writes what a system call left, control frames, then whole frames; the caller holds the lock."""
        if self._protocol.has_control_to_send:
            data = self._protocol.control_to_send() + data
        if self._unwritten:
            data, self._unwritten = self._unwritten + data, b""
        self.torn = True
        if len(data) <= _PIECE:
            await self._stream.send_all(data)
        else:
            with memoryview(data) as view:
                for begin in range(0, len(data), _PIECE):
                    await self._stream.send_all(view[begin : begin + _PIECE])
                    self.progress += 1
        self.torn = False
        self.progress += 1
