"""The half of an answer that lives in the loop of the ASGI server: it sends what the engine gives it."""

from __future__ import annotations

import http
from collections import deque
from collections.abc import Iterable
from typing import Literal, Protocol

from mcp_actors.abc.http import AsgiMessage, AsgiReceive, AsgiSend
from mcp_actors.bridges.steps import Step
from mcp_actors.supervision.logging import log
from mcp_transports.http.asgi.loops import Interruptible, LoopSide
from mcp_transports.http.h1.response import check_header
from mcp_transports.http.server.responses import JSON, Refusal

__all__ = [
    "AnswerCutOff",
    "AsgiAnswer",
    "body_message",
    "refusal_messages",
    "start_message",
    "websocket_refusal_messages",
]


# -- The messages of an answer in ASGI -------------------------------------------------------------------

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
    lines: list[tuple[bytes, bytes]] = []
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


# ----------------------------------------------------------------------------------------------------

# Messages of a server behind the body that are no disconnect: none is legal.
_MOST_STRAY = 16


class AnswerCutOff(Exception):
    """An answer ends where it is. Raised in the application, so that the server closes the connection."""


class AnswerMaker(Protocol):
    """The half of the answer in the engine."""

    def lose(self) -> None:
        """Takes note that the answer ends where it is. A step of the engine."""


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
        # It leads back to this, so it is kept while somebody waits alone.
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
        """Has the client watched from now on, since it has to wait."""
        self._waiter.set()

    def report(self, on_progress: Step) -> None:
        """Has ``on_progress``, a step of the engine, called when bytes were sent, and now."""
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

    async def deliver(self, response: AnswerMaker) -> None:
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
