"""One side of a WebSocket after its opening handshake, without I/O: bytes go in, messages and bytes to send come out.

The rules are those of RFC 6455, named where they are obeyed. wsproto cuts the stream into frames and undoes their masks
(sections 5.2 and 5.3); everything above frames is here, because wsproto would make a `str` of every message in both
directions, and messages are bytes to the engine. A short text frame that is there in whole, as nearly all are, is read
here as well (`_text_frame`), which takes a fifth of the time; whatever is not exactly that is left to wsproto.

What may be sent and what is read in which state is decided by the table `NEXT_STATE` and by nothing else:

* ``CONNECTING`` until the opening handshake is made (section 4.1), which is done elsewhere;
* ``OPEN``: messages, pings and pongs travel both ways;
* ``CLOSING`` once our Close frame is queued: nothing may follow it (section 5.5.1), and of what the peer still sends
  only its own Close frame counts (section 7.1.3);
* ``CLOSED`` once both sides have closed, the peer broke a rule, or the stream has ended. What is queued is still to be
  sent; then the stream is to be closed (sections 7.1.1 and 7.1.7).
"""

from __future__ import annotations

import codecs
import os
import struct
from enum import Enum
from typing import cast

import attrs
from wsproto.frame_protocol import (
    CloseReason,
    FrameDecoder,
    Opcode,
    ParseFailed,
    XorMaskerSimple,
)
from wsproto.frame_protocol import Frame as WireFrame

from mcp_actors.abc.framing import weigh
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.budget import Account

__all__ = ["NEXT_STATE", "CloseFrame", "Fragments", "WebSocketEvent", "WebSocketProtocol", "WebSocketState"]

# RFC 6455 section 7.4.1.
NORMAL, GOING_AWAY, NO_STATUS = 1000, 1001, 1005
# A Close frame has room for 125 bytes (section 5.5), two of which are the code.
_LONGEST_REASON = 123
# Characters kept of a reason; those of most alphabets fit into a Close frame.
_REASON_CHARACTERS = 120
# Section 7.4.2: up to here codes are defined by the RFC and its successors alone.
_LAST_DEFINED_CODE = 2999
_DEFINED_CODES = frozenset(int(each) for each in CloseReason) - {1005, 1006, 1015}
# Section 5.2: the bit of the first byte that says "last fragment", with the opcode, and the bit for a mask.
_FINAL_TEXT = 0x80 | Opcode.TEXT
_MASKED = 0x80
_SHORT, _TWO_BYTES = 125, 65535
_SIZE_IN_TWO_BYTES, _SIZE_IN_EIGHT_BYTES = 126, 127
# Bytes. Up to here a mask is undone sooner as one number; the tables of wsproto are quicker with more.
_ONE_NUMBER = 2048
_KEY_BYTES = 4
_PING_BYTES = 8

# Frames that are taken before other connections have their turn: some milliseconds. One read can bring ten thousand.
FRAMES_IN_A_TURN = 256


class WebSocketState(Enum):
    """The states of a connection, in the terms of RFC 6455."""

    # The hash of Enum is written in Python, and the table is looked up for every message.
    __hash__ = object.__hash__

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class WebSocketEvent(Enum):
    """The events that may change the state of a connection."""

    __hash__ = object.__hash__

    OPENED = "the opening handshake is made"
    SEND = "we send a message, a ping or a pong"
    SEND_CLOSE = "we begin the closing handshake"
    RECEIVE = "a message, a ping or a pong arrives"
    RECEIVE_CLOSE = "a Close frame arrives"
    RECEIVE_INVALID = "the peer breaks a rule"
    STREAM_ENDED = "the stream ends or breaks"


_State, _Event = WebSocketState, WebSocketEvent

