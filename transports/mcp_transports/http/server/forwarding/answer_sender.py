"""The way of an answer to the listener that forwarded its request: in order, and as far as that has room."""

from __future__ import annotations

from collections import deque

import trio

from mcp_actors.errors import SharedStateUnavailable
from mcp_transports.http.server.forwarding.messages import (
    CHUNK,
    WINDOW,
    CutOff,
    Head,
    Message,
    Piece,
)
from mcp_transports.http.server.forwarding.outbox import Outbox

__all__ = ["AnswerSender", "Beginning"]

# Seconds before a message is sent again that could not be sent. The request is lost if that takes too long.
_RETRY_AFTER = 0.5

Beginning = tuple[int, str | None, list[tuple[str, str]]]
"""The status of an answer, the type of its content, and its further headers."""


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
