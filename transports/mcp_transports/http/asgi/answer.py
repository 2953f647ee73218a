"""The half of an answer that lives in the loop of the ASGI server: it sends what the engine gives it."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

from mcp_actors.abc.asgi import AsgiMessage, AsgiReceive, AsgiSend
from mcp_actors.bridges.step_queue import Step
from mcp_actors.logging import log
from mcp_transports.http.asgi.messages import body_message
from mcp_transports.http.asgi.sides import Interruptible, LoopSide

__all__ = ["AnswerCutOff", "AsgiAnswer"]

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
