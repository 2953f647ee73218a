"""Frames over an open WebSocket: what its bytes mean is wsproto's, when they are sent and read is ours.

trio-websocket, which opens the connection (see ``opening.py``), would do this too, with a task and a queue of its own
for each connection, one write for each message, and no close frame for a peer that breaks the protocol. The layer
below it, on the same stream, answers a burst of messages in one write, and five times as many of them.

Nothing in here waits for a write in order to read: what reading makes us send is owed (see ``sender.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import ProtocolError as WireError

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError
from mcp_actors.framing import DEFAULT_MAX_MESSAGE_BYTES, Delivers
from mcp_transports.websocket.keepalive import KeepAliveTimes
from mcp_transports.websocket.writer import FrameWriter, Spawn

__all__ = ["WebSocketChannel"]

_RECEIVE_BYTES = 64 * 1024

# RFC 6455 §7.4.1
NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED, NO_STATUS = 1000, 1001, 1002, 1003, 1005
INVALID_DATA, POLICY, TOO_BIG = 1007, 1008, 1009
# What a peer says that leaves on purpose.
_CLEAN = frozenset((NORMAL, GOING_AWAY, NO_STATUS))
# Of a peer's reason or of wsproto's complaint; a close frame has room for 123 bytes of it.
_LONGEST_REASON = 120


class WebSocketChannel(FrameChannel):
    """One side of an open WebSocket over any stream of bytes.

    ``first`` is what came behind the opening handshake. ``spawn`` starts a task that lives as long as the connection
    at most. ``goodbye`` is the code that `aclose` says when nothing else is to be said. The owner of a channel has a
    `KeepAlive` call `tick`; without that, nothing is ever found out about a silent peer.

    Endings: a peer that closes with 1000, 1001 or no code is `trio.EndOfChannel`. Any other code, and a connection
    that ends without one, is `trio.BrokenResourceError`, and so is a peer that breaks a rule: it is told by the close
    code (1002, 1003, 1007 or 1009), and the error has a `RemoteProtocolError` as its cause. Nothing can be sent
    after any of these: a WebSocket has no half that stays open.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        client: bool,
        spawn: Spawn,
        first: bytes = b"",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        close_timeout: float = KeepAliveTimes().close_timeout,
        goodbye: int = NORMAL,
        peer: str = "websocket",
    ) -> None:
        if max_message_bytes < 1:
            raise ValueError("max_message_bytes must be at least 1")
        self._stream = stream
        self._wire = Connection(ConnectionType.CLIENT if client else ConnectionType.SERVER)
        self._first = first
        self._spawn = spawn
        self._limit = max_message_bytes
        self._close_timeout = close_timeout
        self._peer = peer
        self._ready: list[Frame] = []
        self._deliver_to: Callable[[Frame], bool] = _nobody
        self._partial = bytearray()
        self._sender = FrameWriter(stream, self._wire, spawn)
        self._parting = CloseConnection(goodbye, None)
        # Why nothing more comes, once that is so.
        self._end: Callable[[], BaseException] | None = None
        self._closed = False
        self._over = trio.Event()
        self._code: int | None = None
        self._reason = ""
        # For the clock.
        self._receiving = self._heard = self._pinged = self._dropped = False
        self._seen_progress = 0
        self._silent_since = self._stuck_since = trio.current_time()

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._end is not None:
            state = f"ended: {self._end()!r}"
        else:
            state = f"{len(self._ready)} ready, {len(self._partial)} bytes partial"
        return f"<WebSocketChannel to {self._peer}: {state}>"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def max_message_bytes(self) -> int:
        """The longest message in bytes, either way."""
        return self._limit

    def loss_report(self) -> Mapping[str, Any]:
        """``close_code`` and ``close_reason``, as the peer sent them, if it did."""
        return {} if self._code is None else {"close_code": self._code, "close_reason": self._reason}

    # -- receiving -------------------------------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Waits for one frame; the others that came with it are kept. Cancelling loses nothing."""
        if self._ready and not self._closed:
            await trio.lowlevel.checkpoint()
        while not self._ready or self._closed:
            await self._read()
        return self._ready.pop(0)

    async def receive_many(self) -> list[Frame]:
        """Waits for at least one frame and returns all that one read brought. Cancelling loses nothing."""
        if self._ready and not self._closed:
            await trio.lowlevel.checkpoint()
        while not self._ready or self._closed:
            await self._read()
        frames, self._ready = self._ready, []
        return frames

    async def _read(self) -> None:
        """Reads once; raises one of the endings when there is nothing more to read."""
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if self._end is not None:
            raise self._end()
        await self._hear(self._arrived)

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Frames that come alone go to ``take``."""
        self._deliver_to = take

    def _arrived(self, data: bytes) -> bool:
        """Takes what was read; false when the reader has something to do."""
        if self._closed and not self._over.is_set():
            # Another task is closing and waits for the peer's goodbye, which only this one can hear.
            self._look_for_goodbye(data)
            return False
        if data:
            self._take(data)
        else:
            self._end = _broken("it ended without a goodbye")
        if len(self._ready) == 1 and self._end is None and self._deliver_to(self._ready[0]):
            self._ready.clear()
        return not self._ready and self._end is None

    async def _hear(self, take: Callable[[bytes], bool]) -> None:
        """Gives ``take`` what the stream brings, until it returns false."""
        if self._first:
            await trio.lowlevel.checkpoint()
            data, self._first = self._first, b""
            take(data)
            return

        def heard(data: bytes) -> bool:
            self._heard = True
            return take(data)

        self._receiving = True
        try:
            # Whoever is closing may be so because nobody delivers any more.
            if isinstance(self._stream, Delivers) and not self._closed:
                await self._stream.deliver(heard)
            else:
                heard(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))
        except trio.ClosedResourceError:
            if self._end is not None:  # dropped by the clock
                raise self._end() from None
            raise trio.ClosedResourceError("this channel was closed") from None
        except trio.BrokenResourceError as error:
            self._over.set()
            if self._end is None:
                self._end = _broken("it broke", error.__cause__ or error)
            raise self._end() from error
        finally:
            self._receiving = False

    def _take(self, data: bytes) -> None:
        self._wire.receive_data(data)
        for event in self._wire.events():
            if type(event) is TextMessage:
                self._take_text(event)
            elif isinstance(event, Ping):
                self._sender.owe_pong(bytes(event.payload))
            elif isinstance(event, CloseConnection):
                self._take_goodbye(event)
            elif isinstance(event, BytesMessage):
                self._refuse(UNSUPPORTED, "binary messages are not taken, only text")
            if self._end is not None:
                return

    def _take_text(self, event: TextMessage) -> None:
        data = event.data.encode()
        if self._partial or not event.message_finished:
            # One buffer: a list of pieces would cost a hundred bytes for each one-letter piece that a peer sends.
            self._partial += data
            data = b""
        if len(self._partial) + len(data) > self._limit:
            self._partial = bytearray()
            self._refuse(TOO_BIG, f"a message may have {self._limit} bytes")
        elif event.message_finished:
            if self._partial:
                data = bytes(self._partial)
                self._partial = bytearray()
            if b"\n" in data:
                data = data.replace(
                    b"\n", b" "
                )  # JSON has newlines between its tokens only, and a frame none
            self._ready.append(Frame(data))

    def _take_goodbye(self, event: CloseConnection) -> None:
        if self._wire.state is not ConnectionState.REMOTE_CLOSING:
            # wsproto's way to say that what came is no frame.
            self._refuse(int(event.code), event.reason or "")
            return
        self._code, self._reason = int(event.code), (event.reason or "")[:_LONGEST_REASON]
        self._sender.owe_goodbye(event.response())
        if self._code in _CLEAN:
            self._end = trio.EndOfChannel
        else:
            text = f"the peer closed it with code {self._code}" + (
                f" ({self._reason})" if self._reason else ""
            )
            self._end = _broken(text)

    def _refuse(self, code: int, why: str) -> None:
        """The peer broke a rule: it hears which, and nothing more is read."""
        self._sender.owe_goodbye(CloseConnection(code, why[:_LONGEST_REASON]))
        self._end = _broken(
            f"the peer broke the rules of WebSocket (close code {code}): {why}", RemoteProtocolError(why)
        )

    # -- sending ---------------------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Sends one frame; see `send_many`."""
        await self.send_many((value,))

    async def send_many(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order with one write, in pieces of 64 KiB if it is longer.

        Raises `~mcp_actors.errors.LocalProtocolError`, with nothing sent, if one of them is empty or longer than the
        limit. Cancelled half-way the stream may be torn inside a frame, so every later send raises
        `trio.BrokenResourceError`; cancelled before, nothing was sent.
        """
        for frame in frames:
            if not 0 < len(frame.data) <= self._limit:
                raise LocalProtocolError(
                    f"a message of {len(frame.data)} bytes; allowed are 1 to {self._limit}"
                )
        try:
            await self._sender.send(self._burst, frames)
        except trio.ClosedResourceError:
            self._must_be_open()
            raise

    def _burst(self, frames: Sequence[Frame]) -> bytes:
        """The bytes of frames, made when it is their turn: nothing may follow a goodbye."""
        self._must_be_open()
        encode = self._wire.send
        burst = [encode(TextMessage(frame.data.decode())) for frame in frames]
        return burst[0] if len(burst) == 1 else b"".join(burst)

    def write_now(self, frame: Frame) -> bool:
        """Sends one frame at once over a bare socket, if nothing else is on its way and it is short."""
        if (
            self._closed
            or self._end is not None
            or not 0 < len(frame.data) <= self._limit
            or not self._sender.can_send_now(len(frame.data))
        ):
            return False
        return self._sender.send_now(self._wire.send(TextMessage(frame.data.decode())))

    def _must_be_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        if self._end is not None:
            raise _as_broken(self._end())

    # -- the clock -------------------------------------------------------------------------------------------------

    def tick(self, now: float, times: KeepAliveTimes) -> None:
        """Called every now and then by the clock of the owner."""
        if self._closed or self._dropped:
            return
        if self._heard or not self._receiving:
            # A peer to which nobody listens cannot be heard.
            self._heard = self._pinged = False
            self._silent_since = now
        elif now - self._silent_since >= times.ping_interval:
            if not self._pinged:
                self._pinged = True
                self._silent_since = now - times.ping_interval
                self._sender.owe_ping()
            elif now - self._silent_since >= times.ping_interval + times.ping_timeout:
                self._drop(f"it was silent and did not answer a ping within {times.ping_timeout:g} s")
        sender = self._sender
        if sender.progress != self._seen_progress or not sender.busy:
            self._seen_progress = sender.progress
            self._stuck_since = now
        elif now - self._stuck_since >= times.write_timeout:
            self._drop(f"it took nothing of what was sent for {times.write_timeout:g} s")

    def _drop(self, why: str) -> None:
        self._dropped = True
        self._end = _broken(why)
        self._spawn(self._cut)

    async def _cut(self) -> None:
        await trio.aclose_forcefully(self._stream)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Says goodbye, waits for that of the peer for ``close_timeout`` seconds at most, and closes the stream.

        Frames that were received but not asked for are dropped. Legal from any task, any number of times. Cancelled,
        the stream is closed all the same.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        if self._end is None:
            self._sender.goodbye = self._parting
        try:
            if self._sender.goodbye is not None and (self._sender.busy or not self._sender.torn):
                with trio.move_on_after(self._close_timeout):
                    await self._say_goodbye()
                    await self._stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._over.set()  # the peer is not there for a goodbye any more
        finally:
            self._ready.clear()
            self._partial = bytearray()
            await trio.aclose_forcefully(self._stream)
            self._over.set()

    async def _say_goodbye(self) -> None:
        await self._sender.pay()
        if self._receiving:
            await self._over.wait()
            return
        if self._code is not None:
            return  # it had said goodbye before us
        # Unread bytes at the time of closing would reset the connection and take our goodbye away from the peer.
        while not self._over.is_set():
            await self._hear(self._look_for_goodbye)

    def _look_for_goodbye(self, data: bytes) -> bool:
        if not data:
            self._over.set()
        elif self._wire.state is ConnectionState.LOCAL_CLOSING and self._end is None:
            try:
                self._wire.receive_data(data)
                if any(isinstance(each, CloseConnection) for each in self._wire.events()):
                    self._over.set()
            except WireError:
                self._over.set()
        return not self._over.is_set()


def _nobody(frame: Frame) -> bool:
    return False


def _broken(why: str, cause: BaseException | None = None) -> Callable[[], BaseException]:
    def make() -> BaseException:
        error = trio.BrokenResourceError(why)
        error.__cause__ = cause
        return error

    return make


def _as_broken(ending: BaseException) -> BaseException:
    """Sending after the peer's goodbye is sending over what is broken."""
    if isinstance(ending, trio.EndOfChannel):
        return trio.BrokenResourceError("the peer closed the connection")
    return ending