# A pair that is missing here is not allowed: what we would send is refused, what arrives is dropped.
NEXT_STATE: dict[tuple[WebSocketState, WebSocketEvent], WebSocketState] = {
    (_State.CONNECTING, _Event.OPENED): _State.OPEN,
    (_State.CONNECTING, _Event.STREAM_ENDED): _State.CLOSED,
    (_State.OPEN, _Event.SEND): _State.OPEN,
    (_State.OPEN, _Event.SEND_CLOSE): _State.CLOSING,
    (_State.OPEN, _Event.RECEIVE): _State.OPEN,
    # Section 5.5.1: a Close frame is answered with one of ours, which completes the closing handshake.
    (_State.OPEN, _Event.RECEIVE_CLOSE): _State.CLOSED,
    # Section 7.1.7, "Fail the WebSocket Connection": our Close frame says which rule, and nothing more is read.
    (_State.OPEN, _Event.RECEIVE_INVALID): _State.CLOSED,
    (_State.OPEN, _Event.STREAM_ENDED): _State.CLOSED,
    (_State.CLOSING, _Event.RECEIVE): _State.CLOSING,
    (_State.CLOSING, _Event.RECEIVE_CLOSE): _State.CLOSED,
    (_State.CLOSING, _Event.RECEIVE_INVALID): _State.CLOSED,
    (_State.CLOSING, _Event.STREAM_ENDED): _State.CLOSED,
}


@attrs.frozen
class CloseFrame:
    """The content of a Close frame (RFC 6455 section 5.5.1)."""

    code: int
    """1005 means a frame without a code (section 7.1.5)."""
    reason: str = ""

    def encoded(self) -> bytes:
        """The payload: empty without a code, else the code and as much of the reason as there is room for."""
        if self.code == NO_STATUS:
            return b""
        reason = self.reason.encode()
        if len(reason) > _LONGEST_REASON:
            reason = reason[:_LONGEST_REASON].decode(errors="ignore").encode()
        return struct.pack("!H", self.code) + reason


class Pings:
    """The pings of one side, counted: each carries its number, which the peer's pong repeats (section 5.5.3)."""

    __slots__ = ("answered", "queued", "sent")

    def __init__(self) -> None:
        self.queued = self.sent = self.answered = 0

    def pong(self, payload: bytes) -> None:
        """Takes a pong; an unsolicited one is allowed (section 5.5.3)."""
        number = int.from_bytes(payload) if len(payload) == _PING_BYTES else 0
        if self.answered < number <= self.sent:
            self.answered = number


