"""The messages between two listeners: a forwarded request, its answer, and what keeps both sides in step.

A message is MessagePack. Every process that can write to a mailbox is trusted as the nodes are; the form and the
bounds of a message are checked all the same, because two nodes may run different versions. An `Outbox` sends them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio

from mcp_actors.abc import Bus
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.logging import log

__all__ = [
    "CHUNK",
    "WINDOW",
    "Begun",
    "BodyPart",
    "ClientGone",
    "Consumed",
    "CutOff",
    "ForLeft",
    "Head",
    "InboundState",
    "MalformedForward",
    "Message",
    "NotTaken",
    "OpenRequests",
    "OutboundState",
    "Outbox",
    "Piece",
    "PrincipalParts",
    "Received",
    "TakenOver",
    "Unasked",
    "Unknown",
    "decode_message",
    "encode_message",
]

# Bytes of a body that one message carries at most: little beside what a node holds, and enough that the cost of a
# message is spread over it.
CHUNK = 256 * 1024
# Bytes of a body that may be on their way without having been consumed by the other side.
WINDOW = 4 * CHUNK
# Messages that wait to be sent and do not belong to a body. Over it they are dropped, and the next `OpenRequests`
# repeats what they said.
MAX_POSTED = 10_000


class PrincipalParts(msgspec.Struct, frozen=True, array_like=True):
    """The caller that the forwarding node has authenticated. Its token stays there."""

    subject: str
    issuer: str | None
    client: str | None
    scopes: list[str]
    claims: dict[str, object]
    expires_at: float | None


class Begun(msgspec.Struct, frozen=True, array_like=True, tag=1, kw_only=True):
    """A request that is forwarded, with the first part of its body."""

    source: str
    """The mailbox of the listener that forwards it, and that gets the answer."""
    number: int
    """Its number there."""
    method: str
    path: str
    query: str
    headers: dict[str, str]
    peer: str
    secure: bool
    http_sse: bool
    """Whether it is a POST of HTTP+SSE."""
    principal: PrincipalParts | None
    answer_headers: list[tuple[str, str]]
    """The headers that every answer to it carries, which the forwarding node has decided on."""
    body: bytes
    last: bool
    """Whether that is the whole body."""
    left: bool = False
    """Whether it is for what the receiver has left of a session that it has handed over."""


class BodyPart(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A further part of a request's body."""

    source: str
    number: int
    sequence: int
    """1 for the first part behind `Begun`, so that each is taken exactly once."""
    body: bytes
    last: bool


class Head(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The beginning of an answer, with the first part of its body."""

    source: str
    number: int
    status: int
    content_type: str | None
    headers: list[tuple[str, str]]
    body: bytes
    last: bool
    """Whether that is the whole body of an answer that is not a stream."""


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A further part of an answer."""

    source: str
    number: int
    sequence: int
    """1 for the first part behind `Head`."""
    body: bytes
    last: bool


class Consumed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The number of bytes of an answer that the forwarding node has given to its client so far."""

    source: str
    number: int
    total: int


class ClientGone(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The client of some requests has left and does not wait for their answers."""

    source: str
    numbers: list[int]


class CutOff(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """An answer ends here, incomplete."""

    source: str
    number: int


class OutboundState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a request, as the listener knows it that forwards the request."""

    number: int
    parts: int
    """The `BodyPart.sequence` of the last part that was handed over."""
    consumed: int
    """As `Consumed.total`."""


class InboundState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a request, as the listener knows it that has taken the request."""

    number: int
    pieces: int
    """The `Piece.sequence` of the last part of the answer that was handed over: 0 for its head, -1 before that."""
    received: int
    """As `Received.total`."""


class OpenRequests(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A sign of life, with what one listener has open with the other, so that a message that was lost is noticed."""

    source: str
    sent: list[OutboundState]
    """The requests that were forwarded to the receiver."""
    taken: list[InboundState]
    """The receiver's requests that were taken."""


class Unknown(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Requests that were never taken here, or have ended: messages about them were lost."""

    source: str
    numbers: list[int]


class Received(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The number of bytes of a request's body that have arrived so far."""

    source: str
    number: int
    total: int


class NotTaken(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A request was not taken: nothing of it was done, and nothing will be."""

    source: str
    number: int


class TakenOver(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The sender goes on with a session that the receiver has handed over, and still has calls of."""

    source: str
    session: str


class ForLeft(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Messages of a client that may be about a call which the receiver has left of a session; or the session's end."""

    source: str
    session: str
    body: bytes
    """Empty for the end."""
    headers: dict[str, str]


class Unasked(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A message of a call that the sender has left of a session, for the stream that belongs to no request."""

    source: str
    session: str
    data: bytes


Message = (
    Begun
    | BodyPart
    | Head
    | Piece
    | Consumed
    | ClientGone
    | CutOff
    | OpenRequests
    | Unknown
    | Received
    | NotTaken
    | TakenOver
    | ForLeft
    | Unasked
)


_encoder = msgspec.msgpack.Encoder()


_decoder = msgspec.msgpack.Decoder(Message)


class MalformedForward(Exception):
    """A mailbox contains something else than a message of a listener."""


def encode_message(message: Message) -> bytes:
    """Returns the bytes of a message.

    Raises:
        TypeError: The claims of its principal cannot be written as JSON.
    """
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """Returns the message that some bytes are.

    Raises:
        MalformedForward: They are none, or it is over a bound.
    """
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedForward(str(error)) from error
    if isinstance(message, Begun | BodyPart | Head | Piece) and len(message.body) > CHUNK:
        raise MalformedForward(f"it carries {len(message.body)} bytes: the limit is {CHUNK}")
    return message


class Outbox:
    """Sends the messages of one listener.

    Args:
        bus: Carries them.
        on_gone: Called with a mailbox whose node is gone.
    """

    def __init__(self, bus: Bus, on_gone: Callable[[str], None]) -> None:
        self._bus = bus
        self._on_gone = on_gone
        self._posted_end, self._posted = trio.open_memory_channel[tuple[str, Message]](MAX_POSTED)
        # What is posted is not in the channel's buffer any more once it was handed to the task that sends it.
        self._unsent = 0
        self._sent = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<Outbox {self._unsent} wait>"

    def post(self, address: str, message: Message) -> None:
        """Has a message sent soon. Never waits; when too many wait it is dropped."""
        try:
            self._posted_end.send_nowait((address, message))
            self._unsent += 1
        except trio.WouldBlock:
            log.warning("messages about forwarded requests are dropped", waiting=MAX_POSTED)

    async def send(self, address: str, message: Message) -> bool:
        """Hands a message to a mailbox, and returns whether its node was there, and takes new requests if it is one.

        Raises:
            SharedStateUnavailable: It may have been handed over, or not.
            TypeError: It cannot be encoded.
        """
        begins = isinstance(message, Begun) and not message.left
        return await self._bus.send(address, encode_message(message), begins=begins)

    async def run(self) -> None:
        """Sends what was posted, until cancelled."""
        async for address, message in self._posted:
            try:
                if not await self.send(address, message):
                    self._on_gone(address)
            except SharedStateUnavailable as error:
                log.debug("a message about forwarded requests is lost", reason=error.cause)
            finally:
                self._unsent -= 1
                self._sent.unpark_all()

    async def until_sent(self) -> None:
        """Waits until everything is sent that was posted."""
        while self._unsent:
            await self._sent.park()
