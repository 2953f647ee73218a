"""The answer to a request of an ASGI server, in two halves: made in the engine, and sent in the server's loop.

`AsgiResponse` is the half in the engine, which applications see. It posts steps to `AsgiAnswer`, the half in the loop
of the server, which sends the messages of ASGI. `AsgiListener` hands requests to the endpoint and has the answers
looked at that do not come at once.
"""

from __future__ import annotations

import http
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Literal

import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.abc.http import AsgiMessage, AsgiReceive, AsgiSend
from mcp_actors.bridges.steps import Step
from mcp_actors.errors import LoopClosed
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HTTP_RESPONSE
from mcp_transports._poller import Ticker
from mcp_transports.http.asgi.loops import Interruptible, LoopSide
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import Request
from mcp_transports.http.h1.response import (
    HEADERS_OF_EVERY_RESPONSE,
    Headers,
    Response,
    Successor,
    check_header,
)
from mcp_transports.http.server.endpoint import Endpoint
from mcp_transports.http.server.responses import JSON, Refusal

__all__ = [
    "AnswerCutOff",
    "AsgiAnswer",
    "AsgiListener",
    "AsgiResponse",
    "body_message",
    "refusal_messages",
    "start_message",
    "websocket_refusal_messages",
]

# Seconds between two looks at an answer that is not complete: whether its client takes anything, and whether the
# server ends.
LOOK_AGAIN = 1.0
# Seconds until a client is watched whose request is not answered. Most answers come sooner and need no watching.
WATCH_AFTER = 0.1
# Messages of a server behind the body that are not a disconnect: ASGI has none.
_MOST_STRAY = 16
_WEBSOCKET_ANSWERS = "websocket.http.response"
# RFC 6455 section 7.4.1.
_POLICY = 1008
_JSON_LINE = (b"content-type", JSON.encode())
# RFC 9110 section 6.4.1: answers that never have a body.
_WITHOUT_BODY = (204, 304)


def start_message(
    status: int, content_type: str | None, headers: Iterable[tuple[str, str]], length: int | None
) -> AsgiMessage:
    """Returns the message that begins an answer.

    Args:
        status: The HTTP status.
        content_type: Of the body.
        headers: Further headers.
        length: Bytes of the body; ``None`` for a stream.

    Raises:
        ValueError: A status, a content type or a header must not be sent.
    """
    if not 200 <= status <= 599:
        raise ValueError(f"not the status of an answer: {status}")
    lines = HEADERS_OF_EVERY_RESPONSE.copy()
    if content_type is not None:
        lines.append(
            _JSON_LINE if content_type == JSON else (b"content-type", content_type.encode("latin-1"))
        )
    if length is not None and status not in _WITHOUT_BODY:
        lines.append((b"content-length", b"%d" % length))
    for name, value in headers:
        check_header(name, value)
        lines.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    return {"type": "http.response.start", "status": status, "headers": lines}


