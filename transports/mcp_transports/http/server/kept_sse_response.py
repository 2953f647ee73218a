"""A response whose events leave only once a log that spans processes has kept them.

A client that got an event may come back to any node and ask for what follows it. So no node may send an event that the
others cannot find, should this one be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["KeptSseResponse", "PendingEvent"]

# Bytes of events that are not known to be kept: from the first on their writer waits, and over the second the response
# is cut off, as `HttpLimits.write_buffer` and `HttpLimits.max_buffered` by default.
WRITE_BUFFER = 256 * 1024
MAX_PENDING = 8 * 1024 * 1024
# Seconds that a client which resumes waits for an event to be kept; longer than any log tries.
_LONGEST_WAIT = 10.0


class PendingEvent:
    """An event that was given to the log.

    Args:
        data: Its data.
        on_lost: Called if it cannot be kept: the stream cannot be resumed from here on.
    """

    __slots__ = ("_data", "_decided", "_on_lost", "id", "is_kept", "response")

    def __init__(self, data: bytes, on_lost: Callable[[], None]) -> None:
        self._data = data
        self._on_lost = on_lost
        self._decided: trio.Event | None = None
        self.id = ""
        self.is_kept: bool | None = None
        """``None`` while that is not known."""
        self.response: KeptSseResponse | None = None
        """The response that it waits in."""

    @property
    def weight(self) -> int:
        """Bytes of its data."""
        return len(self._data)

    def kept(self, is_kept: bool) -> None:
        """Takes the log's word; see `mcp_actors.abc.EventLog.append`. It may come before the id."""
        self.is_kept = is_kept
        if not is_kept:
            self._on_lost()
        if self._decided is not None:
            self._decided.set()
        if self.response is not None:
            self.response.flush()

    async def wait(self) -> bool:
        """Waits for the log's word, for a bounded time, and returns false if it has come before or does not come."""
        if self.is_kept is not None:
            return False
        if self._decided is None:
            self._decided = trio.Event()
        with trio.move_on_after(_LONGEST_WAIT):
            await self._decided.wait()
        return self.is_kept is not None

    def encoded(self) -> bytes:
        """Returns what is sent of it. Without an id an event without data says nothing."""
        if self.is_kept:
            return encode_event(self._data, id=self.id)
        return encode_event(self._data) if self._data else b""


class KeptSseResponse(SseResponse):
    """An `SseResponse` in which events wait for the log, and what follows waits behind them."""

    __slots__ = ("_ends", "_last", "_moved", "_pending", "_weight")

    def __init__(
        self,
        exchange: HttpExchange,
        open_responses: OpenSseResponses,
        on_gone: Callable[[SseResponse], None],
        first: bytes = b"",
    ) -> None:
        self._pending: deque[PendingEvent] = deque()
        self._weight = 0
        self._ends = False
        self._last = b""
        self._moved = trio.Event()
        super().__init__(exchange, open_responses, on_gone, first)

    @property
    def full(self) -> bool:
        return self._weight > WRITE_BUFFER or self.response.full

    def add(self, event: PendingEvent) -> None:
        """Sends an event once it is kept, behind those before it. Too many bytes cut the response off."""
        event.response = self
        self._pending.append(event)
        self._weight += event.weight
        if self._weight > MAX_PENDING and len(self._pending) > 1:
            self.break_off()
        self.flush()

    def flush(self) -> None:
        """Sends the events that are kept, up to the first that is not. Never raises because the client left."""
        while self._pending and self._pending[0].is_kept is not None:
            event = self._pending.popleft()
            self._weight -= event.weight
            data = event.encoded()
            if data and not self.response.gone and not self.response.ended:
                try:
                    super().write(data)
                except trio.BrokenResourceError:
                    self._pending.clear()
                    self._weight = 0
        self._moved.set()
        if self._ends and not self._pending:
            self._ends = False
            super().end(self._last)

    async def drained(self) -> None:
        """Waits for the log and for room.

        Raises:
            trio.BrokenResourceError: The client is gone or has stopped reading; the connection is closed then.
        """
        while self._weight > WRITE_BUFFER and not self.response.gone:
            self._moved = trio.Event()
            await self._moved.wait()
        await super().drained()

    def end(self, last: bytes = b"") -> None:
        """Ends the response behind all events that wait."""
        if self._pending and not self.response.gone:
            self._ends, self._last = True, last
        else:
            super().end(last)

    def abort(self) -> None:
        """Closes the connection without ending the response; what waits is dropped."""
        self._drop()
        super().abort()

    def break_off(self) -> None:
        """Does the same as `abort`, and calls ``on_gone``."""
        self._drop()
        super().break_off()

    def _drop(self) -> None:
        self._ends = False
        self._pending.clear()
        self._weight = 0
        self._moved.set()

    def _gone(self) -> None:
        self._drop()
        super()._gone()
