"""A request that this listener forwards to the one that holds its session: the side of the client."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.forwarded_messages import (
    CHUNK,
    WINDOW,
    Begun,
    BodyPart,
    Consumed,
    CutOff,
    Head,
    NotTaken,
    OutboundState,
    Outbox,
    Piece,
    PrincipalParts,
)
from mcp_transports.http.server.responses import (
    EVENTS,
    HOLDER_LOST,
    SERVER_STOPPED,
    SERVER_STOPPING,
    shared_state_unavailable,
)

__all__ = ["OutboundRequest", "Outcome", "SendingListener"]

Outcome = Literal["answered", "gone", "declined", "lost"]
"""What became of a request that was forwarded; see `OutboundRequest.run`."""

# They prove who the caller is, to this node alone.
_KEPT_HERE = frozenset(("authorization", "cookie", "dpop", "proxy-authorization"))
# Bytes of an answer that are consumed before the other side is notified, so that few messages are needed.
_REPORTED_AFTER = WINDOW // 4


class SendingListener(Protocol):
    """The part of a listener that a request uses which it forwards."""

    address: str
    outbox: Outbox


class OutboundRequest:
    """One request that is forwarded. It runs in a task of its client's connection.

    Args:
        listener: The listener that forwards it.
        exchange: The request, and the response to its client.
        address: The mailbox of the listener that holds the session.
        number: Its number at this listener.
    """

    __slots__ = (
        "_arrived",
        "_buffered",
        "_changed",
        "_consumed",
        "_ends_stream",
        "_exchange",
        "_is_cut",
        "_listener",
        "_pieces",
        "_received",
        "address",
        "ended",
        "number",
        "parts",
    )

    def __init__(self, listener: SendingListener, exchange: HttpExchange, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.parts = -1
        """The number of the last part of the body that was handed over: 0 for the request itself, -1 before that."""
        self.ended = False
        """Whether the other side has nothing of it any more."""
        self._listener = listener
        self._exchange = exchange
        self._is_cut = self._ends_stream = False
        self._arrived: deque[Head | Piece | CutOff | NotTaken] = deque()
        self._changed = trio.Event()
        # Bytes of the answer that wait here, that its client took, and of the body that the other side has.
        self._buffered = self._consumed = self._received = 0
        # The last part of the answer that has arrived; -1 before its head.
        self._pieces = -1

    def __repr__(self) -> str:
        return f"<OutboundRequest {self.number} to {self.address}: {self._buffered} bytes wait>"

    @property
    def state(self) -> OutboundState:
        """Its state, for the other side to compare."""
        return OutboundState(self.number, self.parts, self._consumed)

    # -- messages of the other side; none of these waits ------------------------------------------------------------

    def decline(self) -> None:
        """Notes that the other side has not taken the request."""
        self._arrived.append(NotTaken(self.address, self.number))
        self._changed.set()

    def take(self, message: Head | Piece | CutOff) -> None:
        """Takes a part of the answer. One that came before is ignored, and one that is missing cuts the answer off."""
        if isinstance(message, CutOff):
            self.lose()
            return
        sequence = message.sequence if isinstance(message, Piece) else 0
        if sequence <= self._pieces:
            return
        self._buffered += len(message.body)
        if sequence != self._pieces + 1 or self._buffered > WINDOW + CHUNK:
            self.lose()
            return
        self._pieces = sequence
        self._arrived.append(message)
        self._changed.set()

    def received(self, total: int) -> None:
        """Notes how much of the body has arrived at the other side."""
        self._received = max(self._received, total)
        self._changed.set()

    def expect(self, pieces: int) -> None:
        """Cuts the answer off if not all of its parts have arrived that were handed over."""
        if pieces > self._pieces:
            self.lose()

    def lose(self) -> None:
        """Notes that nothing more will come, whatever is missing."""
        self._pieces = 1 << 62
        self._arrived.append(CutOff(self.address, self.number))
        self._changed.set()

    def end_stream(self) -> None:
        """Ends the answer to a GET in order, because this node ends."""
        if self._exchange.request.method == "GET":
            self._ends_stream = True
            self.lose()

    def cut(self) -> None:
        """Answers the client, because this node ends: the other one may go on."""
        self._is_cut = True
        self.lose()

    # -- in the task of the client's connection ---------------------------------------------------------------------

    async def run(
        self, principal: Principal | None, *, http_sse: bool = False, left: bool = False
    ) -> Outcome:
        """Forwards the request and gives its answer to the client.

        Returns:
            ``"answered"``; or, where nothing was answered, why: the other side is ``"gone"`` and has nothing of the
            request, or has ``"declined"`` it, or was ``"lost"`` before it resumed a stream, whose events others have.

        Raises:
            trio.BrokenResourceError: The client left.
        """
        try:
            if not await self._send(principal, http_sse=http_sse, left=left):
                self.ended = True
                return "gone"
        except SharedStateUnavailable as error:
            # The request may have arrived all the same: it is not sent again, and its client gets an error.
            self._exchange.refuse(shared_state_unavailable(error))
            return "answered"
        message = await self._next()
        if isinstance(message, NotTaken):
            self.ended = True
            return "declined"
        self._exchange.request.body = b""
        if isinstance(message, CutOff) and self._resumes and not (self._is_cut or self._ends_stream):
            self.ended = True
            return "lost"
        while not self._give(message):
            if self._exchange.response.full:
                await self._exchange.response.drained()
            if isinstance(message, Head | Piece):
                self._report(len(message.body))
            message = await self._next()
        # The other side has a stream still that was ended here.
        self.ended = not self._ends_stream
        return "answered"

    @property
    def _resumes(self) -> bool:
        request = self._exchange.request
        return request.method == "GET" and "last-event-id" in request.headers

    async def _send(self, principal: Principal | None, *, http_sse: bool, left: bool) -> bool:
        request, listener = self._exchange.request, self._listener
        body = memoryview(request.body)
        begun = Begun(
            source=listener.address,
            number=self.number,
            method=request.method,
            path=request.path,
            query=request.query,
            headers={name: value for name, value in request.headers.items() if name not in _KEPT_HERE},
            peer=request.peer,
            secure=request.secure,
            http_sse=http_sse,
            principal=None if principal is None else _parts(principal),
            answer_headers=list(self._exchange.headers),
            body=bytes(body[:CHUNK]),
            last=len(body) <= CHUNK,
            left=left,
        )
        if not await listener.outbox.send(self.address, begun):
            return False
        self.parts = 0
        for start in range(CHUNK, len(body), CHUNK):
            while start - self._received >= WINDOW and not self._arrived:
                await self._wait()
            if self._arrived:
                # It is answered already, or the other side is lost: the rest would be in vain.
                return True
            part = bytes(body[start : start + CHUNK])
            last = start + CHUNK >= len(body)
            await listener.outbox.send(
                self.address, BodyPart(listener.address, self.number, self.parts + 1, part, last)
            )
            self.parts += 1
        return True

    async def _next(self) -> Head | Piece | CutOff | NotTaken:
        while not self._arrived:
            await self._wait()
        message = self._arrived.popleft()
        if isinstance(message, Head | Piece):
            self._buffered -= len(message.body)
        return message

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    def _give(self, message: Head | Piece | CutOff | NotTaken) -> bool:
        """Gives a part of the answer to the client, and returns whether it was the last one."""
        response = self._exchange.response
        if isinstance(message, CutOff | NotTaken):
            if response.started and self._ends_stream:
                response.end()
            elif response.started:
                # The client knows that its stream is incomplete, and resumes it anywhere.
                response.abort()
            elif self._ends_stream:
                self._exchange.refuse(SERVER_STOPPING)
            else:
                self._exchange.refuse(SERVER_STOPPED if self._is_cut else HOLDER_LOST)
            return True
        if isinstance(message, Piece):
            if message.last:
                response.end(message.body)
            else:
                response.write(message.body)
        elif message.last and message.content_type != EVENTS:
            response.answer(
                message.status, message.body, content_type=message.content_type, headers=message.headers
            )
        else:
            response.start(
                message.status,
                content_type=message.content_type,
                headers=message.headers,
                first=message.body,
            )
            if message.last:
                response.end()
        return message.last

    def _report(self, consumed: int) -> None:
        """Tells the other side how much the client has taken, not at every part."""
        total = self._consumed + consumed
        if total // _REPORTED_AFTER > self._consumed // _REPORTED_AFTER:
            self._listener.outbox.post(self.address, Consumed(self._listener.address, self.number, total))
        self._consumed = total


def _parts(principal: Principal) -> PrincipalParts:
    return PrincipalParts(
        principal.subject,
        principal.issuer,
        principal.client,
        sorted(principal.scopes),
        dict(principal.claims),
        principal.expires_at,
    )
