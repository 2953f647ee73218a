"""The receiving side of a connection: from the wire to its owner, until either has enough."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

import trio

from mcp_transports._poller import Poller
from mcp_transports.http.h1.byte_stream import ByteStream

__all__ = ["Reader"]

_logger = logging.getLogger("mcp_transports.http")


class Owner(Protocol):
    """The connection, as far as its reader is concerned."""

    @property
    def reads_too_far(self) -> bool: ...
    def received(self, data: bytes | memoryview) -> None: ...
    def ended(self) -> None: ...
    def lost(self) -> None: ...
    async def wait_until_wanted(self) -> None: ...


class Reader:
    """Reads a wire for its owner, which hears of the bytes, of their end or of the loss, without a switch of tasks."""

    __slots__ = ("_descriptor", "_interrupted", "_over", "_owner", "_poller", "_wire")

    def __init__(self, wire: ByteStream, poller: Poller, owner: Owner) -> None:
        self._wire = wire
        self._descriptor = wire.descriptor
        self._poller = poller
        self._owner = owner
        self._over = False
        self._interrupted = trio.Event()

    async def run(self) -> None:
        """Returns at the end of the wire, or when it broke. Sleeps while the listener's poller does the work."""
        while not self._over:
            if self._descriptor is None:
                await self._receive()
            else:
                await self._be_called(self._descriptor)
            # Between being interrupted and now everything may have been answered.
            if not self._over and self._owner.reads_too_far:
                await self._owner.wait_until_wanted()

    def stop(self) -> None:
        """Takes no further byte from the wire, from now on. Who waits in `receive` of the wire has to be cancelled."""
        self._over = True
        if self._descriptor is not None:
            self._poller.remove(self._descriptor)
        self._interrupted.set()

    async def _receive(self) -> None:
        while not self._over and not self._owner.reads_too_far:
            try:
                data: bytes | memoryview | None = await self._wire.receive()
            except trio.BrokenResourceError:
                data = None
            self._take(data)

    async def _be_called(self, descriptor: int) -> None:
        self._interrupted = trio.Event()
        self._poller.add(descriptor, partial(self._readable, descriptor))
        try:
            await self._interrupted.wait()
        finally:
            self._poller.remove(descriptor)

    def _readable(self, descriptor: int) -> None:
        try:
            data = self._wire.receive_now()
        except trio.BrokenResourceError:
            self._take(None)
        else:
            if data is None:
                return
            self._take(data)
        if self._over or self._owner.reads_too_far:
            # At once: the task that sleeps has its turn later.
            self._poller.remove(descriptor)
            self._interrupted.set()

    def _take(self, data: bytes | memoryview | None) -> None:
        """``None`` if the wire broke."""
        owner = self._owner
        try:
            if data:
                owner.received(data)
                return
            self._over = True
            if data is None:
                owner.lost()
            else:
                owner.ended()
        except Exception:
            _logger.exception("a connection failed: %r", owner)
            self._over = True
            owner.lost()
