"""The sending side of a connection: what goes out at once, and what waits for a peer that reads slowly."""

from __future__ import annotations

import math
from typing import Protocol

import trio

from mcp_transports.http.h1.byte_stream import ByteStream
from mcp_transports.http.h1.server_state import ServerState

__all__ = ["Outbox"]


class Owner(Protocol):
    """The connection, as far as its outbox is concerned."""

    def settle(self) -> None: ...
    def lost(self) -> None: ...


class Outbox:
    """Sends without waiting what the kernel takes; a flusher task, there only while needed, sends the rest.

    Its owner hears of two things: `Owner.settle` when there is room again, `Owner.lost` when nothing can be sent.
    """

    __slots__ = (
        "_closed",
        "_flushing",
        "_hub",
        "_owner",
        "_room",
        "_unsent",
        "_wire",
        "deadline",
        "full",
        "nursery",
    )

    nursery: trio.Nursery

    def __init__(self, hub: ServerState, wire: ByteStream, owner: Owner) -> None:
        self._hub = hub
        self._wire = wire
        self._owner = owner
        self._unsent: bytearray | None = None
        self._room: trio.Event | None = None
        self._flushing = self._closed = False
        self.full = False
        """Whether more than ``HttpLimits.write_buffer`` is unsent."""
        self.deadline = math.inf

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._unsent) if self._unsent else 0

    def overflows(self, more: int) -> bool:
        """Whether ``more`` bytes behind others would be more than ``HttpLimits.max_buffered``."""
        return bool(self._unsent) and self.unsent + more > self._hub.limits.max_buffered

    def send(self, data: bytes) -> None:
        """Sends or buffers."""
        if self._closed:
            return
        if self._unsent:
            self._unsent += data
            self._measure()
            return
        try:
            sent = self._wire.send_now(data)
        except trio.BrokenResourceError:
            self._owner.lost()
            return
        if sent < len(data):
            self._unsent = bytearray(memoryview(data)[sent:])
            self._measure()
            self.deadline = self._hub.in_seconds(self._hub.limits.write_timeout)
            if not self._flushing:
                self._flushing = True
                self.nursery.start_soon(self._flush)

    async def drained(self) -> None:
        """Waits until it is not `full`; `trio.BrokenResourceError` when the connection ends first."""
        await trio.lowlevel.checkpoint()
        while self.full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
        if self._closed:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def close(self) -> None:
        """Drops what is unsent and sends nothing more; whoever waits for room hears of it."""
        self._closed = True
        self._unsent = None
        self.deadline = math.inf
        self._measure()

    async def _flush(self) -> None:
        hub = self._hub
        try:
            while self._unsent:
                sent = await self._wire.send_some(self._unsent)
                if self._closed:
                    return
                del self._unsent[:sent]
                self.deadline = hub.in_seconds(hub.limits.write_timeout)
                self._measure()
        except trio.BrokenResourceError:
            self._owner.lost()
            return
        finally:
            self._flushing = False
        self._unsent = None
        self.deadline = math.inf
        self._owner.settle()

    def _measure(self) -> None:
        self.full = self.unsent > self._hub.limits.write_buffer
        if not self.full and self._room is not None:
            self._room.set()
            self._room = None
