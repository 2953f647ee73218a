"""A response that carries server-sent events while it is open, and the one task that keeps all of them alive."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_transports.http.server.error_responses import Exchange, Header
from mcp_transports.http.sse import COMMENT

__all__ = ["OpenSseResponses", "SseResponse"]

_CONTENT_TYPE = "text/event-stream"
# No intermediary may hold events back, to compress or to keep them (protocol §6.3).
_HEADERS: tuple[Header, ...] = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
# Streams that are written to before other tasks get a turn: some milliseconds.
_AT_ONCE = 64


class SseResponse:
    """One response full of events, which it takes encoded; ``first`` goes out with its head.

    ``on_gone`` is called with it, at most once, when its peer left before it was ended.
    """

    __slots__ = ("_on_gone", "_open", "quiet", "response")

    def __init__(
        self,
        turn: Exchange,
        streams: OpenSseResponses,
        on_gone: Callable[[SseResponse], None],
        first: bytes = b"",
    ) -> None:
        self.response = turn.response
        self._open = streams
        self._on_gone = on_gone
        self.quiet = False
        self.response.on_gone = self._gone
        streams.add(self)
        self.response.start(200, content_type=_CONTENT_TYPE, headers=(*turn.headers, *_HEADERS), first=first)

    def __repr__(self) -> str:
        return f"<SseResponse {'gone' if self.response.gone else 'full' if self.response.full else 'open'}>"

    @property
    def full(self) -> bool:
        return self.response.full

    @property
    def gone(self) -> bool:
        return self.response.gone

    def write(self, events: bytes) -> None:
        """Sends without waiting; raises `trio.BrokenResourceError` when the peer is gone."""
        self.quiet = False
        self.response.write(events)

    async def drained(self) -> None:
        """Waits for room. Raises `trio.BrokenResourceError`, and hangs up, when the peer has stopped reading."""
        try:
            await self.response.drained()
        except trio.BrokenResourceError:
            self.response.abort()
            raise

    def end(self, last: bytes = b"") -> None:
        """Ends the response in order, after a last event; its connection may be used again."""
        self._open.discard(self)
        self.response.on_gone = None
        self.response.end(last)

    def abort(self) -> None:
        """Hangs up without an end, so that nobody takes what came for everything."""
        self._open.discard(self)
        self.response.on_gone = None
        self.response.abort()

    def _gone(self) -> None:
        self._open.discard(self)
        self._on_gone(self)


class OpenSseResponses:
    """The open event streams of one listener. Each gets a comment when it was silent for ``keepalive`` seconds."""

    def __init__(self, keepalive: float) -> None:
        self._keepalive = keepalive
        self._streams: set[SseResponse] = set()

    def __repr__(self) -> str:
        return f"<OpenSseResponses: {len(self._streams)}, a comment every {self._keepalive:g} s of silence>"

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: SseResponse) -> None:
        self._streams.add(stream)

    def discard(self, stream: SseResponse) -> None:
        self._streams.discard(stream)

    async def keep_alive(self) -> None:
        """Runs until cancelled: twice an interval, whoever was silent since the last time gets a comment."""
        while True:
            await trio.sleep(self._keepalive / 2)
            for number, stream in enumerate(tuple(self._streams), 1):
                self._tick(stream)
                if number % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()

    def _tick(self, stream: SseResponse) -> None:
        if not stream.quiet:
            stream.quiet = True
        elif stream in self._streams and not stream.full:
            try:
                stream.write(COMMENT)
            except trio.BrokenResourceError:
                self._streams.discard(stream)
