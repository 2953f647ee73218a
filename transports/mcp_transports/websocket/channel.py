"""A WebSocket as a channel of the engine, on the stream that the opening handshake was made on.

trio-websocket, which opens the connection (see ``opening.py``), would do this too, with a task and a queue of its own
for each connection, one write for each message, and no Close frame for a peer that breaks the protocol. This channel
answers a burst of messages in one write, and five times as many of them.

Reading never waits for a write: the Pongs and Close frames that it calls for are queued by the protocol, and a
short task of `FrameWriter` writes them as soon as nothing else is being written.

`PeerActivity` finds lost peers: it pings a silent one (RFC 6455 section 5.5.2), and drops one that stays silent or
reads nothing.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs
import trio

from mcp_actors.abc import Frame, HttpRequest, NothingSent
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES, BufferedChannel, SupportsDeliver
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.supervision.budget import Account
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import WEBSOCKET_CONTROL
from mcp_transports.sockets.stream import ConnectedSocket
from mcp_transports.websocket.protocol import GOING_AWAY, NO_STATUS, NORMAL, WebSocketProtocol, WebSocketState

__all__ = ["FrameWriter", "KeepAliveAction", "KeepAliveTimes", "PeerActivity", "WebSocketChannel"]

# The ticker's longest and shortest sleep, seconds.
_LONGEST_TICK = 5.0
_SHORTEST_TICK = 0.02

_RECEIVE_BYTES = 64 * 1024
# The codes of a peer that leaves on purpose (RFC 6455 section 7.4.1).
_CLEAN_CODES = frozenset((NORMAL, GOING_AWAY, NO_STATUS))

# Bytes. A longer write goes out in such pieces, so that a peer's progress with it is seen.
_PIECE = 64 * 1024

# Streams whose bytes are those of the socket.
_BARE = trio.SocketStream, ConnectedSocket


# -- The keep-alive --------------------------------------------------------------------------------


def _positive(_times: KeepAliveTimes, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than zero, not {value!r}")


@attrs.frozen(kw_only=True)
class KeepAliveTimes:
    """The time limits for an inactive peer, in seconds. A ticker applies them: never early, and up to two ticks late.

    Raises:
        ValueError: if one of them is not greater than zero.
    """

    ping_interval: float = attrs.field(default=20.0, validator=_positive)
    """Silence after which a ping asks whether the peer is there; under the minute after which proxies hang up."""

    ping_timeout: float = attrs.field(default=20.0, validator=_positive)
    """Further silence after which the peer counts as gone. Any byte ends the silence."""

    write_timeout: float = attrs.field(default=30.0, validator=_positive)
    """Time without reading any byte that is sent to it after which a peer is dropped."""

    close_timeout: float = attrs.field(default=0.5, validator=_positive)
    """Time for which closing waits for the peer's Close frame; shorter than the engine's limit for closing."""

    @property
    def tick(self) -> float:
        """Seconds from one look at a peer to the next: a quarter of the shortest limit, within reason."""
        shortest = min(self.ping_interval, self.ping_timeout, self.write_timeout)
        return max(_SHORTEST_TICK, min(_LONGEST_TICK, shortest / 4))


class KeepAliveAction(Enum):
    """The actions that a check of a peer may lead to."""

    FINE = "nothing"
    PING = "a ping shall ask whether it is there"
    SILENT = "it was silent, also after a ping, and is to be dropped"
    STUCK = "it takes nothing that is sent to it, and is to be dropped"


class PeerActivity:
    """The recent activity of one peer. Its channel sets ``has_received`` and ``listening``."""

    __slots__ = (
        "_pinged",
        "_progress",
        "_silent_since",
        "_stuck_since",
        "has_received",
        "is_dropped",
        "listening",
    )

    def __init__(self, now: float) -> None:
        self._pinged = False
        self._progress = 0
        self._silent_since = self._stuck_since = now
        self.has_received = False
        """Whether any byte has come since the last look."""
        self.listening = False
        """Whether a task waits for bytes; without one a peer counts as active, because its bytes are not read."""
        self.is_dropped = False
        """Whether a look found it gone; from then on every look finds nothing to do."""

    def look(self, now: float, times: KeepAliveTimes, *, progress: int, sending: bool) -> KeepAliveAction:
        """Decides what is to be done at the time ``now``.

        Args:
            now: seconds on Trio's clock.
            times: the time limits.
            progress: grows with everything that the stream took.
            sending: whether a write is under way.
        """
        if self.is_dropped:
            return KeepAliveAction.FINE
        if progress != self._progress or not sending:
            self._progress = progress
            self._stuck_since = now
        elif now - self._stuck_since >= times.write_timeout:
            self.is_dropped = True
            return KeepAliveAction.STUCK
        if self.has_received or not self.listening:
            self.has_received = self._pinged = False
            self._silent_since = now
            return KeepAliveAction.FINE
        silence = now - self._silent_since
        if silence >= times.ping_interval and not self._pinged:
            self._pinged = True
            # However late this look is, the peer has the whole timeout for its answer.
            self._silent_since = now - times.ping_interval
            return KeepAliveAction.PING
        if self._pinged and silence >= times.ping_interval + times.ping_timeout:
            self.is_dropped = True
            return KeepAliveAction.SILENT
        return KeepAliveAction.FINE


# -- The channel -----------------------------------------------------------------------------------


class WebSocketChannel(BufferedChannel):
    """One side of an open WebSocket over any stream of bytes.

    Endings: a peer that closes with 1000, 1001 or no code is `trio.EndOfChannel`. Any other code, and a connection
    that ends without one, is `trio.BrokenResourceError`, and so is a peer that breaks a rule: our Close frame says
    which (1002, 1003, 1007 or 1009), and the error has a `RemoteProtocolError` as its cause. Nothing can be sent
    after any of these: a WebSocket has no half that stays open.

    Args:
        stream: the stream on which the opening handshake was made.
        client: whether this is the client's side.
        nursery: for short tasks that live as long as the connection at most. The owner runs a `Ticker` with this
            channel as a member; without that, a silent peer is never noticed.
        first: the bytes that came behind the opening handshake.
        max_message_bytes: the longest message either way, 16 MiB by default.
        times: the limits for an inactive peer, and for closing.
        close_code: the code of the Close frame that `aclose` sends.
        peer: names the other end in logs.
        account: is charged for messages that have come in part; the owner takes back what is charged at the end.

    Raises:
        ValueError: if ``max_message_bytes`` is less than 1.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        client: bool,
        nursery: trio.Nursery,
        first: bytes = b"",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        times: KeepAliveTimes = KeepAliveTimes(),
        close_code: int = NORMAL,
        peer: str = "websocket",
        http_request: HttpRequest | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(max_message_bytes=max_message_bytes, peer=peer)
        self._http_request = http_request
        self._stream = stream
        self._protocol = WebSocketProtocol(
            client=client, max_message_bytes=max_message_bytes, close_code=close_code, account=account
        )
        self._writer = FrameWriter(stream, self._protocol, nursery, self.crashed)
        self._times = times
        self._activity = PeerActivity(trio.current_time())
        # Whether the closing handshake needs no more reading, and what wakes the task that waits for that.
        self._reading_is_over = False
        self._reader_has_stopped: trio.Event | None = None
        # The tasks that wait for a pong, once there were some.
        self._ponged: trio.lowlevel.ParkingLot | None = None
        self._protocol.opened()
        if first:
            self._arrived(first)

    @property
    def http_request(self) -> HttpRequest | None:
        """The request for the upgrade, on the server's side."""
        return self._http_request

    def loss_report(self) -> Mapping[str, Any]:
        """``close_code`` and ``close_reason``, as the peer sent them, if it did."""
        close = self._protocol.peer_close
        return {} if close is None else {"close_code": close.code, "close_reason": close.reason}

    # -- receiving -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        activity = self._activity
        activity.listening = True
        try:
            if self._protocol.has_rest:
                await trio.lowlevel.checkpoint()
                self._took(self._protocol.receive_rest())
                return
            # Over a poller only while this channel is open: a listener that is closing has stopped its poller.
            if isinstance(self._stream, SupportsDeliver) and not self._closed:
                await self._stream.deliver(self._arrived)
            else:
                while self._arrived(bytes(await self._stream.receive_some(_RECEIVE_BYTES))):
                    pass
        except trio.ClosedResourceError:
            if self._closed:
                raise trio.ClosedResourceError("this channel was closed") from None
            raise self._ended_by("its stream was closed")() from None
        except trio.BrokenResourceError as error:
            raise self._ended_by("it broke", error.__cause__ or error)() from error
        finally:
            activity.listening = False

    def _arrived(self, data: bytes) -> bool:
        """Takes what was read; returns whether the reader may sleep on."""
        self._activity.has_received = True
        return self._took(self._protocol.receive_data(data), ended=not data)

    def _took(self, messages: list[bytes], *, ended: bool = False) -> bool:
        protocol = self._protocol
        frames = [
            # JSON has newlines between its tokens only, and a `Frame` holds none.
            Frame(each.replace(b"\n", b" ") if b"\n" in each else each)
            for each in messages
        ]
        if protocol.has_control_to_send:
            self._writer.flush_soon()
        if self._ponged:
            self._ponged.unpark_all()
        if protocol.state is WebSocketState.CLOSED:
            # After a broken rule the peer may still be sending: what it sends is read, and dropped by the protocol.
            if ended or protocol.violation is None:
                self._end_reading()
            if self._end is None:
                self._end = self._why_closed()
        return self._received(frames) and not protocol.has_rest

    def _why_closed(self) -> Callable[[], BaseException]:
        protocol = self._protocol
        if protocol.violation is not None:
            code = "" if protocol.our_close is None else f" (close code {protocol.our_close.code})"
            return _broken(
                f"the peer broke the rules of WebSocket{code}: {protocol.violation}",
                RemoteProtocolError(protocol.violation),
            )
        close = protocol.peer_close
        if close is None:
            return _broken("it ended without a Close frame")
        if close.code in _CLEAN_CODES:
            return trio.EndOfChannel
        reason = f" ({close.reason})" if close.reason else ""
        return _broken(f"the peer closed it with code {close.code}{reason}")

    def _ended_by(self, why: str, cause: BaseException | None = None) -> Callable[[], BaseException]:
        """The stream is of no use any more; returns what makes the error, which is the first reason that was found."""
        self._protocol.receive_data(b"")
        self._end_reading()
        if self._end is None:
            self._end = _broken(why, cause)
        return self._end

    def _end_reading(self) -> None:
        self._reading_is_over = True
        if self._reader_has_stopped is not None:
            self._reader_has_stopped.set()

    # -- sending ---------------------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Sends one frame; see `send_many`."""
        await self.send_many((value,))

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order with one write, in pieces of 64 KiB if it is longer.

        Cancelled half-way the stream may be torn inside a frame, so every later send raises
        `trio.BrokenResourceError`; cancelled before, nothing was sent.

        Raises:
            LocalProtocolError: with nothing sent, if a frame is empty or longer than the limit.
            trio.BrokenResourceError: the connection is broken, or the peer has closed it.
            trio.ClosedResourceError: this channel was closed.
        """
        self._require_limit(frames)
        try:
            await self._writer.send(self._encode, frames)
        except trio.ClosedResourceError:
            self._require_open()
            raise

    def _encode(self, frames: Sequence[Frame]) -> bytes:
        """Makes the bytes of frames when nothing is written any more in front of them, for none may follow a Close."""
        self._require_open()
        encode = self._protocol.encode_message
        if len(frames) == 1:
            return encode(frames[0].data)
        return b"".join([encode(frame.data) for frame in frames])

    def write_now(self, frame: Frame) -> bool:
        """Sends one frame at once over a bare socket, if nothing else is on its way and it is short."""
        data = frame.data
        if (
            self._protocol.state is not WebSocketState.OPEN
            or not 0 < len(data) <= self._limit
            or not self._writer.can_write_now(len(data))
        ):
            return False
        return self._writer.write_now(self._protocol.encode_message(data))

    def _require_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if self._end is not None:
            ending = self._end()
            if isinstance(ending, trio.EndOfChannel):
                raise trio.BrokenResourceError("the peer closed the connection")
            raise ending

    async def wait_until_read(self) -> bool:
        """Sends a ping and waits for its pong, which the peer's program sends when it has read what came before."""
        protocol = self._protocol
        pings = protocol.pings
        protocol.queue_ping()
        if protocol.has_control_to_send:
            self._writer.flush_soon()
        number = pings.queued
        while protocol.state is WebSocketState.OPEN and pings.answered < number:
            self._ponged = self._ponged or trio.lowlevel.ParkingLot()
            await self._ponged.park()
        return True

    # -- the ticker ------------------------------------------------------------------------------------------------

    deadline = -math.inf
    """A ticker looks at the peer at every tick."""

    def expire(self, now: float) -> None:
        """Looks whether the peer is still there. Never waits."""
        if self._closed:
            return
        times, writer = self._times, self._writer
        action = self._activity.look(now, times, progress=writer.progress, sending=writer.busy)
        if action is KeepAliveAction.PING:
            self._protocol.queue_ping()
            if self._protocol.has_control_to_send:
                writer.flush_soon()
        elif action is KeepAliveAction.SILENT:
            self.abort(f"it was silent and did not answer a ping within {times.ping_timeout:g} s")
        elif action is KeepAliveAction.STUCK:
            self.abort(f"it took nothing of what was sent for {times.write_timeout:g} s")

    def abort(self, why: str) -> None:
        """Closes the stream without a Close frame. Tasks that receive or send get `trio.BrokenResourceError`.

        Returns at once; a task of the connection does the rest.
        """
        self._ended_by(why)
        self._writer.close_soon()

    def close_soon(self) -> None:
        """Has a task of the connection call `aclose`, which ends its session as a peer that leaves does."""
        self._writer.start(self.aclose)

    def crashed(self, error: BaseException) -> None:
        """Drops the connection because of a defect: of one of its tasks, or of a look at the peer."""
        self.abort(f"one of its tasks failed: {error!r}")

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Sends a Close frame, waits for the peer's (`KeepAliveTimes.close_timeout`), and closes the stream.

        Frames that were received but not asked for are dropped. Legal from any task, any number of times. Cancelled,
        the stream is closed all the same.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        protocol, writer = self._protocol, self._writer
        if protocol.state is WebSocketState.OPEN:
            protocol.queue_close()
        try:
            # A torn stream takes no Close frame, unless another task is still at the write that makes it so.
            if protocol.our_close is not None and (writer.busy or not writer.torn):
                with trio.move_on_after(self._times.close_timeout):
                    await writer.flush()
                    await self._finish_reading()
                    await self._stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer is not there for the closing handshake any more
        finally:
            self._ready.clear()
            await trio.aclose_forcefully(self._stream)
            self._end_reading()
            writer.release()

    async def _finish_reading(self) -> None:
        """Waits for the peer's Close frame, or for its end after a broken rule.

        Unread bytes at the time of closing would reset the connection and take our Close frame away from the peer.
        """
        if self._activity.listening and not self._reading_is_over:
            if self._reader_has_stopped is None:
                self._reader_has_stopped = trio.Event()
            await self._reader_has_stopped.wait()
        while not self._reading_is_over:
            await self._read()