class WebSocketProtocol:
    """One side of a connection, from ``CONNECTING``; `opened` says that the handshake is made.

    Args:
        client: whether this is the client's side, which masks what it sends and takes nothing masked (section 5.1).
        max_message_bytes: the longest message that is taken; a longer one is a broken rule with the code 1009.
        close_code: what `queue_close` says.
        account: is charged for a message that has come in part; over a limit of it the connection is closed with 1013.
    """

    __slots__ = (
        "_close_code",
        "_close_is_queued",
        "_decoder",
        "_fragments",
        "_is_client",
        "_pong",
        "_unread",
        "our_close",
        "peer_close",
        "pings",
        "state",
        "violation",
    )

    def __init__(
        self,
        *,
        client: bool,
        max_message_bytes: int,
        close_code: int = NORMAL,
        account: Account | None = None,
    ) -> None:
        self._close_code = close_code
        self._is_client = client
        # There is one while a frame is read that `_text_frame` did not take.
        self._decoder: FrameDecoder | None = None
        # What is left for the next turn.
        self._unread = b""
        self._fragments = Fragments(max_message_bytes, account)
        self._pong: bytes | None = None
        self._close_is_queued = False
        self.pings = Pings()
        self.state = WebSocketState.CONNECTING
        self.our_close: CloseFrame | None = None
        """The Close frame that we have queued or sent, once there is one."""
        self.peer_close: CloseFrame | None = None
        """The peer's Close frame, once it has come; the reason is cut to 120 characters."""
        self.violation: str | None = None
        """The rule that the peer broke, once it has; ``our_close`` has the code, if none was sent before."""

    def __repr__(self) -> str:
        return f"<WebSocketProtocol {'client' if self._is_client else 'server'} {self.state.value}>"

    @property
    def has_rest(self) -> bool:
        """Whether bytes are left that `receive_rest` has to look at."""
        return bool(self._unread)

    def opened(self) -> None:
        """Says that the opening handshake is made."""
        self._advance(WebSocketEvent.OPENED)

    # -- receiving -------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[bytes]:
        """Takes bytes of the stream, ``b""`` for its end, and returns the messages that they complete.

        It looks at `FRAMES_IN_A_TURN` frames at most, and `receive_rest` at those that are left.

        Messages come in order and are valid UTF-8. Never raises for what a peer sends: a broken rule is `violation`.
        """
        if not data:
            if self._allows(WebSocketEvent.STREAM_ENDED):
                self._advance(WebSocketEvent.STREAM_ENDED)
            return []
        if not self._allows(WebSocketEvent.RECEIVE):
            return []
        self._unread += data
        return self.receive_rest()

    def receive_rest(self) -> list[bytes]:
        """Returns further messages of bytes that were taken before, as `receive_data` does, while `has_rest`."""
        messages: list[bytes] = []
        data, at = self._unread, 0
        self._unread = b""
        try:
            for _ in range(FRAMES_IN_A_TURN):
                if self.state is WebSocketState.CLOSED:
                    break
                if self._decoder is None and (text := _text_frame(data, at, masked=not self._is_client)):
                    payload, at = text
                    message = self._take_text(payload)
                else:
                    frame, data, at = *self._decode(data[at:]), 0
                    if frame is None:
                        break
                    message = self._take_frame(frame)
                if message is not None:
                    messages.append(message)
            else:
                self._unread = data[at:] if self.state is not WebSocketState.CLOSED else b""
        except ParseFailed as error:
            self._fail(CloseFrame(int(error.code), str(error)[:_REASON_CHARACTERS]))
        return messages

    def _decode(self, data: bytes) -> tuple[WireFrame | None, bytes]:
        """Has wsproto read a frame, or what has come of it; returns that, and what is behind the frame."""
        if (decoder := self._decoder) is None:
            decoder = self._decoder = FrameDecoder(self._is_client)
        decoder.receive_bytes(data)
        frame = decoder.process_buffer()
        if frame is None or not frame.frame_finished:
            return frame, b""
        self._decoder = None
        return frame, bytes(decoder.buffer.consume_at_most(len(decoder.buffer)))

    def _take_text(self, payload: bytes) -> bytes | None:
        if self.state is WebSocketState.OPEN:
            return self._take_fragment(Opcode.TEXT, payload, finished=True)
        return None

    def _take_frame(self, frame: WireFrame) -> bytes | None:
        opcode, payload = frame.opcode, cast(bytes, frame.payload)
        if opcode < Opcode.CLOSE:
            if self.state is WebSocketState.OPEN:
                return self._take_fragment(opcode, payload, frame.frame_finished and frame.message_finished)
        elif opcode is Opcode.CLOSE:
            self._take_close(payload)
        elif opcode is Opcode.PING and self.state is WebSocketState.OPEN:
            # Section 5.5.3: of several pings that wait for an answer only the last one needs it.
            self._pong = payload
        elif opcode is Opcode.PONG:
            self.pings.pong(payload)
        return None

    def _take_fragment(self, opcode: Opcode, payload: bytes, finished: bool) -> bytes | None:
        """Takes a frame of a message, or a piece of a frame; returns the message if this is its end (section 5.4)."""
        fragments = self._fragments
        if opcode is Opcode.CONTINUATION:
            if fragments.decoder is None:
                raise ParseFailed("unexpected CONTINUATION")
        elif fragments.decoder is not None:
            raise ParseFailed(f"expected CONTINUATION, got {opcode!r}")
        elif opcode is Opcode.BINARY:
            # MCP's messages are JSON text; section 7.4.1 has a code for data that cannot be accepted.
            raise ParseFailed("binary messages are not taken, only text", CloseReason.UNSUPPORTED_DATA)
        if len(fragments.data) + len(payload) > fragments.limit:
            raise ParseFailed(f"a message may have {fragments.limit} bytes", CloseReason.MESSAGE_TOO_BIG)
        # Section 8.1: text that is not UTF-8 fails the connection.
        try:
            if not finished or fragments.decoder is not None:
                return fragments.add(payload, finished)
            if not payload.isascii():
                payload.decode()
        except UnicodeDecodeError as error:
            raise ParseFailed(str(error), CloseReason.INVALID_FRAME_PAYLOAD_DATA) from None
        return payload

    def _take_close(self, payload: bytes) -> None:
        close = _read_close(payload)
        self.peer_close = CloseFrame(close.code, close.reason[:_REASON_CHARACTERS])
        if self.our_close is None:
            # Section 5.5.1: the answer says the code that it answers.
            self._queue(close)
        self._advance(WebSocketEvent.RECEIVE_CLOSE)

    def _fail(self, close: CloseFrame) -> None:
        self.violation = close.reason
        self._fragments.drop()
        if self.our_close is None:
            self._queue(close)
        self._advance(WebSocketEvent.RECEIVE_INVALID)

    # -- sending ---------------------------------------------------------------------------------------------------

    def encode_message(self, data: bytes) -> bytes:
        """Returns the frame of one text message; ``data`` is UTF-8.

        Raises:
            LocalProtocolError: in any state but ``OPEN``.
        """
        self._advance(WebSocketEvent.SEND)
        return _encoded(_FINAL_TEXT, data, masked=self._is_client)

    def queue_ping(self) -> None:
        """Has `control_to_send` return a ping. Does nothing in any state but ``OPEN``."""
        if self._allows(WebSocketEvent.SEND):
            self.pings.queued += 1

    def queue_close(self) -> None:
        """Begins the closing handshake; pings and pongs that are still queued are dropped.

        Raises:
            LocalProtocolError: in any state but ``OPEN``.
        """
        self._advance(WebSocketEvent.SEND_CLOSE)
        self._queue(CloseFrame(self._close_code))

    @property
    def has_control_to_send(self) -> bool:
        """Whether `control_to_send` would return any bytes."""
        pings = self.pings
        return self._close_is_queued or pings.queued != pings.sent or self._pong is not None

    def control_to_send(self) -> bytes:
        """Returns the control frames that are queued, to be written in front of every message that is encoded later."""
        if self._close_is_queued:
            assert self.our_close is not None
            self._close_is_queued = False
            return self._control(Opcode.CLOSE, self.our_close.encoded())
        data = b""
        if self._pong is not None:
            data = self._control(Opcode.PONG, self._pong)
            self._pong = None
        pings = self.pings
        if pings.queued != pings.sent:
            # One answer is enough for several.
            data += self._control(Opcode.PING, pings.queued.to_bytes(_PING_BYTES))
            pings.sent = pings.queued
        return data

    def _queue(self, close: CloseFrame) -> None:
        self.our_close = close
        self._close_is_queued = True
        self._pong, self.pings.queued = None, self.pings.sent

    def _control(self, opcode: Opcode, payload: bytes) -> bytes:
        # Section 5.5: a control frame is never fragmented.
        return _encoded(0x80 | opcode, payload, masked=self._is_client)

    # -- the state -------------------------------------------------------------------------------------------------

    def _allows(self, event: WebSocketEvent) -> bool:
        return (self.state, event) in NEXT_STATE

    def _advance(self, event: WebSocketEvent) -> None:
        try:
            self.state = NEXT_STATE[self.state, event]
        except KeyError:
            raise LocalProtocolError(f"this WebSocket is {self.state.value}: {event.value}") from None


