"""The binding inside one process: frames are handed over as objects, nothing is copied, nothing waits for a clock.

URLs: ``memory:NAME`` is one meeting point for everybody in this process who asks for that name while somebody holds
it; ``memory:`` is a new meeting point of its own each time.
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

__all__ = ["DEFAULT_MAX_BUFFER", "MemoryChannel", "MemoryTransport", "from_url", "memory_channel_pair"]

# Frames on their way in each direction. About what a pipe holds of small messages, so that a program behaves under
# a slow reader here as it will there.
DEFAULT_MAX_BUFFER = 256

_meeting_points: weakref.WeakValueDictionary[str, MemoryTransport] = weakref.WeakValueDictionary()
_serial = itertools.count(1)


class _Rendezvous:
    """Past the buffer of one direction: open while its reader waits and nothing is ahead in the buffer."""

    __slots__ = ("is_open", "take")

    def __init__(self) -> None:
        self.is_open = False
        self.take: Callable[[Frame], bool] | None = None

    def passed(self, frame: Frame) -> bool:
        """Whether the reader took the frame. What it did not take goes into the buffer, and all after it."""
        if not self.is_open or self.take is None:
            return False
        if self.take(frame):
            return True
        self.is_open = False
        return False


class MemoryChannel(FrameChannel):
    """One end of `memory_channel_pair`. ``door`` is that of the frames that come in, ``far_door`` the peer's."""

    def __init__(
        self,
        send: trio.MemorySendChannel[Frame],
        receive: trio.MemoryReceiveChannel[Frame],
        door: _Rendezvous,
        far_door: _Rendezvous,
        name: str,
    ) -> None:
        self._send = send
        self._receive = receive
        self._door = door
        self._far_door = far_door
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
        """Sends one frame; while the buffer is full, waits. Cancelled while waiting, the frame is not sent."""
        self._far_door.is_open = False
        await self._send.send(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. Cancelled, those that still waited for room are not sent, none is torn."""
        hand_over = self.send_nowait
        for frame in frames:
            try:
                hand_over(frame)
            except trio.WouldBlock:
                await self._send.send(frame)

    def send_nowait(self, frame: Frame) -> None:
        """Hands one frame over if there is room, else raises `trio.WouldBlock`."""
        self._far_door.is_open = False
        self._send.send_nowait(frame)

    def write_now(self, frame: Frame) -> bool:
        """Has the peer's reader take one frame in this very turn; says whether it did."""
        return self._far_door.passed(frame)

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """The peer's sends call ``take`` while we wait in `receive_many`: what wakes nobody costs next to nothing."""
        self._door.take = take

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing."""
        return await self._receive.receive()

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns it with all that are there already. Cancelling loses nothing."""
        self._door.is_open = not self._receive.statistics().current_buffer_used
        try:
            frames = [await self._receive.receive()]
        finally:
            self._door.is_open = False
        take = self._receive.receive_nowait
        try:
            while True:
                frames.append(take())
        except (trio.WouldBlock, trio.EndOfChannel):
            return frames

    async def aclose(self) -> None:
        """Closes both directions: the other end receives what was sent, then the end; its sends break."""
        self._door.is_open = self._far_door.is_open = False
        self._send.close()
        self._receive.close()
        await trio.lowlevel.checkpoint()


def memory_channel_pair(
    max_buffer: int = DEFAULT_MAX_BUFFER, *, name: str = "memory"
) -> tuple[MemoryChannel, MemoryChannel]:
    """Two channels that are each other's peer; ``max_buffer`` frames each way wait for a slow reader.

    Messages are not measured here: they exist already in this process's memory.
    """
    there_send, there_receive = trio.open_memory_channel[Frame](max_buffer)
    back_send, back_receive = trio.open_memory_channel[Frame](max_buffer)
    there, back = _Rendezvous(), _Rendezvous()
    return (
        MemoryChannel(there_send, back_receive, back, there, name),
        MemoryChannel(back_send, there_receive, there, back, name),
    )


class MemoryTransport:
    """A meeting point inside one process, both a `ServerTransport` and a `ClientTransport`.

    One task serves it, any number connect to it. ``max_buffer`` is the number of frames that may wait in each
    direction of each connection.
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

        Raises `LocalProtocolError` if another task serves this object already. What a handler raises ends it all,
        as with `trio.serve_listeners`.
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
        """Opens one connection; raises `ConnectFailed` if nobody serves this object."""
        if self._connections is None or self._handler is None:
            raise ConnectFailed(f"nobody serves {self._url} in this process")
        name = f"{self._url}#{next(_serial)}"
        ours, theirs = memory_channel_pair(self._max_buffer, name=name)
        self._connections.start_soon(_handle, self._handler, theirs, name=name)
        async with ours:
            yield ours


async def _handle(handler: ConnectionHandler, channel: FrameChannel) -> None:
    async with channel:
        await handler(channel)


def from_url(url: str, **options: Any) -> MemoryTransport:
    """The meeting point that ``memory:NAME`` names, or a new one for ``memory:``.

    A named one lives as long as somebody holds it or serves it; options are those of `MemoryTransport` and count
    only for the one who comes first.
    """
    name = url.partition(":")[2]
    if not name:
        return MemoryTransport(**options)
    found = _meeting_points.get(name)
    if found is None:
        found = _meeting_points[name] = MemoryTransport(name, **options)
    return found
