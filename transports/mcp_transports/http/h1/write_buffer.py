"""The bytes that a connection sends, and those that wait for a peer that reads slowly."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from mcp_actors.supervision.containment import TaskKind
from mcp_actors.supervision.task_kinds import HTTP_FLUSH
from mcp_transports.http.h1.byte_stream import ByteStream
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.server_state import HttpClock

__all__ = ["WriteBuffer"]


class ByteSender(Protocol):
    """The methods of a connection that its `WriteBuffer` calls. They must not wait."""

    def sent(self) -> None:
        """Called when the buffer has become empty."""

    def lost(self) -> None:
        """Called when the stream broke."""

    def start(self, kind: TaskKind, fn: Callable[[], Awaitable[None]]) -> None:
        """Starts a task of the connection."""


class WriteBuffer:
    """Sends as much as the kernel takes without waiting; a task that exists only while it is needed sends the rest."""

    __slots__ = (
        "_clock",
        "_closed",
        "_flushing",
        "_limits",
        "_room",
        "_sender",
        "_stream",
        "_unsent",
        "deadline",
        "full",
    )

    def __init__(self, limits: HttpLimits, clock: HttpClock, stream: ByteStream, sender: ByteSender) -> None:
        self._limits = limits
        self._clock = clock
        self._stream = stream
        self._sender = sender
        self._unsent: bytearray | None = None
        self._room: trio.Event | None = None
        self._flushing = self._closed = False
        self.full = False
        """Whether more than ``HttpLimits.write_buffer`` is unsent."""
        self.deadline = math.inf
        """The time at which the peer must have taken some of the unsent bytes."""

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._unsent) if self._unsent else 0

    def would_overflow(self, more: int) -> bool:
        """Whether ``more`` bytes behind others would be more than ``HttpLimits.max_buffered``."""
        return bool(self._unsent) and self.unsent + more > self._limits.max_buffered

    def send(self, data: bytes) -> None:
        """Sends ``data``, or keeps the part that cannot be sent now. Does nothing once closed."""
        if self._closed:
            return
        if self._unsent:
            self._unsent += data
            self._update_full()
            return
        try:
            sent = self._stream.send_now(data)
        except trio.BrokenResourceError:
            self._sender.lost()
            return
        if sent < len(data):
            self._unsent = bytearray(memoryview(data)[sent:])
            self._update_full()
            self.deadline = self._clock.in_seconds(self._limits.write_timeout)
            if not self._flushing:
                self._flushing = True
                self._sender.start(HTTP_FLUSH, self._flush)

    async def drained(self) -> None:
        """Waits until the buffer is not `full`. Always a checkpoint; cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The connection ended first.
        """
        await trio.lowlevel.checkpoint()
        while self.full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
        if self._closed:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def close(self) -> None:
        """Drops the unsent bytes, sends nothing more, and has `drained` raise. Called once."""
        self._closed = True
        # It has this buffer, and must not wait for the garbage collector.
        del self._sender
        self._unsent = None
        self.deadline = math.inf
        self._update_full()

    async def _flush(self) -> None:
        try:
            while self._unsent:
                sent = await self._stream.send_some(self._unsent)
                if self._closed:
                    return
                del self._unsent[:sent]
                self.deadline = self._clock.in_seconds(self._limits.write_timeout)
                self._update_full()
        except trio.BrokenResourceError:
            if not self._closed:
                self._sender.lost()
            return
        finally:
            self._flushing = False
        if self._closed:
            return
        self._unsent = None
        self.deadline = math.inf
        self._sender.sent()

    def _update_full(self) -> None:
        self.full = self.unsent > self._limits.write_buffer
        if not self.full and self._room is not None:
            self._room.set()
            self._room = None