def body_message(body: bytes, *, more: bool) -> AsgiMessage:
    """Returns the message of a piece of the body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


def refusal_messages(status: int, reason: str, *, closes: bool) -> tuple[AsgiMessage, AsgiMessage]:
    """Returns the answer to a request that was not understood, as our own listener gives it.

    ``closes`` says whether the connection is closed behind it, which HTTP/2 has no header for.
    """
    text = f"{status} {http.HTTPStatus(status).phrase}: {reason}\n".encode()
    start = start_message(status, "text/plain", (), len(text))
    if closes:
        start["headers"].append((b"connection", b"close"))
    return start, body_message(text, more=False)


def websocket_refusal_messages(scope: AsgiMessage, refusal: Refusal) -> list[AsgiMessage]:
    """Returns the answer to a request for a WebSocket: with a status where the server can, else it says 403."""
    if _WEBSOCKET_ANSWERS not in (scope.get("extensions") or {}):
        return [{"type": "websocket.close", "code": _POLICY, "reason": ""}]
    head = start_message(refusal.status, JSON, refusal.headers, len(refusal.body))
    return [
        {**head, "type": f"{_WEBSOCKET_ANSWERS}.start"},
        {"type": f"{_WEBSOCKET_ANSWERS}.body", "body": refusal.body, "more_body": False},
    ]


# -- the half in the loop of the server ---


class AnswerCutOff(Exception):
    """An answer ends where it is. Raised in the application, so that the server closes the connection."""


class AsgiAnswer:
    """The half of an answer in the server's loop: sends what the engine gives it.

    Args:
        side: The loop.
        receive: Of the request.
        send: Of the request.
    """

    __slots__ = (
        "_begun",
        "_ending",
        "_has_ended",
        "_interruptible",
        "_is_complete",
        "_on_progress",
        "_pieces",
        "_receive",
        "_send",
        "_waiter",
        "sent",
        "side",
    )

    def __init__(self, side: LoopSide, receive: AsgiReceive, send: AsgiSend) -> None:
        self.side = side
        self._receive = receive
        self._send = send
        self._waiter = side.waiter()
        self._begun: AsgiMessage | None = None
        self._pieces: deque[bytes] = deque()
        self._is_complete = False
        # It leads back to this, so it is kept only while a task waits.
        self._on_progress: Step | None = None
        self._has_ended = False
        self._ending: Literal["cut off", "left"] | None = None
        self._interruptible: Interruptible | None = None
        self.sent = 0
        """Bytes of the body that the server has taken. Read by the engine."""

    # -- steps of the loop, which the engine posts -------------------------------------------------------------------

    def begin(self, start: AsgiMessage, first: bytes, last: bool) -> None:
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
        """Watches the client from now on, since it has to wait."""
        self._waiter.set()

    def report(self, on_progress: Step) -> None:
        """Calls ``on_progress``, a step of the engine, now and whenever bytes were sent."""
        if not self._has_ended:
            self._on_progress = on_progress
        self.side.bridge.engine.post(on_progress)

    def cut_off(self) -> None:
        """Ends the answer where it is."""
        self._stop("cut off")

    def leave(self) -> None:
        """Ends the answer for a client that has left, or whose server ends."""
        self._stop("left")

    @property
    def is_last(self) -> bool:
        """Whether the server closes the connection behind the answer, as far as it can be seen. Read by the engine.

        ASGI has no message for the end of a server. uvicorn waits for every answer, without a bound by default, and
        ends the lifespan only then; what it does at once is to end the life of the connection, in the object whose
        method ``receive`` is.
        """
        return getattr(getattr(self._receive, "__self__", None), "keep_alive", None) is False

    # -- the application's task --------------------------------------------------------------------------------------

    async def deliver(self, response: AsgiResponse) -> None:
        """Sends the answer to the end.

        Raises:
            AnswerCutOff: It is not complete.
            Exception: What ``send`` raises.
        """
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
            self._on_progress, self._has_ended = None, True
            if not self._is_complete or self._pieces:
                self.side.bridge.engine.post(response.lose)
        if self._ending == "cut off":
            raise AnswerCutOff("the answer was cut off")

    async def _deliver_watched(self) -> None:
        with self.side.interruptible() as self._interruptible:
            async with self.side.beside(self._watch):
                while self._ending is None:
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
        if self._on_progress is not None:
            self.side.bridge.engine.post(self._on_progress)

    def _stop(self, ending: Literal["cut off", "left"]) -> None:
        self._ending = self._ending or ending
        if self._interruptible is not None:
            self._interruptible.interrupt()
        self._waiter.set()


# -- the half in the engine ---


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

    def __init__(self, listener: AsgiListener, request: Request, answer: AsgiAnswer) -> None:
        self._state = "new"
        self._head_only = request.method == "HEAD"
        self.on_gone = None
        self.request = request
        self._listener = listener
        self._answer = answer
        self._gone = False
        self._put = 0
        # Only for answers that do not come at once.
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
        self._must_be_new()
        message = start_message(status, content_type, headers, None)
        self._state = "streaming"
        content = b"" if self._head_only else first
        self._put = len(content)
        self._post(partial(self._answer.begin, message, content, False))

    def write(self, data: bytes) -> None:
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
        await trio.lowlevel.checkpoint()
        while not self._gone and self.full:
            if self._room is None:
                self._room = trio.Event()
                self._post(partial(self._answer.report, self.progressed))
            await self._room.wait()
        if self._gone:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def end(self, last: bytes = b"") -> None:
        self._must_stream()
        self._state = "ended"
        content = b"" if self._head_only else last
        self._put += len(content)
        self._post(partial(self._answer.put, content, True))
        if not self.is_pending:
            self._listener.ticker.discard(self)

    def abort(self) -> None:
        if self._state != "ended":
            self._state = "ended"
            self._cut_off()

    def upgrade(self, successor: Successor) -> bool:
        """Returns false: the connection belongs to the server."""
        return False

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
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
        """Has the client watched at first; then ends answers that are stalled, and streams whose server ends."""
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
        """Whether the server ends and waits for this stream, which would not end by itself."""
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


class AsgiListener:
    """Serves requests in the engine, while the application is served.

    Args:
        nursery: Where answers run that have to wait.
        endpoint: Answers the requests.
        limits: The bounds on HTTP peers.
    """

    def __init__(
        self, nursery: trio.Nursery, handler: ServerHandler, endpoint: Endpoint, limits: HttpLimits
    ) -> None:
        self.nursery = nursery
        self.handler = handler
        self.limits = limits
        self.ticker: Ticker[AsgiResponse] = Ticker(WATCH_AFTER)
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"<AsgiListener {len(self.ticker)} unanswered>"

    def serve(self, response: AsgiResponse) -> None:
        """Begins to answer a request. A step of the engine."""
        request = response.request
        try:
            self._endpoint(request, response)
        except BaseException as error:
            response.app_raised(error, request.peer)
        if response.is_pending:
            self.ticker.add(response)
