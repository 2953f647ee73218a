"""The link: an actor that owns a channel. Its mailbox is the outbox; its task writes bursts.

Reading needs no task of its own: the session, whose mailbox the other direction is, calls `receive` and gets all
the messages that one read brought, decoded.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping

import attrs
import trio

from mcp_actors._actors.limits import Limits
from mcp_actors._wire.codec import decode
from mcp_actors._wire.messages import JsonRpcError, JsonRpcMessage
from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.errors import LocalProtocolError, MalformedMessage

__all__ = ["Link", "LinkStatistics", "Received"]

# One write: large enough that its cost does not matter, small enough that a slow reader's progress is seen.
MAX_BURST_BYTES = 256 * 1024
MAX_BURST_FRAMES = 64
# Messages of a burst that are looked at before the writer has its turn: peers work side by side, not in turns.
MESSAGES_IN_A_TURN = 16

Received = JsonRpcMessage | NoAnswer | MalformedMessage | list[JsonRpcMessage | MalformedMessage]


@attrs.frozen
class LinkStatistics:
    """A snapshot of a link."""

    outbox: int
    """Frames that wait for the writer."""
    outbox_limit: int
    """Frames the outbox takes before senders wait."""
    blocked: int
    """Senders that wait for room."""
    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int


class Link:
    """Owns one channel; `run` is its writer, `receive` its reader's door."""

    def __init__(self, channel: FrameChannel, limits: Limits) -> None:
        self.channel = channel
        self.limits = limits
        self.on_broken: Callable[[BaseException], None] = lambda error: None
        # Gets what a channel in this process delivers past `receive`; set by the session.
        self.on_message: Callable[[Received], None] = lambda message: None
        self._outbox, self._inbox = trio.open_memory_channel[Frame](limits.outbox)
        # What must not wait: cancellations, refusals and other answers that the session gives itself. Bounded by
        # the number of calls in flight plus one batch, because the session waits in `flow` before it reads on.
        self._held: deque[Frame] = deque()
        self._unwritten = 0
        self._progressed = trio.lowlevel.ParkingLot()
        # A channel in memory takes a frame for less than it costs to wake the writer.
        self._direct = type(channel).send_nowait is not FrameChannel.send_nowait
        # After how many messages the session lets others have their turn; in one process nobody works meanwhile.
        self.turn = sys.maxsize if self._direct else MESSAGES_IN_A_TURN
        # Whether no other frame can be expected to leave with this one; set by the session.
        self.alone: Callable[[], bool] = lambda: False
        self.longest = channel.max_message_bytes or sys.maxsize
        # What goes with every frame that brings nothing of its own to be mirrored outside the body.
        self.metadata: Mapping[str, str] | None = None
        self._frames_in = self._frames_out = self._bytes_in = self._bytes_out = 0
        channel.deliver_to(self._take)

    def __repr__(self) -> str:
        return f"<Link {self.channel.peer} outbox={self._unwritten}/{self.limits.outbox}>"

    # -- outgoing ------------------------------------------------------------------------------------------------

    def post(self, frame: Frame) -> None:
        """Queues a frame without waiting, even when the outbox is full: for what must always get through.

        Raises `LocalProtocolError` for a frame that the channel cannot carry.
        """
        self._prepare(frame)
        if not self._unwritten and self._sent_at_once(frame):
            return
        self._unwritten += 1
        try:
            self._outbox.send_nowait(frame)
        except trio.WouldBlock:
            self._held.append(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._unwritten -= 1

    def send_nowait(self, frame: Frame) -> bool:
        """Queues a frame if there is room, and says whether there was; raises like `send`."""
        self._prepare(frame)
        if not self._unwritten and self._sent_at_once(frame):
            return True
        try:
            self._outbox.send_nowait(frame)
        except trio.WouldBlock:
            return False
        except trio.ClosedResourceError:
            raise trio.BrokenResourceError("the connection is closed") from None
        self._unwritten += 1
        return True

    async def send(self, frame: Frame) -> None:
        """Queues a frame, waiting while the outbox is full. Cancelled while it waits, it has queued nothing.

        Raises `trio.BrokenResourceError` when the link is down or the peer has stopped reading for too long, and
        `LocalProtocolError` for a frame that the channel cannot carry.
        """
        if not self.send_nowait(frame):
            await self._send_when_there_is_room(frame)
            self._unwritten += 1

    async def _send_when_there_is_room(self, frame: Frame) -> None:
        while True:
            written = self._frames_out
            with trio.move_on_after(self.limits.stall_timeout):
                try:
                    await self._outbox.send(frame)
                except trio.ClosedResourceError:
                    raise trio.BrokenResourceError("the connection is closed") from None
                return
            # A peer that reads slowly, but reads, is waited for.
            if self._frames_out == written:
                raise self._stalled()

    def settle(self) -> None:
        """A call ended without an answer: nothing to do on a link."""

    def close_stream(self) -> None:
        """A link is one stream for everything: it stays."""

    async def flow(self) -> None:
        """Waits until what was posted beyond the outbox is on its way: how a session's reader feels back-pressure."""
        while self._held:
            written = self._frames_out
            with trio.move_on_after(self.limits.stall_timeout):
                await self._progressed.park()
            if self._held and self._frames_out == written:
                raise self._stalled()

    @property
    def congested(self) -> bool:
        """Whether more was posted than the outbox holds."""
        return bool(self._held)

    def _stalled(self) -> trio.BrokenResourceError:
        error = trio.BrokenResourceError(f"the peer has not read for {self.limits.stall_timeout:g} s")
        self.on_broken(error)
        return error

    def _prepare(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise LocalProtocolError(
                f"a message of {len(frame.data)} bytes is too long: the limit is {self.longest}"
            )
        if self.metadata is not None and frame.metadata is None:
            frame.metadata = self.metadata

    def _sent_at_once(self, frame: Frame) -> bool:
        """Nothing is ahead of this frame. If nothing follows it either, waking the writer would be the dearest part."""
        try:
            if not (self.alone() and self.channel.write_now(frame)):
                if not self._direct:
                    return False
                self.channel.send_nowait(frame)
        except trio.WouldBlock:
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.on_broken(error)
            return True
        self._frames_out += 1
        self._bytes_out += len(frame.data)
        return True

    async def run(self) -> None:
        """The writer: takes everything that is queued and makes one write of it. Ends when the link is closed."""
        try:
            async for frame in self._inbox:
                burst = self._take_all(frame)
                await self.channel.send_many(burst)
                self._written(burst)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.on_broken(error)
        finally:
            self._inbox.close()
            self._unwritten = 0
            self._held.clear()
            self._progressed.unpark_all()

    def _take_all(self, first: Frame) -> list[Frame]:
        burst, size = [first], len(first.data)
        try:
            while size < MAX_BURST_BYTES and len(burst) < MAX_BURST_FRAMES:
                frame = self._inbox.receive_nowait()
                burst.append(frame)
                size += len(frame.data)
        except (trio.WouldBlock, trio.EndOfChannel):
            pass
        # What was held came after what is still in the outbox: a cancellation must not overtake its request.
        if self._held and not self._inbox.statistics().current_buffer_used:
            burst.extend(self._held)
            self._held.clear()
        return burst

    def _written(self, burst: list[Frame]) -> None:
        self._unwritten -= len(burst)
        self._frames_out += len(burst)
        for frame in burst:
            self._bytes_out += len(frame.data)
        if self._progressed:
            self._progressed.unpark_all()

    async def aclose(self) -> None:
        """Writes what is queued, for at most ``close_timeout`` seconds, then closes the channel."""
        with trio.move_on_after(self.limits.close_timeout, shield=True):
            while self._unwritten > 0:
                await self._progressed.park()
        self._outbox.close()
        with trio.move_on_after(self.limits.close_timeout, shield=True):
            await self.channel.aclose()

    # -- incoming ------------------------------------------------------------------------------------------------

    async def receive(self) -> list[Received]:
        """All messages that one read brought; those that are none stand in the list as `MalformedMessage`."""
        return [self._received(frame) for frame in await self.channel.receive_many()]

    def _take(self, frame: Frame) -> bool:
        """What the channel delivers by itself; nothing while the peer is slow, for the reader has to wait in `flow`."""
        if self._held:
            return False
        self.on_message(self._received(frame))
        return True

    def _received(self, frame: Frame) -> Received:
        self._frames_in += 1
        self._bytes_in += len(frame.data)
        try:
            return decode(frame.data) if frame.about is None else _about(frame)
        except MalformedMessage as error:
            return error

    def statistics(self) -> LinkStatistics:
        """Where the link stands."""
        outbox = self._outbox.statistics()
        return LinkStatistics(
            outbox=self._unwritten,
            outbox_limit=self.limits.outbox,
            blocked=outbox.tasks_waiting_send,
            frames_in=self._frames_in,
            frames_out=self._frames_out,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )


def _about(frame: Frame) -> Received:
    """A binding knows which request of ours this is about, even when the message itself does not say."""
    if isinstance(frame, NoAnswer):
        return frame
    message = decode(frame.data)
    if isinstance(message, JsonRpcError) and message.id is None and frame.about is not None:
        return JsonRpcError(frame.about, message.code, message.message, message.data)
    return message
