r"""Newline frames over any pair of Trio streams: pipes, sockets, TLS, whatever sends and receives bytes.

One message is one line that ends in ``\n`` (MCP 2026-07-28, Transports, stdio). Received leniently (``\r\n``, blank
lines, a last line without its newline), sent strictly. A binding for a byte stream is `LineChannel` and code that opens
the stream; `BufferedChannel` is what a channel over a byte stream with another framing can build on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError, MalformedMessage, Overloaded, RemoteProtocolError
from mcp_actors.supervision.budget import Account

__all__ = [
    "DEFAULT_HELD_BYTES",
    "DEFAULT_MAX_MESSAGE_BYTES",
    "UNWEIGHED_BYTES",
    "BufferedChannel",
    "LineChannel",
    "SupportsDeliver",
    "SupportsSendAtOnce",
    "SupportsUnread",
    "weigh",
]

DEFAULT_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bytes of one message. Base64 makes a 12 MB file one message; a program that needs more says so."""
DEFAULT_HELD_BYTES = 32 * DEFAULT_MAX_MESSAGE_BYTES
"""Bytes of the unfinished messages of all connections of a listener: 32 of the longest, half of which may be one
client's.
"""
UNWEIGHED_BYTES = 16 * 1024
"""Bytes of an unfinished message that no account is charged for, so that short ones cost nothing.

It is about as much as the connection itself takes.
"""
# What a Linux pipe holds: a larger buffer costs an allocation and brings no more bytes.
_RECEIVE_BYTES = 64 * 1024
# Frames that are received, and so decoded, before other connections have their turn: some milliseconds.
_FRAMES_AT_ONCE = 256
# JSON's own whitespace: it may surround a message, and alone it is a blank line.
_WHITESPACE = b" \t\r"
# How often the peer's reading is looked at in turn with other tasks before it is looked at once in a millisecond.
_LOOKS_AT_ONCE = 8
_LOOK_INTERVAL = 0.001  # seconds


@runtime_checkable
class SupportsSendAtOnce(Protocol):
    """A stream that can send a few bytes without waiting and without ever sending a part of them."""

    def send_at_once(self, data: bytes) -> bool:
        """Sends all of ``data`` now or nothing, and returns whether it did.

        Raises `NothingSent` if the connection turns out to be broken, and then ``send_all`` raises why.
        """


@runtime_checkable
class SupportsUnread(Protocol):
    """A stream that knows how much of what it sent waits in the kernel for the peer to read it."""

    @property
    def sent(self) -> int:
        """Bytes that were sent, in all."""

    def unread(self) -> int | None:
        """Bytes that the peer's program has not read yet, never less than there are; ``None`` if that is not known."""


