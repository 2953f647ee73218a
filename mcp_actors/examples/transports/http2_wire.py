"""Does what the sans-I/O library ``h2`` does not: reads, writes, and has bodies wait for windows. Knows no MCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError as Http2Error

from mcp_actors.errors import RemoteProtocolError
from mcp_actors.logging import log

__all__ = ["MAX_MESSAGE", "MAX_STREAMS", "STALL", "Stream", "Wire", "joined"]

MAX_MESSAGE = 4 * 1024 * 1024  # bytes of one message, either way
MAX_PARTIAL = 8 * MAX_MESSAGE  # bytes of all messages that have arrived in part
MAX_STREAMS = 100  # exchanges at once: what h2 offers of itself, and RFC 9113 §6.5.2 recommends
# What h2 keeps of a frame is not ours to bound: up to 16 MiB of one that is too long, before it says so.
HIGH_WATER = 256 * 1024  # bytes that wait for the pipe before bodies wait in their streams
CONTROL_WATER = 1024 * 1024  # more than that waits: the peer asks for acknowledgements and does not read them
PIECE = 64 * 1024  # bytes of a read or a write: what a pipe holds
STALL = 30.0  # seconds in which a peer that takes nothing counts as gone
LINGER = 1.0  # seconds to write what is queued when a connection is closed


@attrs.define(eq=False)
class Stream:
    """Both directions of one HTTP/2 stream."""

    id: int
    received: bytearray = attrs.Factory(bytearray)
    unsent: bytearray = attrs.Factory(bytearray)
    begun: bool = False  # our headers were sent
    complete: bool = False  # nothing is added to ``unsent`` any more
    gone: bool = False  # nothing can be sent: it has ended or was reset
    tag: Any = None  # whatever its owner likes
    room: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)


class Wire:
    """One HTTP/2 connection over two byte streams. `write` is its only task; who wants events calls `read`."""

    def __init__(self, reading: trio.abc.ReceiveStream, writing: trio.abc.SendStream, client: bool) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding="latin-1"))
        self.streams: dict[int, Any] = {}
        self.over = False
        self.room = trio.lowlevel.ParkingLot()
        self._in, self._out = reading, writing
        self._unsent = bytearray()
        self._work = trio.lowlevel.ParkingLot()
        self._closing = False
        self.closed = trio.Event()
        self._writing = trio.CancelScope(shield=True)  # a cancelled owner still has what is queued written
        self.h2.initiate_connection()  # h2's own terms: 64 KiB ahead on a stream, 64 KiB of headers, 100 streams
        self.h2.increment_flow_control_window(PIECE * 3)  # and 256 KiB ahead on all of them
        self.pump()

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written."""
        return len(self._unsent) + sum(len(each.unsent) for each in self.streams.values() if not each.gone)

    async def read(self) -> list[Any]:
        """Waits for events. `trio.EndOfChannel` at the end, `trio.BrokenResourceError` for what is no HTTP/2."""
        while len(self._unsent) > CONTROL_WATER and not self.over:
            await self.room.park()
        try:
            data = b"" if self.over else await self._in.receive_some(PIECE)
        except trio.ClosedResourceError:
            data = b""  # the writer has closed both, because the peer reads no more
        if not data:
            self.end()
            raise trio.EndOfChannel
        try:
            found = self.h2.receive_data(data)
        except Http2Error as error:
            self.end()
            raise trio.BrokenResourceError from RemoteProtocolError(f"no HTTP/2: {error}")
        for event in found:
            match event:
                case events.StreamReset(stream_id=id) if id in self.streams:
                    self.streams[id].gone = True
                    self.streams[id].room.unpark_all()
                case events.ConnectionTerminated():
                    self.end()
        for event in found:
            if isinstance(event, events.DataReceived) and not self.over:
                # At once, since nobody reads more than is wanted: the pipe holds the peer up.
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.pump()
        return found

    def take(self, stream: Stream, data: bytes) -> bool:
        """Adds to what has arrived of a body. One that is too long is broken off."""
        stream.received += data
        together = sum(len(each.received) for each in self.streams.values())
        if len(stream.received) <= MAX_MESSAGE and together <= MAX_PARTIAL:
            return True
        self.reset(stream, ErrorCodes.ENHANCE_YOUR_CALM)
        return False

    def reset(self, stream: Stream, code: ErrorCodes) -> None:
        """Breaks a stream off, if there is something left to break off."""
        if not self.over:
            try:
                self.h2.reset_stream(stream.id, code)
            except Http2Error:
                log.debug("the stream had ended already", stream=stream.id)
        stream.gone = True
        self.pump()

    def pump(self) -> None:
        """Moves bodies towards the pipe, in turns, as far as windows and the pipe go. Legal at any time."""
        moving = [] if self.over else [each for each in self.streams.values() if not each.gone and each.begun]
        while moving and len(self._unsent) < HIGH_WATER:
            moving = [stream for stream in moving if self._move(stream)]
        self._unsent += self.h2.data_to_send()
        self._work.unpark_all()

    def _move(self, stream: Stream) -> bool:
        window = self.h2.local_flow_control_window(stream.id)
        size = max(0, min(len(stream.unsent), window, self.h2.max_outbound_frame_size))
        ends = stream.complete and size == len(stream.unsent)
        if size or ends:
            self.h2.send_data(stream.id, bytes(stream.unsent[:size]), end_stream=ends)
            self._unsent += self.h2.data_to_send()
            del stream.unsent[:size]
            stream.gone = ends
            stream.room.unpark_all()
        return bool(size) and not ends

    def end(self) -> None:
        """Nothing more is read, nor sent on any stream."""
        self._unsent += self.h2.data_to_send()
        self.over = True
        for stream in self.streams.values():
            stream.gone = True
            stream.room.unpark_all()
        self.room.unpark_all()
        self._work.unpark_all()

    async def write(self) -> None:
        """Writes until the connection is closed, then what is queued and GOAWAY, and closes both streams."""
        try:
            with self._writing:
                while self._unsent or not self._closing:
                    await (self._write_piece() if self._unsent else self._work.park())
                if not self.over:
                    self.h2.close_connection()
                    self.end()
                    await self._write_piece()
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("nothing more can be written", error=repr(error))
        finally:
            self.end()
            with trio.CancelScope(shield=True):
                await self._out.aclose()
                await self._in.aclose()
            self.closed.set()

    async def _write_piece(self) -> None:
        piece = bytes(self._unsent[:PIECE])
        del self._unsent[:PIECE]
        with trio.fail_after(STALL):
            await self._out.send_all(piece)
        self.pump()
        self.room.unpark_all()

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Runs the writer for the length of a block. What the block raises stays as it is."""
        raised: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.write)
            try:
                yield
            except BaseException as error:
                raised = error
            # Shielded itself: `write` ends within the linger.
            self.close()
        if raised is not None:
            raise raised

    def close(self) -> None:
        """Gives what is queued a second. Legal any number of times."""
        self._writing.deadline = min(self._writing.deadline, trio.current_time() + LINGER)
        self._closing = True
        self._work.unpark_all()


def joined(headers: Any) -> dict[str, str]:
    """Headers by name. One that comes twice has both values, so that it equals neither."""
    found: dict[str, str] = {}
    for name, text in headers:
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found
