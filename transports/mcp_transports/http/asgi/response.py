"""The answer to a request that an ASGI server has brought: made in the engine, sent in the server's loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from mcp_actors.errors import LoopClosed
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HTTP_RESPONSE
from mcp_transports._ticker import Ticker
from mcp_transports.http.asgi.answer import AsgiAnswer, start_message
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import Headers, Response, Successor

__all__ = ["AsgiResponse", "ResponseListener"]

# Seconds between two looks at an answer that is not complete: whether its client takes anything, and whether the
# server ends.
LOOK_AGAIN = 1.0


class ResponseListener(Protocol):
    """The attributes of a listener that an answer uses."""

    nursery: trio.Nursery
    limits: HttpLimits
    ticker: Ticker[AsgiResponse]


class _Stall:
    """For how long a client has taken none of the bytes that wait for it, in steps of `LOOK_AGAIN`."""

    __slots__ = ("_seconds", "_sent")

    def __init__(self) -> None:
        self._sent = -1
        self._seconds = 0.0

    def time(self, sent: int, unsent: int) -> float:
        self._seconds = self._seconds + LOOK_AGAIN if unsent and sent == self._sent else 0.0
        self._sent = sent if unsent else -1
        return self._seconds


class AsgiResponse(Response):
    """The half of an answer in the engine. Its methods do what those of `Response` do."""

    __slots__ = (
        "_answer",
        "_gone",
        "_head_only",
        "_listener",
        "_put",
        "_room",
        "_scopes",
        "_stall",
        "deadline",
        "request",
    )

    def __init__(self, listener: ResponseListener, request: Request, answer: AsgiAnswer) -> None:
        self._state = "new"
        self._closes = False
        self._head_only = request.method == "HEAD"
        self.on_gone = None
        self.request = request
        self._listener = listener
        self._answer = answer
        self._gone = False
        self._put = 0
        # Made for answers that do not come at once.
        self._stall: _Stall | None = None
        self._room: trio.Event | None = None
        self._scopes: tuple[trio.CancelScope, ...] = ()
        self.deadline = -1.0
        """When the ticker looks at it: first at its next tick, which has the client watched."""

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
        content = b"" if self._head_only else body
        self._put = len(content)
        self._post(partial(self._answer.begin, message, content, True))
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
        content = b"" if self._head_only else first
        self._put = len(content)
        self._post(partial(self._answer.begin, message, content, False))

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
            self._put += len(data)
            self._post(partial(self._answer.put, data, False))

    async def drained(self) -> None:
        """Waits until few bytes are unsent. Cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        await trio.lowlevel.checkpoint()
        while not self._gone and self.full:
            if self._room is None:
                self._room = trio.Event()
                self._post(partial(self._answer.report, self.progressed))
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
        content = b"" if self._head_only else last
        self._put += len(content)
        self._post(partial(self._answer.put, content, True))
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
            self._scopes = (*self._scopes, scope)
            try:
                await self._run(fn)
            finally:
                self._scopes = tuple(each for each in self._scopes if each is not scope)

    # -- called in the engine by what serves it ----------------------------------------------------------------------

    def lose(self) -> None:
        """Ends the answer where it is: its client has left, or its server has given it up."""
        if self._gone:
            return
        self._gone = True
        self._listener.ticker.discard(self)
        if self._room is not None:
            self._room.set()
        for scope in self._scopes:
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
        self.deadline = now + LOOK_AGAIN
        if self._state == "ended" and not unsent:
            self._listener.ticker.discard(self)
        elif self._stalled_for(sent, unsent) >= self._listener.limits.write_timeout:
            self._drop(unsent)
        elif self._state == "streaming" and self._server_ends:
            self._post(self._answer.leave)
            self.lose()

    def _stalled_for(self, sent: int, unsent: int) -> float:
        if self._stall is None:
            self._stall = _Stall()
        return self._stall.time(sent, unsent)

    @property
    def _server_ends(self) -> bool:
        """Whether the server ends, and waits for this stream, which does not end by itself."""
        request = self.request
        return (
            request.method == "GET"
            and request.version == "1.1"
            and "connection" not in request.headers
            and self._answer.is_last
        )

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

    def _post(self, step: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            self._answer.side.bridge.post(step)
        except LoopClosed:
            log.debug("the loop of an ASGI server ended before an answer", peer=self.request.peer)
            self.lose()