def _broken(why: str, cause: BaseException | None = None) -> Callable[[], BaseException]:
    def make() -> BaseException:
        error = trio.BrokenResourceError(why)
        error.__cause__ = cause
        return error

    return make


# -- The sending side ------------------------------------------------------------------------------


def _no_crash(error: BaseException) -> None:
    """Takes an error of a task that has outlived its channel."""


class FrameWriter:
    """Writes to one stream what ``protocol`` wants sent, in tasks of ``nursery`` where no task waits for it.

    ``on_crash(error)`` is called when such a task fails in a way that is not the peer's doing.
    """

    __slots__ = (
        "_descriptor",
        "_flushing",
        "_is_refused",
        "_nursery",
        "_on_crash",
        "_protocol",
        "_stream",
        "_unwritten",
        "_waiting",
        "_writing",
        "progress",
        "torn",
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        protocol: WebSocketProtocol,
        nursery: trio.Nursery,
        on_crash: Callable[[BaseException], object],
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._nursery = nursery
        self._on_crash = on_crash
        # Where a socket lies bare, a small frame can be sent without a task being woken for it. On Windows a socket is
        # not a descriptor of a file.
        self._descriptor = -1
        if sys.platform != "win32" and isinstance(stream, _BARE):
            self._descriptor = stream.socket.fileno()
        # A lock, which costs next to nothing until a second task wants it.
        self._writing = False
        self._waiting: trio.lowlevel.ParkingLot | None = None
        # What a system call left of a frame.
        self._unwritten = b""
        # Whether the system has said that the connection takes nothing any more.
        self._is_refused = False
        self._flushing = False
        self.torn = False
        """Whether a write did not end, perhaps inside of a frame; true also while one goes on."""
        self.progress = 0
        """Grows with every piece that the stream took."""

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._writing

    async def send(self, encode: Callable[[Sequence[Frame]], bytes], frames: Sequence[Frame]) -> None:
        """Writes what ``encode(frames)`` returns, once nothing else is being written.

        Cancelled while it waits, nothing was written; cancelled later, the stream may be torn inside a frame.

        Raises:
            trio.BrokenResourceError: the stream is broken or torn; a `~mcp_actors.abc.NothingSent` if nothing was sent.
            trio.ClosedResourceError: the stream was closed.
        """
        await self._acquire()
        try:
            try:
                data = encode(frames)
            except trio.BrokenResourceError as error:
                raise NothingSent(*error.args) from error.__cause__
            if self._is_refused:
                raise NothingSent("the connection is broken")
            if self.torn:
                raise trio.BrokenResourceError("an earlier send did not end, perhaps inside a frame")
            await self._write(data)
        finally:
            self._release()

    def can_write_now(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be written at once, past the queue."""
        return (
            self._descriptor >= 0 and size <= _PIECE and not (self.torn or self._unwritten or self._writing)
        )

    def write_now(self, data: bytes) -> bool:
        """Writes all with one system call, or nothing, or a part, whose remainder is then written before all else.

        Raises:
            NothingSent: the connection is broken.
        """
        try:
            sent = os.write(self._descriptor, data)
        except BlockingIOError:
            return False
        except OSError as error:
            self._is_refused = True
            raise NothingSent(f"sending failed: {error.strerror}") from error
        if sent < len(data):
            self._unwritten = data[sent:]
            self.flush_soon()
        return True

    def flush_soon(self) -> None:
        """Has a task write the control frames that are queued."""
        if not self._flushing:
            self._flushing = True
            self.start(self._flush_in_a_task)

    def start(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in a task of the connection."""
        start(self._nursery, WEBSOCKET_CONTROL, fn, on_crash=self._on_crash)

    async def _flush_in_a_task(self) -> None:
        try:
            await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the next receive or send raises it
        finally:
            self._flushing = False

    async def flush(self) -> None:
        """Writes the control frames that are queued, behind what is being written; raises as `send` does.

        Writes nothing to a stream that is torn.
        """
        await self._acquire()
        try:
            while not self.torn and (self._unwritten or self._protocol.has_control_to_send):
                await self._write(b"")
        finally:
            self._release()

    def close_soon(self) -> None:
        """Has a task close the stream at once, whatever is being written."""
        start(self._nursery, WEBSOCKET_CONTROL, trio.aclose_forcefully, self._stream)

    def release(self) -> None:
        """Forgets the channel, which has this writer, once the stream is closed."""
        self._on_crash = _no_crash

    async def _acquire(self) -> None:
        if self._writing:
            self._waiting = self._waiting or trio.lowlevel.ParkingLot()
            await self._waiting.park()
        self._writing = True

    def _release(self) -> None:
        """Lets the task that has waited longest write, if there is one."""
        if self._waiting:
            self._waiting.unpark()
        else:
            self._writing = False

    async def _write(self, data: bytes) -> None:
        """Writes what a system call left, control frames, then whole frames; the caller holds the lock."""
        if self._protocol.has_control_to_send:
            data = self._protocol.control_to_send() + data
        if self._unwritten:
            data, self._unwritten = self._unwritten + data, b""
        self.torn = True
        if len(data) <= _PIECE:
            await self._stream.send_all(data)
        else:
            with memoryview(data) as view:
                for begin in range(0, len(data), _PIECE):
                    try:
                        await self._stream.send_all(view[begin : begin + _PIECE])
                    except NothingSent as error:
                        if begin:
                            raise trio.BrokenResourceError(str(error)) from error
                        raise
                    self.progress += 1
        self.torn = False
        self.progress += 1
