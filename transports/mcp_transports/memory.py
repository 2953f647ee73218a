"""The binding inside one process: frames are passed as objects, without copies and without timers.

URLs: ``memory:NAME`` is the same `MemoryTransport` for all callers in this process, as long as one of them holds
it; ``memory:`` is a new one each time.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import MEMORY_CONNECTION

__all__ = ["DEFAULT_MAX_BUFFER", "MemoryChannel", "MemoryTransport", "from_url", "memory_channel_pair"]

# Frames that wait in each direction: about as many small messages as a pipe holds, so that a slow reader has the same
# effect here as there.
DEFAULT_MAX_BUFFER = 256

_named: weakref.WeakValueDictionary[str, MemoryTransport] = weakref.WeakValueDictionary()
_serial = itertools.count(1)


class _DirectDelivery:
    """Delivers frames of one direction past the buffer, while its reader waits and the buffer is empty."""

    __slots__ = ("is_open", "take")

    def __init__(self) -> None:
        self.is_open = False
        self.take: Callable[[Frame], bool] | None = None

    def deliver(self, frame: Frame) -> bool:
        """Returns whether the reader took the frame. If not, this frame and all later ones go into the buffer."""
        if not self.is_open or self.take is None:
            return False
        if self.take(frame):
            return True
        self.is_open = False
        return False


class MemoryChannel(FrameChannel):
    """One end of `memory_channel_pair`. ``inward`` delivers the frames that it receives, ``outward`` those it sends."""

    def __init__(
        self,
        send: trio.MemorySendChannel[Frame],
        receive: trio.MemoryReceiveChannel[Frame],
        inward: _DirectDelivery,
        outward: _DirectDelivery,
        name: str,
    ) -> None:
        self._send = send
        self._receive = receive
        self._inward = inward
        self._outward = outward
        self._name = name

    def __repr__(self) -> str:
        inward, outward = self._receive.statistics(), self._send.statistics()
        return (
            f"<MemoryChannel {self._name}: {inward.current_buffer_used} to receive, "
            f"{outward.current_buffer_used}/{outward.max_buffer_size} sent>"
        )

    @property
    def peer(self) -> str:
        return self._name

    async def send(self, value: Frame) -> None:
        """Sends one frame, and waits while the buffer is full. Cancelled while it waits, it has sent nothing.

        Raises:
            trio.ClosedResourceError: this channel was closed.
            trio.BrokenResourceError: the other end was closed.
        """
        self._outward.is_open = False
        await self._send.send(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. Cancelled, it has not sent those that still waited for room. Raises as `send` does."""
        hand_over = self.send_nowait
        for frame in frames:
            try:
                hand_over(frame)
            except trio.WouldBlock:
                await self._send.send(frame)

    def send_nowait(self, frame: Frame) -> None:
        """Sends one frame if there is room.

        Raises:
            trio.WouldBlock: the buffer is full.
            trio.ClosedResourceError: this channel was closed.
            trio.BrokenResourceError: the other end was closed.
        """
        self._outward.is_open = False
        self._send.send_nowait(frame)

    def write_now(self, frame: Frame) -> bool:
        """Has the peer's reader take one frame within this call, and returns whether it did."""
        return self._outward.deliver(frame)

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Has the peer's `write_now` call ``take`` while a task waits in `receive_many`, which stays asleep then."""
        self._inward.take = take

    async def wait_until_read(self) -> bool:
        """Returns true: frames are handed over one by one, so that none is lost behind another."""
        return True

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing.

        Raises:
            trio.EndOfChannel: the other end was closed, and no frame is left.
            trio.ClosedResourceError: this channel was closed.
        """
        return await self._receive.receive()

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns it with all that are there already, as `receive` does."""
        self._inward.is_open = not self._receive.statistics().current_buffer_used
        try:
            frames = [await self._receive.receive()]
        finally:
            self._inward.is_open = False
        take = self._receive.receive_nowait
        try:
            while True:
                frames.append(take())
        except (trio.WouldBlock, trio.EndOfChannel):
            return frames

    async def aclose(self) -> None:
        """Closes both directions. The other end receives the frames that were sent, then the end; its sends fail."""
        self._inward.is_open = self._outward.is_open = False
        self._send.close()
        self._receive.close()
        await trio.lowlevel.checkpoint()


def memory_channel_pair(
    max_buffer: int = DEFAULT_MAX_BUFFER, *, name: str = "memory"
) -> tuple[MemoryChannel, MemoryChannel]:
    """Returns two connected channels. In each direction ``max_buffer`` frames may wait for a slow reader.

    Messages have no maximum length here, because they exist already in this process's memory.
    """
    there_send, there_receive = trio.open_memory_channel[Frame](max_buffer)
    back_send, back_receive = trio.open_memory_channel[Frame](max_buffer)
    there, back = _DirectDelivery(), _DirectDelivery()
    return (
        MemoryChannel(there_send, back_receive, back, there, name),
        MemoryChannel(back_send, there_receive, there, back, name),
    )


class MemoryTransport:
    """A server's address inside one process, both a `ServerTransport` and a `ClientTransport`.

    One task serves it, any number connect to it.

    Args:
        name: the part of its URL behind ``memory:``.
        max_buffer: how many frames may wait in each direction of each connection; 256 by default.
    """

    def __init__(self, name: str = "", *, max_buffer: int = DEFAULT_MAX_BUFFER) -> None:
        self._url = f"memory:{name}"
        self._max_buffer = max_buffer
        self._handler: ConnectionHandler | None = None
        self._connections: trio.Nursery | None = None

    def __repr__(self) -> str:
        if self._connections is None:
            return f"<MemoryTransport {self._url}: not served>"
        return f"<MemoryTransport {self._url}: {len(self._connections.child_tasks)} connections>"

    async def serve(
        self,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs ``handler(channel)`` in a task for every connection, until cancelled; reports its URL when ready.

        An error of a handler ends its connection alone.

        Raises:
            LocalProtocolError: another task serves this object already.
        """
        if self._connections is not None:
            raise LocalProtocolError(f"{self._url} is served already")
        try:
            async with trio.open_nursery() as self._connections:
                self._handler = handler
                task_status.started(self._url)
                await trio.sleep_forever()
        finally:
            self._connections = self._handler = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens one connection and yields its channel; leaving the block closes it.

        Raises:
            ConnectFailed: no task serves this object.
        """
        if self._connections is None or self._handler is None:
            raise ConnectFailed(f"nobody serves {self._url} in this process")
        name = f"{self._url}#{next(_serial)}"
        ours, theirs = memory_channel_pair(self._max_buffer, name=name)
        start(self._connections, MEMORY_CONNECTION, _serve, self._handler, theirs, about=name)
        async with ours:
            yield ours


async def _serve(handler: ConnectionHandler, channel: FrameChannel) -> None:
    async with channel:
        await handler(channel)


def from_url(url: str, **options: Any) -> MemoryTransport:
    """Returns the transport that ``memory:NAME`` names, or a new one for ``memory:``.

    A named one lives as long as it is referred to or served. ``options`` are those of `MemoryTransport`; for a name
    they count in the call that makes the transport, and in no later one.
    """
    name = url.partition(":")[2]
    if not name:
        return MemoryTransport(**options)
    found = _named.get(name)
    if found is None:
        found = _named[name] = MemoryTransport(name, **options)
    return found
