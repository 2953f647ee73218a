"""The answer to a request that an ASGI server has brought: made in the engine, sent in the server's loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

import trio

from mcp_actors.errors import LoopClosed
from mcp_actors.logging import log
from mcp_actors.supervision import start
from mcp_actors.task_kinds import HTTP_RESPONSE
from mcp_transports._ticker import Ticker
from mcp_transports.http.asgi.messages import Message, Receive, Send, body_message, start_message
from mcp_transports.http.asgi.sides import Interruptible, LoopSide
from mcp_transports.http.h1.errors import ResponseStateError
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Response, Successor

__all__ = ["AnswerCutOff", "AsgiAnswer", "AsgiResponse", "ResponseListener"]

# Seconds between two looks at an answer that is not complete: whether its client takes anything, and whether the
# server ends.
LOOK_AGAIN = 1.0
# Messages of a server behind the body that are no disconnect: none is legal.
_MOST_STRAY = 16

Headers = Iterable[tuple[str, str]]


class AnswerCutOff(Exception):
    """An answer ends where it is. Raised in the application, so that the server closes the connection."""


class ResponseListener(Protocol):
    """What an answer uses of its listener. For the engine."""

    nursery: trio.Nursery
    limits: HttpLimits
    ticker: Ticker[AsgiResponse]


class AsgiAnswer:
    """The half of an answer in the server's loop: sends what the engine gives it.

    Args:
        side: The loop.
        receive: Of the request.
        send: Of the request.
    """

    __slots__ = (
        "_begun",
        "_interruptible",
        "_is_complete",
        "_is_cut_off",
        "_is_left",
        "_is_reporting",
        "_pieces",
        "_receive",
        "_response",
        "_send",
        "_waiter",
        "sent",
        "side",
    )

    def __init__(self, side: LoopSide, receive: Receive, send: Send) -> None:
        self.side = side
        self._receive = receive
        self._send = send
        self._response: AsgiResponse
        self._waiter = side.waiter()
        self._begun: Message | None = None
        self._pieces: deque[bytes] = deque()
        self._is_complete = self._is_cut_off = self._is_left = self._is_reporting = False
        self._interruptible: Interruptible | None = None
        self.sent = 0
        """Bytes of the body that the server has taken. Read by the engine."""

    # -- steps of the loop, which the engine posts -------------------------------------------------------------------

    def begin(self, start: Message, first: bytes, last: bool) -> None:
        """Takes the beginning of the answer, or the whole."""
        self._begun = start
        self._is_complete = last
        if first or last:
            self._pieces.append(first)
        self._waiter.set()

    def put(self, piece: bytes, last: bool) -> None:
        """Takes a piece of the body."""
        self._pieces.append(piece)
        self._is_complete = last
        self._waiter.set()

    def watch(self) -> None:
        """Has the client watched from now on, since it has to wait."""
        self._waiter.set()

    def report(self) -> None:
        """Has the engine told when bytes were sent."""
        self._is_reporting = True
        self._report()

    def cut_off(self) -> None:
        """Ends the answer where it is."""
        self._is_cut_off = True
        self._stop()

    def leave(self) -> None:
        """Ends the answer for a client that has left, or whose server ends."""
        self._is_left = True
        self._stop()

    # -- the application's task --------------------------------------------------------------------------------------

    async def deliver(self, response: AsgiResponse) -> None:
        """Sends the answer to the end.

        Raises:
            AnswerCutOff: It is not complete.
            Exception: What ``send`` raises.
        """
        self._response = response
        try:
            await self._waiter.wait()
            if self._begun is not None and self._is_complete and len(self._pieces) == 1:
                await self._send(self._begun)
                body = self._pieces[0]
                await self._send(body_message(body, more=False))
                self._pieces.clear()
                self._taken(len(body))
                return
            await self._deliver_watched()
        finally:
            if not self._is_complete or self._pieces:
                self.side.bridge.engine.post(response.lose)
        if self._is_cut_off:
            raise AnswerCutOff("the answer was cut off")

    async def _deliver_watched(self) -> None:
        with self.side.interruptible() as self._interruptible:
            async with self.side.beside(self._watch):
                while not (self._is_left or self._is_cut_off):
                    if self._begun is not None:
                        start, self._begun = self._begun, None
                        await self._send(start)
                    while self._pieces:
                        await self._send_pieces()
                    if self._is_complete:
                        return
                    await self._waiter.wait()

    async def _send_pieces(self) -> None:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        last = self._is_complete
        pieces.clear()
        if data or last:
            await self._send(body_message(data, more=not last))
        self._taken(len(data))

    async def _watch(self) -> None:
        """Waits until the server says that the client has left."""
        try:
            for _ in range(_MOST_STRAY):
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    break
        except Exception as error:
            log.warning("an ASGI server failed to say whether a client is there", error=repr(error)[:200])
        if not self._is_complete or self._pieces:
            self.leave()

    def _taken(self, size: int) -> None:
        self.sent += size
        if self._is_reporting:
            self._report()

    def _report(self) -> None:
        self.side.bridge.engine.post(self._response.progressed)

    def _stop(self) -> None:
        if self._interruptible is not None:
            self._interruptible.interrupt()
        self._waiter.set()


class AsgiResponse(Response):
    """The half of an answer in the engine. Its methods do what those of `Response` do."""

    __slots__ = (
        "_answer",
        "_gone",
        "_listener",
        "_put",
        "_room",
        "_scopes",
        "_seen",
        "_server_ends",
        "_silence",
        "deadline",
        "request",
    )

    def __init__(
        self,
        listener: ResponseListener,
        request: Request,
        answer: AsgiAnswer,
        server_ends: Callable[[], bool],
    ) -> None:
        self._state = "new"
        self._closes = False
        self._head_only = request.method == "HEAD"
        self.on_gone = None
        self.request = request
        self._listener = listener
        self._answer = answer
        self._server_ends = server_ends
        self._gone = False
        self._put = 0
        self._seen = -1
        self._silence = 0.0
        self._room: trio.Event | None = None
        self._scopes: set[trio.CancelScope] = set()
        self.deadline = -1.0
        """When the ticker looks at it: first at its next tick, which has the client watched."""

    def __repr__(self) -> str:
        return f"<AsgiResponse {self._state}{' gone' if self._gone else ''}>"

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def full(self) -> bool:
        return self._unsent > self._listener.limits.write_buffer

    @property
    def is_pending(self) -> bool:
        """Whether it has to be looked at: it is not complete, or so long that its client may stall."""
        return not self._gone and (self._state != "ended" or self.full)

    @property
    def _unsent(self) -> int:
        return self._put - self._answer.sent

    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        """Sends a whole answer.

        Raises:
            ResponseStateError: The request was answered already.
            ValueError: The status, the content type or a header must not be sent.
        """
        self._must_be_new()
        message = start_message(status, content_type, headers, len(body))
        self._state = "ended"
        self._post(self._answer.begin, message, b"" if self._head_only else body, True)
        if not self.is_pending:
            self._listener.ticker.discard(self)

    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        """Begins a streamed answer.

        Raises:
            ResponseStateError: The request was answered already.
            ValueError: The status, the content type or a header must not be sent.
        """
        self._must_be_new()
        message = start_message(status, content_type, headers, None)
        self._state = "streaming"
        self._post(self._answer.begin, message, b"" if self._head_only else first, False)

    def write(self, data: bytes) -> None:
        """Sends a piece of a streamed answer.

        Raises:
            trio.BrokenResourceError: The peer is gone, or was dropped because too much would wait for it.
            ResponseStateError: No stream is open.
        """
        self._must_stream()
        unsent = self._unsent
        if unsent and unsent + len(data) > self._listener.limits.max_buffered:
            self._drop(unsent)
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone")
        if data and not self._head_only:
            self._post(self._answer.put, data, False)

    async def drained(self) -> None:
        """Waits until few bytes are unsent. Cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        await trio.lowlevel.checkpoint()
        while not self._gone and self.full:
            if self._room is None:
                self._room = trio.Event()
                self._post(self._answer.report)
            await self._room.wait()
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def end(self, last: bytes = b"") -> None:
        """Ends a streamed answer.

        Raises:
            ResponseStateError: No stream is open.
        """
        self._must_stream()
        self._state = "ended"
        self._post(self._answer.put, b"" if self._head_only else last, True)
        if not self.is_pending:
            self._listener.ticker.discard(self)

    def abort(self) -> None:
        """Cuts the answer off, unless it is complete."""
        if self._state != "ended":
            self._state = "ended"
            self._cut_off()

    def upgrade(self, successor: Successor) -> bool:
        """Returns false: the connection belongs to the server."""
        return False

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in a task that is cancelled when the peer leaves."""
        if not self._gone:
            start(
                self._listener.nursery,
                HTTP_RESPONSE,
                self._run_scoped,
                fn,
                about=self.request.peer,
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

    # -- called in the engine by what serves it ----------------------------------------------------------------------

    def lose(self) -> None:
        """Ends the answer where it is: its client has left, or its server has given it up."""
        if self._gone:
            return
        self._gone = True
        self._listener.ticker.discard(self)
        if self._room is not None:
            self._room.set()
        for scope in tuple(self._scopes):
            scope.cancel(reason="the client of a request left")
        if self._state != "ended":
            self.peer_left(self.request.peer)

    def progressed(self) -> None:
        """Looks again whether there is room."""
        if self._room is not None and not self.full:
            self._room.set()
            self._room = None

    def expire(self, now: float) -> None:
        """Has the client watched the first time; then ends what is stalled, and streams whose server ends."""
        if self.deadline < 0 and self._state == "new":
            self._post(self._answer.watch)
        sent, unsent = self._answer.sent, self._unsent
        self._silence = self._silence + LOOK_AGAIN if unsent and sent == self._seen else 0.0
        self._seen = sent if unsent else -1
        self.deadline = now + LOOK_AGAIN
        if self._state == "ended" and not unsent:
            self._listener.ticker.discard(self)
        elif self._silence >= self._listener.limits.write_timeout:
            self._drop(unsent)
        elif self._state == "streaming" and self.request.method == "GET" and self._server_ends():
            # It would wait for this stream, which does not end by itself.
            self._post(self._answer.leave)
            self.lose()

    def crashed(self, error: BaseException) -> None:
        """Ends the answer after a mistake here."""
        self._cut_off()

    def _drop(self, unsent: int) -> None:
        log.info("a peer reads too slowly and is dropped", peer=self.request.peer, unsent=unsent)
        self._cut_off()

    def _cut_off(self) -> None:
        if not self._gone:
            self._post(self._answer.cut_off)
            self.lose()

    def _must_be_new(self) -> None:
        if self._state != "new":
            raise ResponseStateError("this request was answered already")

    def _post(self, step: Callable[..., object], *args: object) -> None:
        if self._gone:
            return
        self._put += sum(len(each) for each in args if isinstance(each, bytes))
        try:
            self._answer.side.bridge.post(partial(step, *args) if args else step)
        except LoopClosed:
            log.debug("the loop of an ASGI server ended before an answer", peer=self.request.peer)
            self.lose()
