"""A request that another listener forwards to this one, which holds its session; and the response to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.principal import Principal
from mcp_actors.supervision import FORWARDED_ANSWER, HTTP_RESPONSE, start
from mcp_transports.http.h1.errors import ResponseStateError
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response, Successor
from mcp_transports.http.server.forwarding.messages import (
    CHUNK,
    WINDOW,
    Begun,
    BodyPart,
    CutOff,
    Head,
    Message,
    Piece,
    PrincipalParts,
    TakenState,
)

__all__ = ["ForwardedResponse", "TakenRequest", "TakingListener"]

# Unsent bytes of an answer from which on its writer waits, and over which it is cut off, as `HttpLimits.write_buffer`
# and `HttpLimits.max_buffered` by default.
WRITE_BUFFER = CHUNK
MAX_BUFFERED = 8 * 1024 * 1024
# Seconds before a message is sent again that could not be sent. The request is cut off if that takes too long.
_RETRY_AFTER = 0.5

Headers = Iterable[tuple[str, str]]


class TakingListener(Protocol):
    """The attributes and methods of a listener that a request uses which it has taken."""

    address: str
    nursery: trio.Nursery

    async def send(self, address: str, message: Message) -> bool: ...

    def forget_taken(self, taken: TakenRequest) -> None: ...


class TakenRequest:
    """A request that was forwarded to this listener, until its answer is handed over or nobody waits for it.

    Args:
        listener: The listener that holds the session.
        begun: The message with which it began.
    """

    __slots__ = (
        "_body",
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

    def __repr__(self) -> str:
        return f"<TakenRequest {self.begun.number} from {self.begun.source}: {self.response!r}>"

    @property
    def key(self) -> tuple[str, int]:
        """The mailbox of the listener that forwards it, and its number there."""
        return self.begun.source, self.begun.number

    @property
    def state(self) -> TakenState:
        """What the other side is told from time to time."""
        return TakenState(self.begun.number, self.response.pieces, self.received)

    def add(self, part: BodyPart) -> bool:
        """Takes a part of the body, and returns whether it was the next one. One that came before is ignored."""
        if part.sequence <= self._parts:
            return True
        if part.sequence != self._parts + 1:
            return False
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

    __slots__ = (
        "_beginning",
        "_changed",
        "_ending",
        "_gone",
        "_listener",
        "_pending",
        "_scopes",
        "_sending",
        "_sent",
        "_taken",
        "_unsent",
        "pieces",
        "room",
    )

    def __init__(self, listener: TakingListener, taken: TakenRequest) -> None:
        self._state = "new"
        self._closes = False
        self.on_gone = None
        self._listener = listener
        self._taken = taken
        self._gone = self._sending = self._ending = False
        self._beginning: tuple[int, str | None, list[tuple[str, str]]] | None = None
        self._pending: deque[bytes] = deque()
        self._unsent = self._sent = 0
        self._changed = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self.pieces = -1
        """The number of the last part of the answer that was handed over; -1 before its head."""
        self.room = WINDOW
        """Bytes of the answer that the other side takes now."""

    def __repr__(self) -> str:
        return (
            f"<ForwardedResponse {self._state}{' gone' if self._gone else ''}, {self._unsent} bytes unsent>"
        )

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def full(self) -> bool:
        return self._unsent > WRITE_BUFFER

    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        """See `Response.answer`."""
        self._begin(status, content_type, headers)
        self._state = "ended"
        self._put(body, ending=True)

    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        """See `Response.start`."""
        self._begin(status, content_type, headers)
        self._state = "streaming"
        self._put(first)

    def write(self, data: bytes) -> None:
        """See `Response.write`."""
        self._must_stream()
        if not self._gone and self._unsent and self._unsent + len(data) > MAX_BUFFERED:
            log.info(
                "a peer reads too slowly and is dropped", peer=self._taken.begun.peer, unsent=self._unsent
            )
            self.lose(tell=True)
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone")
        self._put(data)

    async def drained(self) -> None:
        """See `Response.drained`."""
        await trio.lowlevel.checkpoint()
        while self.full and not self._gone:
            await self._wait()
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def end(self, last: bytes = b"") -> None:
        """See `Response.end`."""
        self._must_stream()
        self._state = "ended"
        self._put(last, ending=True)

    def abort(self) -> None:
        """See `Response.abort`."""
        if self._state != "ended":
            self._state = "ended"
            self.lose(tell=True)

    def upgrade(self, successor: Successor) -> bool:
        """Returns false: another protocol belongs to its connection."""
        return False

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        """See `Response.run`."""
        if not self._gone:
            about = self._taken.begun.peer
            start(
                self._listener.nursery,
                HTTP_RESPONSE,
                self._run_scoped,
                fn,
                about=about,
                on_crash=lambda _: self.fail(),
            )

    async def _run_scoped(self, fn: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as scope:
            if self._gone:
                return
            self._scopes.add(scope)
            try:
                await self._run(fn)
            finally:
                self._scopes.discard(scope)

    def _begin(self, status: int, content_type: str | None, headers: Headers) -> None:
        if self._state != "new":
            raise ResponseStateError("this request was answered already")
        self._beginning = status, content_type, list(headers)

    # -- sending ----------------------------------------------------------------------------------------------------

    def consumed(self, total: int) -> None:
        """Notes how many bytes of the answer the client has taken."""
        self.room = max(self.room, total + WINDOW)
        self._changed.set()

    def lose(self, *, tell: bool) -> None:
        """Ends the answer where it is: its client has left, or is told that it is cut off if ``tell`` is true."""
        if self._gone:
            return
        self._gone = True
        self._pending.clear()
        self._unsent = 0
        self._changed.set()
        for scope in tuple(self._scopes):
            scope.cancel(reason="the client of a forwarded request left")
        if tell:
            self._send_later()
        elif not self._sending:
            self._listener.forget_taken(self._taken)
        self.peer_left(self._taken.begun.peer)

    def _put(self, data: bytes, *, ending: bool = False) -> None:
        if self._gone:
            return
        self._ending = ending
        for start_of_chunk in range(0, len(data), CHUNK):
            self._pending.append(data[start_of_chunk : start_of_chunk + CHUNK])
        self._unsent += len(data)
        self._send_later()

    def _send_later(self) -> None:
        self._changed.set()
        if not self._sending:
            self._sending = True
            start(
                self._listener.nursery,
                FORWARDED_ANSWER,
                self._send_all,
                about=self._taken.begun.source,
                on_crash=lambda _: self.lose(tell=False),
            )

    async def _send_all(self) -> None:
        """Sends what is there, in order, until nothing is left. It runs while there is something to send."""
        listener, taken = self._listener, self._taken
        told = False
        try:
            while not told and (message := await self._next()) is not None:
                told = not await self._hand_over(message) or isinstance(message, CutOff)
                if isinstance(message, Head | Piece) and message.last:
                    told = True
            if told and not self._gone and self._state != "ended":
                self.lose(tell=False)
        finally:
            self._sending = False
            if told or self._gone:
                listener.forget_taken(taken)

    async def _hand_over(self, message: Message) -> bool:
        while True:
            try:
                handed = await self._listener.send(self._taken.begun.source, message)
            except SharedStateUnavailable:
                # It is not known whether it arrived; the other side ignores it the second time.
                if self._gone:
                    return False
                await trio.sleep(_RETRY_AFTER)
            else:
                if isinstance(message, Head | Piece):
                    self.pieces += 1
                return handed

    async def _next(self) -> Message | None:
        """Returns the next message, ``None`` if there is none now. It waits for room."""
        source, number = self._listener.address, self._taken.begun.number
        while not self._gone:
            sent = self._sent
            if self._pending and sent >= self.room:
                await self._wait()
                continue
            if not self._pending and not self._ending and self._beginning is None:
                return None
            body = self._take(min(CHUNK, max(0, self.room - sent)))
            last = self._ending and not self._pending
            head, self._beginning = self._beginning, None
            if head is not None:
                return Head(source, number, head[0], head[1], head[2], body, last)
            return Piece(source, number, self.pieces + 1, body, last)
        return CutOff(source, number)

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
        self._unsent -= len(body)
        self._sent += len(body)
        return body

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()
