"""The link: an actor that owns a channel. Its mailbox is the outbox; its task writes bursts, once there are any.

Reading needs no task of its own: the session reads the channel, and `take_all` decodes what one read brought.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import outcome
import trio

from mcp_actors._actors.dispatcher import Dispatcher, LinkStatistics, Received
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import WaitingTasks
from mcp_actors._wire.codec import JsonRpcError, JsonRpcNotification, JsonRpcRequest, decode
from mcp_actors.abc import (
    Frame,
    FrameChannel,
    HttpRequest,
    NewAccess,
    NoAnswer,
    NothingSent,
    NotificationsMissed,
    Waiting,
)
from mcp_actors.errors import LocalProtocolError, MalformedMessage

__all__ = ["Link"]


# Characters of the beginning of a malformed message that are shown to people.
BEGINNING = 200
# One write: large enough that its cost does not matter, small enough that a slow reader's progress is seen.
MAX_BURST_BYTES = 256 * 1024
MAX_BURST_FRAMES = 64
# Messages of a burst that are looked at before the writer has its turn: peers work side by side, not in turns.
MESSAGES_IN_A_TURN = 32
# Seconds without a frame after which one is taken to come alone, whatever is running: a burst has one in microseconds.
QUIET = 0.001


def _no_crash(error: BaseException) -> None:
    """Takes an error after the link was closed."""


def _take_nothing(frame: Frame) -> bool:
    return False


def _no_writer() -> NoReturn:
    """Refuses to write, before the session runs and after its link was closed."""
    raise trio.ClosedResourceError("the connection is closed")


class FrameQueue:
    """The frames that wait for the writer, which is the one task that takes them, and the senders that wait for room.

    It does what a memory channel does for one receiver. Since each frame that is not written at once passes it, it
    takes less time and memory than one: a frame is appended, and the writer takes all there are.

    Args:
        limit: Frames that may wait for the writer.
    """

    __slots__ = ("_limit", "_senders", "_writer", "frames", "is_closed", "is_left")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.frames: deque[Frame] = deque()
        # In the order in which they came. A frame moves into the queue when there is room, and its sender goes on.
        self._senders: dict[trio.lowlevel.Task, Frame] = {}
        self._writer: trio.lowlevel.Task | None = None
        self.is_closed = False
        """Whether nothing more comes: the writer ends when it has written what waits."""
        self.is_left = False
        """Whether the writer has ended."""

    def __repr__(self) -> str:
        return f"<FrameQueue {len(self.frames)}/{self._limit} blocked={self.blocked}>"

    @property
    def blocked(self) -> int:
        """Senders that wait for room."""
        return len(self._senders)

    def put(self, frame: Frame) -> bool:
        """Queues a frame if there is room, and says whether there was.

        Raises:
            trio.ClosedResourceError: It was closed.
            trio.BrokenResourceError: The writer has ended.
        """
        frames = self.frames
        if len(frames) >= self._limit:
            return False
        if self.is_left or self.is_closed:
            self._refuse()
        frames.append(frame)
        if self._writer is not None:
            writer, self._writer = self._writer, None
            trio.lowlevel.reschedule(writer)
        return True

    def _refuse(self) -> NoReturn:
        if self.is_closed:
            raise trio.ClosedResourceError("the connection is closed")
        raise trio.BrokenResourceError("the connection is gone")

    async def put_when_there_is_room(self, frame: Frame) -> None:
        """Waits for room; raises as `put` does. Cancelled, it has queued nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_left or self.is_closed:
            self._refuse()
        if not self._senders and self.put(frame):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        self._senders[task] = frame

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._senders[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def take(self) -> Frame:
        """Takes the first frame, and lets the sender go on that has waited longest. There is a frame."""
        frame = self.frames.popleft()
        if self._senders:
            task = next(iter(self._senders))
            self.frames.append(self._senders.pop(task))
            trio.lowlevel.reschedule(task)
        return frame

    async def wait_for_frames(self) -> bool:
        """Waits until there is a frame; returns false when it was closed and there is none."""
        if not self.frames and not self.is_closed:
            self._writer = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._writer = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        else:
            await trio.lowlevel.checkpoint()
        return bool(self.frames)

    def withdraw(self) -> list[Frame]:
        """Takes out the requests that wait, and returns them; senders move up. None of them is written then."""
        taken = [each for each in self.frames if each.request is not None]
        if taken:
            self.frames = deque(each for each in self.frames if each.request is None)
            while self._senders and len(self.frames) < self._limit:
                task = next(iter(self._senders))
                self.frames.append(self._senders.pop(task))
                trio.lowlevel.reschedule(task)
        return taken

    def close(self) -> None:
        """Lets nothing more in. Senders that wait for room get `trio.ClosedResourceError`."""
        self.is_closed = True
        self._end_senders(trio.ClosedResourceError("the connection is closed"))
        if self._writer is not None:
            writer, self._writer = self._writer, None
            trio.lowlevel.reschedule(writer)

    def leave(self) -> None:
        """The writer has ended: what waits is dropped, and senders get `trio.BrokenResourceError`."""
        self.is_left = True
        self.frames.clear()
        self._end_senders(trio.BrokenResourceError("the connection is gone"))

    def _end_senders(self, error: Exception) -> None:
        senders, self._senders = self._senders, {}
        for task in senders:
            trio.lowlevel.reschedule(task, outcome.Error(error))


class Link:
    """Owns one channel; `run` is its writer, and `take_all` is called by its reader."""

    def __init__(
        self, channel: FrameChannel, limits: Limits, on_broken: Callable[[BaseException], None]
    ) -> None:
        self.channel = channel
        self.limits = limits
        self._on_broken = on_broken
        self._served: Dispatcher | None = None
        self._on_crash: Callable[[Exception], None] = _no_crash
        # Opened, with the task that empties it, when a frame cannot be written at once for the first time: of many
        # sessions most never come to that, and both take more memory than all the rest of the link.
        self._outbox: FrameQueue | None = None
        self._start_writer: Callable[[], object] = _no_writer
        # What must not wait: cancellations, refusals and other answers that the session gives itself. Bounded by
        # the number of calls in flight plus one batch, because the session waits in `flow` before it reads on.
        self._held: list[Frame] = []
        self._unwritten = 0
        self._progressed = WaitingTasks()
        # A channel in memory takes a frame for less than it costs to wake the writer.
        self._direct = type(channel).send_nowait is not FrameChannel.send_nowait
        # After how many messages of a burst the session lets other tasks run; a peer in this process waits anyway.
        self.messages_in_a_turn = sys.maxsize if self._direct else MESSAGES_IN_A_TURN
        # Whether the session is at a burst of messages, whose answers are better written together.
        self.in_burst = False
        self.longest = channel.max_message_bytes or sys.maxsize
        # What goes with every frame that brings nothing of its own to be mirrored outside the body.
        self.metadata: Mapping[str, str] | None = None
        # When a frame was last to be sent beside calls that were running or pending.
        self._sent_at = -math.inf
        self._frames_in = self._frames_out = self._bytes_in = self._bytes_out = 0

    def __repr__(self) -> str:
        return f"<Link {self.channel.peer} outbox={self._unwritten}/{self.limits.outbox}>"

    def attach(self, served: Dispatcher, on_crash: Callable[[Exception], None]) -> None:
        """Connects the link with what its messages are for; ``on_crash`` takes what dispatching one of them raised."""
        self._served = served
        self._on_crash = on_crash
        self.channel.deliver_to(self._take)

    def write_by(self, start_writer: Callable[[], object]) -> None:
        """Says how a task is started that runs `run`, which happens when there is something for it to do."""
        self._start_writer = start_writer

    # -- outgoing ------------------------------------------------------------------------------------------------

    def _opened(self) -> FrameQueue:
        """Returns the outbox; raises `trio.ClosedResourceError` after the link was closed."""
        if self._outbox is None:
            self._start_writer()
            self._outbox = FrameQueue(self.limits.outbox)
        return self._outbox

    def post(self, frame: Frame) -> None:
        """Queues a frame without waiting, even when the outbox is full: for what must always get through.

        Raises `LocalProtocolError` for a frame that the channel cannot carry.
        """
        self._prepare(frame)
        if not self._unwritten and self._sent_at_once(frame):
            return
        try:
            if not (self._outbox or self._opened()).put(frame):
                self._held.append(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        self._unwritten += 1

    def send_nowait(self, frame: Frame) -> bool:
        """Queues a frame if there is room, and says whether there was; raises like `send`."""
        if self.metadata is not None or len(frame.data) > self.longest:
            self._prepare(frame)
        if not self._unwritten and self._sent_at_once(frame):
            return True
        try:
            if not (self._outbox or self._opened()).put(frame):
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
                    await self._opened().put_when_there_is_room(frame)
                except trio.ClosedResourceError:
                    raise trio.BrokenResourceError("the connection is closed") from None
                return
            # A peer that reads slowly, but reads, is waited for.
            if self._has_stalled(written):
                raise self._stalled()

    async def wait_until_read(self) -> bool:
        """Waits until the peer has read what was queued before; returns false where the channel cannot tell."""
        queued = self._frames_out + self._unwritten
        while self._unwritten and self._frames_out < queued:
            await self._progressed.park()
        return await self.channel.wait_until_read()

    @property
    def http_request(self) -> HttpRequest | None:
        """The request that opened the connection, where it was opened by one."""
        return self.channel.http_request

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
            if self._held and self._has_stalled(written):
                raise self._stalled()

    @property
    def congested(self) -> bool:
        """Whether more was posted than the outbox holds."""
        return bool(self._held)

    def _has_stalled(self, written: int) -> bool:
        """Whether nothing was written since ``written`` frames were, although the peer might have read."""
        asks = self._served is not None and self._served.outbound.waits_for_person
        return self._frames_out == written and not asks

    def _stalled(self) -> trio.BrokenResourceError:
        error = trio.BrokenResourceError(f"the peer has not read for {self.limits.stall_timeout:g} s")
        self._on_broken(error)
        return error

    def _prepare(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise LocalProtocolError(
                f"a message of {len(frame.data)} bytes is too long: the limit is {self.longest}"
            )
        if self.metadata is not None and frame.metadata is None:
            frame.metadata = self.metadata

    def _sent_at_once(self, frame: Frame) -> bool:
        """Tries to write without waking the writer's task, which would cost more than the write itself.

        Called only when nothing is queued.
        """
        try:
            if not (self._expects_no_other(frame) and self.channel.write_now(frame)):
                if not self._direct:
                    return False
                self.channel.send_nowait(frame)
        except trio.WouldBlock:
            return False
        except NothingSent:
            # The writer finds out the reason, which may take a while.
            self._not_sent((frame,))
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Both ways of sending at once send all of a frame or nothing.
            self._not_sent((frame,))
            self._on_broken(error)
            return True
        self._frames_out += 1
        self._bytes_out += len(frame.data)
        return True

    def _expects_no_other(self, frame: Frame) -> bool:
        """Whether no other frame is likely to be sent soon, with which this one had better be written.

        That is so outside of a burst, if no inbound call is running (one that answers has left the table) and no
        outbound call is pending but the one that sends; or else if there was no frame for a moment: these calls take
        long. A subscription does not count, but for what it sends itself: notifications often come together.
        """
        served = self._served
        if self.in_burst or served is None:
            return False
        if len(served.outbound.pending) > 1 + served.outbound.standing:
            return self._was_quiet()
        running = len(served.calls)
        if running == 1 and (frame.last or frame.request is not None):
            (call,) = served.calls.values()
            return call.is_open_ended or self._was_quiet()
        return not running or self._was_quiet()

    def _was_quiet(self) -> bool:
        """Whether there was no frame for a moment; the next one is compared with this one."""
        now, before = trio.current_time(), self._sent_at
        self._sent_at = now
        return now - before >= QUIET

    async def run(self) -> None:
        """The writer: takes everything that is queued and makes one write of it. Ends when the link is closed."""
        outbox = self._opened()
        burst: list[Frame] = []
        try:
            while await outbox.wait_for_frames():
                burst = self._take_burst(outbox)
                await self.channel.send_many(burst)
                self._written(burst)
                burst = []
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._not_sent(outbox.frames)
            if isinstance(error, NothingSent):
                self._not_sent(burst)
            self._on_broken(error)
        finally:
            outbox.leave()
            self._unwritten = 0
            self._held.clear()
            self._progressed.unpark_all()

    def _not_sent(self, frames: Iterable[Frame]) -> None:
        """Takes note that these will not be sent, because the connection is broken."""
        if self._served is not None:
            for frame in frames:
                self._served.outbound.was_not_sent(frame)

    def withdraw(self) -> list[Frame]:
        """Takes back the requests that wait to be written, and returns them; no more answers come."""
        taken = [] if self._outbox is None else self._outbox.withdraw()
        self._unwritten -= len(taken)
        if taken:
            self._progressed.unpark_all()
        return taken

    def _take_burst(self, outbox: FrameQueue) -> list[Frame]:
        burst: list[Frame] = []
        size, waiting = 0, outbox.frames
        while waiting and size < MAX_BURST_BYTES and len(burst) < MAX_BURST_FRAMES:
            frame = outbox.take()
            burst.append(frame)
            size += len(frame.data)
        # What was held came after what is still in the outbox: a cancellation must not overtake its request.
        if self._held and not waiting:
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
        self._start_writer = _no_writer
        if self._outbox is not None:
            self._outbox.close()
        with trio.move_on_after(self.limits.close_timeout, shield=True):
            await self.channel.aclose()
        # The channel refers to the link, and the link to its session, which have ended.
        self.channel.deliver_to(_take_nothing)
        self._served, self._on_crash, self._on_broken = None, _no_crash, _no_crash

    # -- incoming ------------------------------------------------------------------------------------------------

    def take_all(self, frames: list[Frame]) -> list[Received]:
        """Returns what one read brought: messages, and a `MalformedMessage` for anything else."""
        self.in_burst = len(frames) > 1
        if self._served is not None and self._served.pool is not None:
            self._served.pool.read_at = trio.current_time()
        return [self._received(frame) for frame in frames]

    def _take(self, frame: Frame) -> bool:
        """Takes what the channel delivers by itself, in the turn of its sender.

        It takes nothing while the peer reads slowly, because the session's reader has to wait in `flow` then.
        """
        if self._held or self._served is None or self._served.pool is None:
            return False
        message = self._received(frame)
        if message.__class__ is JsonRpcRequest or message.__class__ is list:
            self._served.pool.read_at = trio.current_time()
        try:
            self._served.dispatch(message, self)
        except Exception as error:
            self._on_crash(error)
        return True

    def _received(self, frame: Frame) -> Received:
        """Returns the message in a frame; anything else becomes a `MalformedMessage`."""
        self._frames_in += 1
        self._bytes_in += len(frame.data)
        try:
            return decode(frame.data) if frame.about is None else _about(frame)
        except MalformedMessage as error:
            if isinstance(frame, Waiting | NewAccess | NotificationsMissed):
                return frame
            error.beginning = _beginning(frame.data)
            return error

    def statistics(self) -> LinkStatistics:
        """Returns a snapshot of the link."""
        return LinkStatistics(
            outbox=self._unwritten,
            outbox_limit=self.limits.outbox,
            blocked=0 if self._outbox is None else self._outbox.blocked,
            frames_in=self._frames_in,
            frames_out=self._frames_out,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )


def _about(frame: Frame) -> Received:
    """Returns the message in a frame of which the binding knows the request that it is about."""
    if isinstance(frame, NoAnswer):
        return frame
    message = decode(frame.data)
    if isinstance(message, JsonRpcError) and message.id is None and frame.about is not None:
        return JsonRpcError(frame.about, message.code, message.message, message.data)
    if isinstance(message, JsonRpcNotification):
        return JsonRpcNotification(message.method, message.params, frame.about)
    return message


def _beginning(data: bytes) -> str:
    text = data[: 4 * BEGINNING].decode("utf-8", "replace")
    return text if len(text) <= BEGINNING and len(data) <= 4 * BEGINNING else f"{text[:BEGINNING]} …"