def _read_close(payload: bytes) -> CloseFrame:
    """Reads the payload of a Close frame. Raises `ParseFailed` for one that section 5.5.1 or 7.4 does not allow."""
    if not payload:
        return CloseFrame(NO_STATUS)
    if len(payload) == 1:
        raise ParseFailed("CLOSE with 1 byte payload")
    code: int = struct.unpack("!H", payload[:2])[0]
    if not 1000 <= code <= 4999 or (code <= _LAST_DEFINED_CODE and code not in _DEFINED_CODES):
        raise ParseFailed(f"CLOSE with a code that must not be sent: {code}")
    try:
        return CloseFrame(code, payload[2:].decode())
    except UnicodeDecodeError as error:
        raise ParseFailed(
            f"Error decoding CLOSE reason: {error}", CloseReason.INVALID_FRAME_PAYLOAD_DATA
        ) from None


def _encoded(first: int, payload: bytes, *, masked: bool) -> bytes:
    """Returns one frame (section 5.2). wsproto makes frames too, but wants text as `str`."""
    size = len(payload)
    flag = _MASKED if masked else 0
    if size <= _SHORT:
        head = bytes((first, flag | size))
    elif size <= _TWO_BYTES:
        head = struct.pack("!BBH", first, flag | _SIZE_IN_TWO_BYTES, size)
    else:
        head = struct.pack("!BBQ", first, flag | _SIZE_IN_EIGHT_BYTES, size)
    if not masked:
        return head + payload
    # Section 5.3: a fresh key for every frame, from a strong source of entropy.
    key = os.urandom(_KEY_BYTES)
    return b"".join((head, key, _masked(payload, key)))