@runtime_checkable
class SupportsDeliver(Protocol):
    """A stream that can call back with what arrives, so that the task that waits for it need not wake up."""

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Gives ``take`` what arrives, and ``b""`` at the end, until it returns false; raises like `receive_some`.

        ``take`` never waits. It may be called by another task, but never after this one was cancelled.
        """


class BufferedChannel(FrameChannel):
    """The receiving half of a channel over a byte stream: frames that one read brought wait here to be received.

    A subclass implements `_read`, which reads once, gives the frames to `_received` and sets ``_end`` when no more
    come, and it sets ``_closed`` when it is closed.

    Args:
        max_message_bytes: the longest message in bytes, either way.
        peer: names the other end in logs.

    Raises:
        ValueError: if ``max_message_bytes`` is less than 1.
    """

    def __init__(self, *, max_message_bytes: int, peer: str) -> None:
        if max_message_bytes < 1:
            raise ValueError("max_message_bytes must be at least 1")
        self._limit = max_message_bytes
        self._peer = peer
        self._ready: list[Frame] = []
        self._take: Callable[[Frame], bool] = _take_nothing
        # Makes the error that receiving raises, once no more frames come.
        self._end: Callable[[], BaseException] | None = None
        self._closed = False

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._end is not None:
            state = f"ended: {self._end()!r}"
        else:
            state = f"{len(self._ready)} ready"
        return f"<{type(self).__name__} to {self._peer}: {state}>"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def max_message_bytes(self) -> int:
        """The longest message in bytes, either way."""
        return self._limit

    async def receive(self) -> Frame:
        """Waits for one frame; the others that came with it are kept. Cancelling loses nothing.

        Raises:
            trio.EndOfChannel: the peer ended the connection in an orderly way.
            trio.BrokenResourceError: the connection broke, or the peer broke a rule: ``__cause__`` is a
                `~mcp_actors.errors.RemoteProtocolError` then.
            trio.ClosedResourceError: this channel was closed.
            trio.BusyResourceError: another task is receiving, over a stream that notices.
        """
        if self._ready and not self._closed:
            await trio.lowlevel.checkpoint()
        else:
            while self._is_empty():
                await self._read()
        return self._ready.pop(0)

    async def receive_many(self) -> list[Frame]:
        """Waits for frames and returns what one read of the stream brought, at most 256; raises as `receive` does.

        Cancelling loses nothing: bytes are taken from the stream and cut without a checkpoint between.
        """
        if self._ready and not self._closed:
            await trio.lowlevel.checkpoint()
        else:
            while self._is_empty():
                await self._read()
        frames = self._ready
        if len(frames) <= _FRAMES_AT_ONCE:
            self._ready = []
            return frames
        self._ready = frames[_FRAMES_AT_ONCE:]
        return frames[:_FRAMES_AT_ONCE]

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Frames that come alone go to ``take``; over a stream with a ``deliver``, without waking the reader."""
        self._take = take

    def _is_empty(self) -> bool:
        """Whether frames have still to come; raises the reason if none will."""
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if self._ready:
            return False
        if self._end is not None:
            raise self._end()
        return True

    @abstractmethod
    async def _read(self) -> None:
        """Reads until there are frames to receive, or the end."""

    def _received(self, frames: list[Frame]) -> bool:
        """Takes what one read brought; returns whether the reader may sleep on, since nothing is left for it."""
        if len(frames) == 1 and self._take(frames[0]):
            return self._end is None
        self._ready += frames
        return not frames and self._end is None

    def _require_limit(self, frames: Sequence[Frame]) -> None:
        """Raises `LocalProtocolError` if one of ``frames`` must not be sent, being empty or too long."""
        for frame in frames:
            size = len(frame.data)
            if not 0 < size <= self._limit:
                raise LocalProtocolError(f"a message of {size} bytes; allowed are 1 to {self._limit}")


