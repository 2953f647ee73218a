"""Reads event streams, and decides when to resume one that ended early."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from mcp_transports.http.client.http import HttpResponse
from mcp_transports.http.sse import ServerSentEvent, SseDecoder

__all__ = ["StreamPosition", "read_events"]

# Bytes of an event beside its message: the names of fields, the id.
OTHER_LINES = 4096
# Seconds to wait before resuming a stream that named no time.
DEFAULT_RETRY = 1.0
# Seconds: attempts that fail wait twice as long each time, within these bounds.
LONGEST_BACKOFF = 30.0
SHORTEST_BACKOFF = 0.1
# Milliseconds: what a server says is taken within these bounds, or it would have us ask without a pause, or never.
SHORTEST_RETRY, LONGEST_RETRY = 100, 3_600_000


class StreamPosition:
    """The position up to which a stream was read, and the delay before it is resumed."""

    def __init__(self) -> None:
        self.last_event_id: str | None = None
        self.retry: float | None = None
        """Seconds, as the server named them, within bounds."""
        self.failures = 0
        """Attempts in a row that brought no event."""

    def advance(self, event: ServerSentEvent) -> None:
        """Notes an event that was read."""
        self.failures = 0
        if event.id is not None:
            self.last_event_id = event.id or None

    @property
    def delay(self) -> float:
        """Seconds from the end of the stream to the next attempt: what the server said, or more after failures."""
        delay: float = DEFAULT_RETRY if self.retry is None else self.retry
        if not self.failures:
            return delay
        return max(delay, min(max(delay, SHORTEST_BACKOFF) * 2.0**self.failures, LONGEST_BACKOFF))


async def read_events(
    response: HttpResponse, position: StreamPosition
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yields the events of a stream as they arrive and notes each in ``position``.

    Close it with `contextlib.aclosing`.

    Raises:
        ConnectionLost: the connection broke.
        RemoteProtocolError: an event is longer than a message may be, or the body cannot be decoded.
    """
    response.enable_tcp_keepalive()
    decoder = SseDecoder(response.max_bytes + OTHER_LINES)
    try:
        async with aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                for event in decoder.feed(chunk):
                    position.advance(event)
                    yield event
                if decoder.failure is not None:
                    raise decoder.failure
    finally:
        # A retry field counts as soon as it was read, whether an event followed it or not.
        if decoder.retry is not None:
            position.retry = min(max(decoder.retry, SHORTEST_RETRY), LONGEST_RETRY) / 1000
