"""The sending side of an open WebSocket: bursts of messages, and between them what is owed to the peer.

Pongs, pings and goodbyes are *owed*: whoever finds out about one notes it down, and a short task pays as soon as
nothing else is being sent. So reading never waits for a write, and of a flood of pings only the last one is a debt.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

import trio
from wsproto.connection import Connection, ConnectionState
from wsproto.events import CloseConnection, Event, Ping, Pong

from mcp_actors.abc import Frame
from mcp_transports.sockets.stream import ConnectedSocket

__all__ = ["FrameWriter", "Spawn"]

# A longer write goes out in such pieces, so that a peer's progress with it is seen.
_PIECE = 64 * 1024

# Streams whose bytes are those of the socket.
BARE = trio.SocketStream, ConnectedSocket

Spawn = Callable[[Callable[[], Awaitable[object]]], object]


class FrameWriter:
    """Writes to one stream. ``spawn`` starts a task that lives as long as the connection at most."""

    __slots__ = (
        "_descriptor",
        "_lock",
        "_paying",
        "_ping",
        "_pong",
        "_rest",
        "_said_goodbye",
        "_spawn",
        "_stream",
        "_wire",
        "goodbye",
        "progress",
        "torn",
    )

    def __init__(self, stream: trio.abc.Stream, wire: Connection, spawn: Spawn) -> None:
        self._stream = stream
        self._wire = wire
        self._spawn = spawn
        # Where a socket lies bare, a small frame can be sent without a task being woken for it.
        self._descriptor = stream.socket.fileno() if isinstance(stream, BARE) else -1
        self._lock = trio.Lock()
        self._rest = b""
        self._pong: bytes | None = None
        self._ping = self._paying = self._said_goodbye = False
        self.goodbye: CloseConnection | None = None
        """The last thing to say, once there is one. Nothing is sent behind it."""
        self.torn = False
        """Whether a write did not end, perhaps inside of a frame; true also while one goes on."""
        self.progress = 0
        """Grows with every piece that the stream took."""

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._lock.locked()

    async def send(self, make: Callable[[Sequence[Frame]], bytes], frames: Sequence[Frame]) -> None:
        """Writes what ``make(frames)`` returns, when nothing else is being written."""
        await self._acquire()
        try:
            data = make(frames)
            if self.torn:
                raise trio.BrokenResourceError("an earlier send did not end, perhaps inside a frame")
            await self._write(data)
        finally:
            self._lock.release()

    def can_send_now(self, size: int) -> bool:
        """Whether a short message may be written at once, past the queue."""
        return (
            self._descriptor >= 0
            and size <= _PIECE
            and not (self.torn or self._rest or self.goodbye is not None or self._lock.locked())
        )

    def send_now(self, data: bytes) -> bool:
        """Writes all with one system call, or nothing, or a part, of which the rest will be written before all else."""
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            return False  # no room, or no connection: the writer finds out which
        if sent < len(data):
            self._rest = data[sent:]
            self._pay_soon()
        return True

    # -- what is owed ----------------------------------------------------------------------------------------------

    def owe_pong(self, payload: bytes) -> None:
        """Of several pings only the last one needs an answer (RFC 6455 §5.5.3)."""
        self._pong = payload
        self._pay_soon()

    def owe_ping(self) -> None:
        """Asks the peer for a sign of life."""
        self._ping = True
        self._pay_soon()

    def owe_goodbye(self, goodbye: CloseConnection) -> None:
        """Says the last word; what is owed beside it is said no more."""
        self.goodbye = goodbye
        self._pay_soon()

    def _pay_soon(self) -> None:
        if not self._paying:
            self._paying = True
            self._spawn(self._pay_in_a_task)

    async def _pay_in_a_task(self) -> None:
        try:
            await self.pay()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # whoever reads or sends next is told
        finally:
            self._paying = False

    async def pay(self) -> None:
        """Sends what is owed, after what is being sent."""
        await self._acquire()
        try:
            while not self.torn and (data := self._debt()):
                await self._write(data)
        finally:
            self._lock.release()

    def _debt(self) -> bytes:
        owed: list[Event] = []
        if self.goodbye is None and self._wire.state is ConnectionState.OPEN:
            if self._pong is not None:
                owed.append(Pong(self._pong))
            if self._ping:
                owed.append(Ping(b""))
        self._pong, self._ping = None, False
        if self.goodbye is not None and not self._said_goodbye:
            self._said_goodbye = True
            owed.append(self.goodbye)
        rest, self._rest = self._rest, b""
        return rest + b"".join([self._wire.send(each) for each in owed])

    # -- bytes -----------------------------------------------------------------------------------------------------

    async def _acquire(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def _write(self, data: bytes) -> None:
        """Writes bytes of whole frames; the caller holds the lock."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        self.torn = True
        if len(data) <= _PIECE:
            await self._stream.send_all(data)
        else:
            with memoryview(data) as view:
                for start in range(0, len(data), _PIECE):
                    await self._stream.send_all(view[start : start + _PIECE])
                    self.progress += 1
        self.torn = False
        self.progress += 1