class LineChannel(BufferedChannel):
    """A `FrameChannel` over a stream to receive from and a stream to send to (the same object for a socket).

    Receiving and sending may go on at the same time in two tasks, but neither in two tasks at once.

    Args:
        stream_in: where lines come from.
        stream_out: where lines go to.
        max_message_bytes: the longest message in either direction, without its newline; 16 MiB by default. A longer
            one that arrives ends the connection with `trio.BrokenResourceError`, whose ``__cause__`` is a
            `~mcp_actors.errors.RemoteProtocolError`, after everything before it was delivered; no more than the limit
            is ever held. The other direction still works then, so a last error can be sent.
        peer: names the other end in logs.
        account: is charged for a message that has come in part, from `UNWEIGHED_BYTES` on; ``None`` for a peer that is
            alone, as over stdio. Over a limit of it the connection ends as with a message that is too long. The owner
            takes back what is charged when the connection has ended.

    Raises:
        ValueError: if ``max_message_bytes`` is less than 1.
    """

    def __init__(
        self,
        stream_in: trio.abc.ReceiveStream,
        stream_out: trio.abc.SendStream,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        peer: str = "byte stream",
        account: Account | None = None,
    ) -> None:
        super().__init__(max_message_bytes=max_message_bytes, peer=peer)
        self._in = stream_in
        self._out = stream_out
        self._send_at_once = stream_out.send_at_once if isinstance(stream_out, SupportsSendAtOnce) else None
        self._unread = stream_out if isinstance(stream_out, SupportsUnread) else None
        self._deliver = stream_in.deliver if isinstance(stream_in, SupportsDeliver) else self._read_once
        # The beginning of a message whose newline is still to come. A bytearray, since a list of pieces costs forty
        # bytes for each one-byte piece that a slow or hostile peer sends.
        self._partial = bytearray()
        self._account = account
        self._torn = False

    async def send(self, value: Frame) -> None:
        """Sends one frame; see `send_many`."""
        await self.send_many((value,))

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order with one ``send_all``.

        Cancelled half-way the stream may be torn inside a frame, so every later send raises
        `trio.BrokenResourceError`.

        Raises:
            LocalProtocolError: with nothing sent, if a frame is empty, longer than the limit or holds a newline.
            trio.BrokenResourceError: the connection is broken, or an earlier send was cancelled half-way.
            trio.ClosedResourceError: this channel was closed.
        """
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if self._torn:
            raise trio.BrokenResourceError("an earlier send did not end, perhaps inside a frame")
        burst = self._join(frames)
        self._torn = True
        await self._out.send_all(burst)
        self._torn = False

    def write_now(self, frame: Frame) -> bool:
        """Writes one frame at once if the stream has a ``send_at_once``; raises for a frame as `send_many` does."""
        if self._send_at_once is None or self._torn or self._closed:
            return False
        return self._send_at_once(self._join((frame,)))

    async def wait_until_read(self) -> bool:
        """Waits until the kernel holds none of the bytes that were sent before, where the stream knows that."""
        stream = self._unread
        if stream is None:
            return False
        sent, looks = stream.sent, 0
        while not self._closed:
            unread = stream.unread()
            if unread is None:
                return False
            if stream.sent - unread >= sent:
                return True
            looks += 1
            if looks < _LOOKS_AT_ONCE:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(_LOOK_INTERVAL)
        return True

    async def aclose(self) -> None:
        """Closes both streams. Frames that were received but not asked for are dropped."""
        self._closed = True
        try:
            await self._out.aclose()
        finally:
            await self._in.aclose()

    def _join(self, frames: Sequence[Frame]) -> bytes:
        self._require_limit(frames)
        burst = b"\n".join([*[frame.data for frame in frames], b""])
        if burst.count(b"\n") != len(frames):
            raise LocalProtocolError("a message holds a newline")
        return burst

    async def _read(self) -> None:
        await self._deliver(self._arrived)

    async def _read_once(self, take: Callable[[bytes], bool]) -> None:
        take(bytes(await self._in.receive_some(_RECEIVE_BYTES)))

    def _arrived(self, data: bytes) -> bool:
        """Takes what was read; returns whether the reader may sleep on."""
        lines = self._cut(data) if data else self._cut_last()
        return self._received([Frame(line) for each in lines if (line := each.strip(_WHITESPACE))])

    def _cut(self, data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        rest = lines.pop()
        partial = self._partial
        # Only then can a message be over the limit at all, so the usual burst is not looked at line by line.
        suspect = len(partial) + len(data) > self._limit
        if lines and partial:
            partial += lines[0]
            lines[0] = bytes(partial)
            self._partial = partial = bytearray()
        if suspect:
            for index, line in enumerate(lines):
                if len(line) > self._limit:
                    return self._stop_at_limit(lines[:index])
            if len(partial) + len(rest) > self._limit:
                return self._stop_at_limit(lines)
        partial += rest
        account = self._account
        if account is not None and (account.held or len(partial) > UNWEIGHED_BYTES):
            overloaded = weigh(account, len(partial))
            if overloaded is not None:
                self._stop(MalformedMessage(overloaded.message, code=overloaded.code))
        return lines

    def _stop_at_limit(self, before: list[bytes]) -> list[bytes]:
        self._stop(RemoteProtocolError(f"message longer than {self._limit} bytes"))
        return before

    def _stop(self, reason: RemoteProtocolError) -> None:
        """Receives nothing more, because of the message that is being received."""
        self._partial = bytearray()
        if self._account is not None:
            self._account.keep(0)

        def broken() -> BaseException:
            error = trio.BrokenResourceError("the peer broke the framing")
            error.__cause__ = reason
            return error

        self._end = broken

    def _cut_last(self) -> list[bytes]:
        """The stream is at its end; ``printf '{…}' | server`` sends a message without the newline."""
        self._end = trio.EndOfChannel
        last = bytes(self._partial)
        self._partial = bytearray()
        return [last]


def weigh(account: Account | None, size: int) -> Overloaded | None:
    """Charges ``size`` bytes of an unfinished message, if there is an account; returns the refusal if there is no room.

    Args:
        account: The account of the connection, which is charged for this one message alone.
        size: What has come of the message; up to `UNWEIGHED_BYTES` nothing is charged.
    """
    if account is None or (over := account.hold(size if size > UNWEIGHED_BYTES else 0)) is None:
        return None
    return Overloaded.for_bytes("unfinished messages", over, account.budget.limit_of(over))


def _take_nothing(frame: Frame) -> bool:
    return False
