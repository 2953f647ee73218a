"""The binding inside one process: frames are passed as objects, without copies and without timers.

URLs: ``memory:NAME`` is the same `MemoryTransport` for all callers in this process, as long as one of them holds
it; ``memory:`` is a new one each time.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import outcome
import trio

from mcp_actors.abc import ConnectionHandler, Frame, FrameChannel
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import MEMORY_CONNECTION

__all__ = ["DEFAULT_MAX_BUFFER", "MemoryChannel", "MemoryTransport", "from_url", "memory_channel_pair"]

DEFAULT_MAX_BUFFER = 256
"""Frames that wait in each direction: about as many small messages as a pipe holds, so that a slow reader has the
same effect here as there.
"""

_named: weakref.WeakValueDictionary[str, MemoryTransport] = weakref.WeakValueDictionary()
_serial = itertools.count(1)


class _Direction:
    """One direction between two channels: the frames that wait for its reader, and the senders that wait for room.

    It does what a memory channel of Trio does, and takes less time: each frame that is not delivered past the buffer
    passes it, and a reader takes all there are at once. Past the buffer frames go while its reader waits.

    Args:
        limit: Frames that may wait for the reader.

    Raises:
        ValueError: ``limit`` is negative.
    """

    __slots__ = ("_readers", "_senders", "frames", "has_end", "is_closed", "is_open", "limit", "take")

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError("max_buffer must not be negative")
        self.limit = limit
        self.frames: deque[Frame] = deque()
        # In the order in which they came. A frame moves into the buffer when there is room, and its sender goes on.
        self._senders: dict[trio.lowlevel.Task, Frame] = {}
        self._readers: dict[trio.lowlevel.Task, None] = {}
        self.has_end = False
        """Whether the sending end is closed: the reader gets what waits, and then the end."""
        self.is_closed = False
        """Whether the receiving end is closed."""
        self.is_open = False
        """Whether the reader waits and the buffer is empty, so that `take` may be called."""
        self.take: Callable[[Frame], bool] | None = None
        """Takes a frame in the turn of its sender, and says whether it did."""

    # -- of the sending end ----------------------------------------------------------------------------------------

    def deliver(self, frame: Frame) -> bool:
        """Returns whether the reader took the frame. If not, this frame and all later ones go into the buffer."""
        if not self.is_open or self.take is None:
            return False
        if self.take(frame):
            return True
        self.is_open = False
        return False

    def put(self, frame: Frame) -> None:
        """Puts a frame into the buffer; raises `trio.WouldBlock` if there is no room, and as `require_peer` does."""
        self.is_open = False
        frames = self.frames
        if self.has_end or self.is_closed:
            self.require_peer()
        readers = self._readers
        if len(frames) >= self.limit and not readers:
            raise trio.WouldBlock
        frames.append(frame)
        if readers:
            task = next(iter(readers))
            del readers[task]
            trio.lowlevel.reschedule(task)

    async def put_when_there_is_room(self, frame: Frame) -> None:
        """Waits for room; raises as `require_peer` does. Cancelled, it has put nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self.put(frame)
        except trio.WouldBlock:
            task = trio.lowlevel.current_task()
            self._senders[task] = frame

            def abort(_: object) -> trio.lowlevel.Abort:
                del self._senders[task]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()

    def require_peer(self) -> None:
        """Raises `trio.ClosedResourceError` or `trio.BrokenResourceError` if one of the two ends is closed."""
        if self.has_end:
            raise trio.ClosedResourceError("this channel was closed")
        if self.is_closed:
            raise trio.BrokenResourceError("the other end was closed")

    def end(self) -> None:
        """Closes the sending end. Senders that wait get `trio.ClosedResourceError`."""
        self.has_end = True
        self.is_open = False
        self._end_senders(trio.ClosedResourceError("this channel was closed"))
        self._wake_readers()

    # -- of the receiving end --------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Waits until there is a frame; raises `trio.EndOfChannel` when none will come. Always a checkpoint."""
        waited = False
        while True:
            if self.is_closed:
                raise trio.ClosedResourceError("this channel was closed")
            if waited and (self.frames or self._senders):
                return
            if self.frames or self._senders or self.has_end:
                if waited:
                    raise trio.EndOfChannel
                await trio.lowlevel.checkpoint()
            else:
                await self._wait_for_change()
            waited = True

    async def _wait_for_change(self) -> None:
        task = trio.lowlevel.current_task()
        self._readers[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._readers[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def take_one(self) -> Frame:
        """Takes the first frame, and lets the sender go on that has waited longest. There is a frame."""
        if self._senders:
            task = next(iter(self._senders))
            self.frames.append(self._senders.pop(task))
            trio.lowlevel.reschedule(task)
        return self.frames.popleft()

    def take_all(self) -> list[Frame]:
        """Takes all frames, those of senders that wait for room too."""
        frames = [*self.frames, *self._senders.values()]
        self.frames.clear()
        senders, self._senders = self._senders, {}
        for task in senders:
            trio.lowlevel.reschedule(task)
        return frames

    def close(self) -> None:
        """Closes the receiving end and drops what waits. Senders that wait get `trio.BrokenResourceError`."""
        self.is_closed = True
        self.is_open = False
        self.frames.clear()
        self._end_senders(trio.BrokenResourceError("the other end was closed"))
        self._wake_readers()

    def _end_senders(self, error: Exception) -> None:
        senders, self._senders = self._senders, {}
        for task in senders:
            trio.lowlevel.reschedule(task, outcome.Error(error))

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for task in readers:
            trio.lowlevel.reschedule(task)


class MemoryChannel(FrameChannel):
    """One end of `memory_channel_pair`. ``inward`` has the frames that it receives, ``outward`` those that it sends."""

    def __init__(self, inward: _Direction, outward: _Direction, name: str) -> None:
        self._inward = inward
        self._outward = outward
        self._name = name

    def __repr__(self) -> str:
        inward, outward = self._inward, self._outward
        return (
            f"<MemoryChannel {self._name}: {len(inward.frames)} to receive, "
            f"{len(outward.frames)}/{outward.limit} sent>"
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
        await self._outward.put_when_there_is_room(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. Cancelled, it has not sent those that still waited for room. Raises as `send` does."""
        outward = self._outward
        for frame in frames:
            try:
                outward.put(frame)
            except trio.WouldBlock:
                await outward.put_when_there_is_room(frame)

    def send_nowait(self, frame: Frame) -> None:
        """Sends one frame if there is room.

        Raises:
            trio.WouldBlock: the buffer is full.
            trio.ClosedResourceError: this channel was closed.
            trio.BrokenResourceError: the other end was closed.
        """
        self._outward.put(frame)

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
        await self._inward.wait()
        return self._inward.take_one()

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns it with all that are there already, as `receive` does."""
        inward = self._inward
        inward.is_open = not (inward.frames or inward.is_closed or inward.has_end)
        try:
            await inward.wait()
        finally:
            inward.is_open = False
        return inward.take_all()

    async def aclose(self) -> None:
        """Closes both directions. The other end receives the frames that were sent, then the end; its sends fail."""
        self._outward.end()
        self._inward.close()
        await trio.lowlevel.checkpoint()


def memory_channel_pair(
    max_buffer: int = DEFAULT_MAX_BUFFER, *, name: str = "memory"
) -> tuple[MemoryChannel, MemoryChannel]:
    """Returns two connected channels. In each direction ``max_buffer`` frames may wait for a slow reader.

    Messages have no maximum length here, because they exist already in this process's memory.
    """
    there, back = _Direction(max_buffer), _Direction(max_buffer)
    return MemoryChannel(back, there, name), MemoryChannel(there, back, name)


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
                try:
                    await trio.sleep_forever()
                finally:
                    # Those that are open end now, and the nursery takes no more.
                    self._handler = None
        finally:
            self._connections = None

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
