"""Reading event streams, and when to come back to one that ended early."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from mcp_transports.http.client.http import Answer
from mcp_transports.http.sse import ServerSentEvent, SseDecoder

__all__ = ["Cursor", "events"]

# Bytes of an event beside its message: names of fields, id.
OTHER_LINES = 4096
# Seconds to wait before coming back to a stream that named no time.
DEFAULT_RETRY = 1.0
# Failing attempts wait ever longer, up to this.
LONGEST_BACKOFF = 30.0
SHORTEST_BACKOFF = 0.1


class Cursor:
    """How far a stream was read, and how long to wait before coming back to it."""

    def __init__(self) -> None:
        self.last_event_id: str | None = None
        self.retry: float | None = None
        self.failures = 0

    def note(self, event: ServerSentEvent) -> None:
        """Something came: remember where we are."""
        self.failures = 0
        if event.id is not None:
            self.last_event_id = event.id or None

    @property
    def delay(self) -> float:
        """Seconds from the end of the stream to the next attempt: exactly what the server said, unless that failed."""
        delay: float = DEFAULT_RETRY if self.retry is None else self.retry
        if not self.failures:
            return delay
        return max(delay, min(max(delay, SHORTEST_BACKOFF) * 2.0**self.failures, LONGEST_BACKOFF))


async def events(answer: Answer, cursor: Cursor) -> AsyncGenerator[ServerSentEvent, None]:
    """The events of a stream as they come, each noted in ``cursor``. Close it with `contextlib.aclosing`.

    Raises `RemoteProtocolError` for an event longer than a message may be.
    """
    answer.keep_alive()
    decoder = SseDecoder(answer.max_bytes + OTHER_LINES)
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                for event in decoder.feed(piece):
                    cursor.note(event)
                    yield event
                if decoder.failure is not None:
                    raise decoder.failure
    finally:
        # It counts as soon as it was read, in an event or not.
        if decoder.retry is not None:
            cursor.retry = decoder.retry / 1000