def _text_frame(data: bytes, at: int, *, masked: bool) -> tuple[bytes, int] | None:
    """Reads the frame at ``at`` if it is an unfragmented text frame in whole, short, and masked as it has to be.

    Returns its payload without the mask, and where it ends; ``None`` for anything else, which wsproto shall read.
    """
    begin = at + 2
    if len(data) < begin or data[at] != _FINAL_TEXT or (data[at + 1] >= _MASKED) is not masked:
        return None
    size = data[at + 1] & ~_MASKED
    if size > _SHORT:
        begin += 2
        if (
            size != _SIZE_IN_TWO_BYTES
            or not _SHORT < (size := int.from_bytes(data[begin - 2 : begin])) <= _ONE_NUMBER
        ):
            return None
    if masked:
        begin += _KEY_BYTES
    end = begin + size
    if len(data) < end:
        return None
    payload = data[begin:end]
    return (_masked(payload, data[begin - _KEY_BYTES : begin]) if masked else payload), end


def _masked(payload: bytes, key: bytes) -> bytes:
    """Masks a payload, or undoes that (section 5.3)."""
    size = len(payload)
    if size > _ONE_NUMBER:
        return bytes(XorMaskerSimple(key).process(bytearray(payload)))
    repeated = (key * (size // _KEY_BYTES + 1))[:size]
    return (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size)


class Fragments:
    """The pieces of the message that is being received, its longest size, and what is charged for them."""

    __slots__ = ("account", "data", "decoder", "limit")

    def __init__(self, limit: int, account: Account | None) -> None:
        self.limit = limit
        self.account = account
        # One buffer: a list of pieces would cost a hundred bytes for each one-letter piece that a peer sends.
        self.data = bytearray()
        # There is one while more is to come.
        self.decoder: codecs.IncrementalDecoder | None = None

    def add(self, payload: bytes, finished: bool) -> bytes | None:
        """Takes a piece and returns the message if this was the last one.

        Raises:
            ParseFailed: There is no room for the message; the connection is to be closed with 1013.
            UnicodeDecodeError: The text is not UTF-8.
        """
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.decoder.decode(payload, finished)
        self.data += payload
        if finished:
            message = bytes(self.data)
            self.drop()
            return message
        if (overloaded := weigh(self.account, len(self.data))) is not None:
            raise ParseFailed(overloaded.message, CloseReason.TRY_AGAIN_LATER)
        return None

    def drop(self) -> None:
        """Forgets the pieces, and takes back what is charged for them."""
        self.data, self.decoder = bytearray(), None
        if self.account is not None:
            self.account.keep(0)
