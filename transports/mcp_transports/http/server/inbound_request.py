"""A request that another listener forwards to this one, which holds its session; and the response to it.

The answer goes back in messages: in order, and as far as the other listener has room (`AnswerSender`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import FORWARDED_ANSWER, HTTP_RESPONSE
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Headers, Response, Successor
from mcp_transports.http.server.forwarded_messages import (
    CHUNK,
    WINDOW,
    Begun,
    BodyPart,
    CutOff,
    Head,
    InboundState,
    Message,
    NotTaken,
    Outbox,
    Piece,
    PrincipalParts,
)

__all__ = ["AnswerSender", "Beginning", "ForwardedResponse", "InboundRequest", "TakingListener"]

# Seconds before a message is sent again that could not be sent. The request is lost if that takes too long.
_RETRY_AFTER = 0.5
Beginning = tuple[int, str | None, list[tuple[str, str]]]
"""The status of an answer, the type of its content, and its further headers."""
# Unsent bytes of an answer from which on its writer waits, and over which it is cut off, as `HttpLimits.write_buffer`
# and `HttpLimits.max_buffered` by default.
WRITE_BUFFER = CHUNK
MAX_BUFFERED = 8 * 1024 * 1024


class TakingListener(Protocol):
    """The part of a listener that a request uses which it has taken."""

    address: str
    nursery: trio.Nursery
    outbox: Outbox

    def forget_taken(self, taken: InboundRequest) -> None: ...


class InboundRequest:
    """A request that was forwarded to this listener, until its answer is handed over or its client has left.

    Args:
        listener: The listener that holds the session.
        begun: The message with which it began.
    """

    __slots__ = (
        "_body",
        "_is_complete",
        "_parts",
        "begun",
        "held",
        "received",
        "response",
    )

    def __init__(self, listener: TakingListener, begun: Begun) -> None:
        self.begun = begun
        self.response = ForwardedResponse(listener, self)
        self.held = 0
        """Bytes of its body that are charged for it."""
        self.received = len(begun.body)
        """Bytes of its body that have arrived."""
        self._body = [begun.body]
        self._parts = 0
        # Nothing belongs behind the last part, and a request is served once.
        self._is_complete = begun.last

    def __repr__(self) -> str:
        return f"<InboundRequest {self.begun.number} from {self.begun.source}: {self.response!r}>"

    @property
    def key(self) -> tuple[str, int]:
        """The mailbox of the listener that forwards it, and its number there."""
        return self.begun.source, self.begun.number

    @property
    def state(self) -> InboundState:
        """Its state, for the other side to compare."""
        return InboundState(self.begun.number, self.response.sender.pieces, self.received)

    def add(self, part: BodyPart) -> bool:
        """Takes a part of the body, and returns whether it was the next one. One that came before is ignored."""
        if part.sequence <= self._parts:
            return True
        if part.sequence != self._parts + 1 or self._is_complete:
            return False
        self._is_complete = part.last
        self._parts += 1
        self._body.append(part.body)
        self.received += len(part.body)
        return True

    def is_behind(self, parts: int) -> bool:
        """Whether not all parts of the body have arrived that were handed over."""
        return parts > self._parts

    def request(self) -> Request:
        """Returns the request. Called once, when its body is complete."""
        begun, body = self.begun, b"".join(self._body)
        self._body.clear()
        request = Request(
            begun.method,
            begun.path,
            begun.path,
            begun.query,
            begun.headers,
            body,
            "1.1",
            True,
            peer=begun.peer,
            secure=begun.secure,
        )
        request.principal = self.principal
        return request

    @property
    def principal(self) -> Principal | None:
        """The caller, as the forwarding node has authenticated it."""
        parts = self.begun.principal
        return None if parts is None else _principal(parts)


def _principal(parts: PrincipalParts) -> Principal:
    return Principal(
        parts.subject, parts.issuer, parts.client, frozenset(parts.scopes), parts.claims, parts.expires_at
    )


class ForwardedResponse(Response):
    """The answer to a request that was taken: sent in messages, as far as the other side has room.

    Its methods do what those of `Response` do. No bytes of HTTP are made: the forwarding listener makes them.
    """

    __slots__ = ("_gone", "_listener", "_scopes", "_sending", "_taken", "sender")

    def __init__(self, listener: TakingListener, taken: InboundRequest) -> None:
        self._state = "new"
        self._closes = False
        self.on_gone = None
        self._listener = listener
        self._taken = taken
        self._gone = self._sending = False
        self._scopes: set[trio.CancelScope] = set()
        begun = taken.begun
        self.sender = AnswerSender(listener.outbox, listener.address, begun.source, begun.number)

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def full(self) -> bool:
        return self.sender.unsent > WRITE_BUFFER

    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        self._begin(status, content_type, headers)
        self._state = "ended"
        self._put(body, last=True)

    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        self._begin(status, content_type, headers)
        self._state = "streaming"
        self._put(first)

    def write(self, data: bytes) -> None:
        self._must_stream()
        unsent = self.sender.unsent
        if unsent and unsent + len(data) > MAX_BUFFERED:
            log.info("a peer reads too slowly and is dropped", peer=self._taken.begun.peer, unsent=unsent)
            self.lose(tell=True)
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone")
        if data:
            self._put(data)

    async def drained(self) -> None:
        await trio.lowlevel.checkpoint()
        await self.sender.drained(WRITE_BUFFER)
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def end(self, last: bytes = b"") -> None:
        self._must_stream()
        self._state = "ended"
        self._put(last, last=True)

    def abort(self) -> None:
        if self._state != "ended":
            self._state = "ended"
            self.lose(tell=True)

    def upgrade(self, successor: Successor) -> bool:
        """Returns false: another protocol belongs to its connection."""
        return False

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        if not self._gone:
            nursery, about = self._listener.nursery, self._taken.begun.peer
            start(nursery, HTTP_RESPONSE, self._run_scoped, fn, about=about, on_crash=lambda _: self.fail())

    async def _run_scoped(self, fn: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as scope:
            if self._gone:
                return
            self._scopes.add(scope)
            try:
                await self._run(fn)
            finally:
                self._scopes.discard(scope)

    def decline(self) -> None:
        """Has the other side learn that the request was not taken, because its session is elsewhere."""
        self._state, self._gone = "ended", True
        begun = self._taken.begun
        self._listener.outbox.post(begun.source, NotTaken(self._listener.address, begun.number))
        self._listener.forget_taken(self._taken)

    def lose(self, *, tell: bool) -> None:
        """Ends the answer where it is, because its client has left; if ``tell`` is true, the client learns of it."""
        if self._gone:
            return
        self._gone = True
        self.sender.cut_off()
        for scope in tuple(self._scopes):
            scope.cancel(reason="the client of a forwarded request left")
        if tell:
            self._send()
        elif not self._sending:
            self._listener.forget_taken(self._taken)
        self.peer_left(self._taken.begun.peer)

    def _begin(self, status: int, content_type: str | None, headers: Headers) -> None:
        self._must_be_new()
        self.sender.begin((status, content_type, list(headers)))

    def _put(self, data: bytes, *, last: bool = False) -> None:
        if not self._gone:
            self.sender.put(data, last=last)
            self._send()

    def _send(self) -> None:
        if not self._sending:
            self._sending = True
            about = self._taken.begun.source
            start(
                self._listener.nursery,
                FORWARDED_ANSWER,
                self._send_all,
                about=about,
                on_crash=lambda _: self.lose(tell=False),
            )

    async def _send_all(self) -> None:
        ended = True
        try:
            ended = await self.sender.run()
        finally:
            self._sending = False
            if ended:
                self._listener.forget_taken(self._taken)
                if self._state != "ended":
                    self.lose(tell=False)


class AnswerSender:
    """Sends one answer.

    Args:
        outbox: Sends the messages.
        own: The mailbox of the listener that answers.
        other: The mailbox of the listener that forwarded the request.
        number: The request's number there.
    """

    __slots__ = (
        "_beginning",
        "_changed",
        "_end",
        "_number",
        "_other",
        "_outbox",
        "_own",
        "_pending",
        "_sent",
        "_window_end",
        "pieces",
        "unsent",
    )

    def __init__(self, outbox: Outbox, own: str, other: str, number: int) -> None:
        self._outbox = outbox
        self._own = own
        self._other = other
        self._number = number
        self._beginning: Beginning | None = None
        self._pending: deque[bytes] = deque()
        # A `CutOff` is sent even when the client has left: the other side ignores what it does not know.
        self._end: CutOff | bool = False
        self._sent = 0
        self._window_end = WINDOW
        self._changed = trio.Event()
        self.pieces = -1
        """The number of the last part of the answer that was handed over; -1 before its head."""
        self.unsent = 0
        """Bytes that the other side has no room for yet, or that were given just now."""

    def begin(self, beginning: Beginning) -> None:
        """Begins the answer."""
        self._beginning = beginning

    def put(self, data: bytes, *, last: bool) -> None:
        """Adds to the answer, and ends it with ``data`` if that is the ``last`` part."""
        for first in range(0, len(data), CHUNK):
            self._pending.append(data[first : first + CHUNK])
        self.unsent += len(data)
        self._end = last
        self._changed.set()

    def cut_off(self) -> None:
        """Drops what is not sent, and ends the answer incomplete."""
        self._pending.clear()
        self.unsent = 0
        self._end = CutOff(self._own, self._number)
        self._changed.set()

    def consumed(self, total: int) -> None:
        """Notes how many bytes of the answer the client has taken."""
        self._window_end = max(self._window_end, min(total, self._sent) + WINDOW)
        self._changed.set()

    async def drained(self, limit: int) -> None:
        """Waits until no more than ``limit`` bytes are unsent, or the answer was cut off."""
        while self.unsent > limit:
            await self._wait()

    async def run(self) -> bool:
        """Sends what is there, and returns whether the answer has ended: sent, cut off, or without a receiver."""
        while True:
            if isinstance(self._end, CutOff):
                await self._hand_over(self._end)
                return True
            if self._pending and self._sent >= self._window_end:
                await self._wait()
            elif self._pending or self._end or self._beginning is not None:
                message = self._next()
                if not await self._hand_over(message) or message.last:
                    return True
            else:
                return False

    def _next(self) -> Head | Piece:
        body = self._take(min(CHUNK, self._window_end - self._sent))
        last = self._end is True and not self._pending
        beginning, self._beginning = self._beginning, None
        if beginning is None:
            return Piece(self._own, self._number, self.pieces + 1, body, last)
        status, content_type, headers = beginning
        return Head(self._own, self._number, status, content_type, headers, body, last)

    def _take(self, size: int) -> bytes:
        """Returns the next bytes, ``size`` at most."""
        taken: list[bytes] = []
        while self._pending and size:
            data = self._pending.popleft()
            if len(data) > size:
                self._pending.appendleft(data[size:])
                data = data[:size]
            taken.append(data)
            size -= len(data)
        body = taken[0] if len(taken) == 1 else b"".join(taken)
        self.unsent -= len(body)
        self._sent += len(body)
        self._changed.set()
        return body

    async def _hand_over(self, message: Message) -> bool:
        """Hands a message over, and returns whether its receiver was there."""
        while True:
            try:
                handed = await self._outbox.send(self._other, message)
            except SharedStateUnavailable:
                # It is not known whether it arrived; the other side ignores it the second time.
                if isinstance(self._end, CutOff):
                    return False
                await trio.sleep(_RETRY_AFTER)
            else:
                self.pieces += not isinstance(message, CutOff)
                return handed

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()
