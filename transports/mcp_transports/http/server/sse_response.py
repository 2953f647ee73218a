"""A response that carries server-sent events, and the task that ends the silence of responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from mcp_actors.principal import Principal
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import EVENT_STREAMS
from mcp_transports.http.server.error_responses import Header
from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.media_types import EVENTS
from mcp_transports.http.sse import COMMENT

__all__ = ["OpenSseResponses", "SseResponse", "Unanswered"]

# No intermediary may hold events back (MCP 2026-07-28, Streamable HTTP, Receiving Messages).
_HEADERS: tuple[Header, ...] = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
# Responses that are written to before other tasks run: some milliseconds' worth.
_RESPONSES_AT_ONCE = 64
# Seconds between two looks for responses whose access has ended: little beside the grace that they have.
_EXPIRY_INTERVAL = 5.0


class SseResponse:
    """One response that carries events. Its methods take encoded events.

    Args:
        exchange: The request that is answered.
        open_responses: The registry of open responses.
        on_gone: Called with the response, at most once, when its client left before the response was ended.
        first: Events that go out together with the head.
    """

    __slots__ = ("_on_gone", "_open_responses", "quiet", "response")

    def __init__(
        self,
        exchange: HttpExchange,
        open_responses: OpenSseResponses,
        on_gone: Callable[[SseResponse], None],
        first: bytes = b"",
    ) -> None:
        self.response = exchange.response
        self._open_responses = open_responses
        self._on_gone = on_gone
        self.quiet = False
        self.response.on_gone = self._gone
        open_responses.add(self)
        self.response.start(200, content_type=EVENTS, headers=(*exchange.headers, *_HEADERS), first=first)

    def __repr__(self) -> str:
        return f"<SseResponse {'gone' if self.response.gone else 'full' if self.response.full else 'open'}>"

    @property
    def full(self) -> bool:
        """Whether the client reads more slowly than events are sent: await `drained` before sending more."""
        return self.response.full

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.response.gone

    def write(self, events: bytes) -> None:
        """Sends ``events`` without waiting.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        self.quiet = False
        self.response.write(events)

    async def drained(self) -> None:
        """Waits for room. Cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The client is gone or has stopped reading; the connection is closed then.
        """
        try:
            await self.response.drained()
        except trio.BrokenResourceError:
            self.response.abort()
            raise

    def end(self, last: bytes = b"") -> None:
        """Ends the response in order, after ``last``, so that its connection may be used again."""
        self._open_responses.discard(self)
        self.response.on_gone = None
        self.response.end(last)

    def end_access(self) -> None:
        """Does the same as `end`, and calls ``on_gone``: the client may come back with another token."""
        self.end()
        self._on_gone(self)

    def abort(self) -> None:
        """Closes the connection without ending the response, so that the client knows that it is incomplete."""
        self._open_responses.discard(self)
        self.response.on_gone = None
        self.response.abort()

    def break_off(self) -> None:
        """Does the same as `abort`, and calls ``on_gone``, for callers that do not own the response."""
        self.response.abort()

    def _gone(self) -> None:
        self._open_responses.discard(self)
        self._on_gone(self)


class Unanswered(Protocol):
    """A request whose response has not begun, and which may be answered with an event stream."""

    quiet: bool
    """Whether it was unanswered already at the last look."""

    def open_stream(self) -> None:
        """Begins the response as an event stream. Must not wait."""


class OpenSseResponses:
    """The open event streams of one listener, and the requests that may be answered with one.

    Args:
        keepalive: Seconds of silence after which a stream gets a comment, and an unanswered request its stream, so
            that no proxy and no client gives it up; 0 switches this off.
    """

    def __init__(self, keepalive: float) -> None:
        self.unanswered: set[Unanswered] = set()
        """The requests whose responses have not begun. They enter and leave it themselves."""
        self._keepalive = keepalive
        self._responses: set[SseResponse] = set()
        # When the responses end whose access ends, by the clock of Trio.
        self._deadlines: dict[SseResponse, float] = {}

    def __repr__(self) -> str:
        return f"<OpenSseResponses: {len(self._responses)}, a comment every {self._keepalive:g} s of silence>"

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, response: SseResponse) -> None:
        """Adds a response that was opened."""
        self._responses.add(response)

    def discard(self, response: SseResponse) -> None:
        """Removes a response that has ended."""
        self._responses.discard(response)
        if self._deadlines:
            self._deadlines.pop(response, None)

    def end_with_access(self, response: SseResponse, principal: Principal | None) -> None:
        """Has a response end some time after the access of its principal: see `Principal.seconds_left`."""
        if principal is not None and principal.expires_at is not None:
            self._deadlines[response] = trio.current_time() + principal.seconds_left(time.time())

    async def end_expired(self) -> None:
        """Runs until cancelled, and ends the responses whose access has ended. One on which that fails is cut off."""
        while True:
            await trio.sleep(_EXPIRY_INTERVAL)
            now = trio.current_time()
            for response in [each for each, deadline in self._deadlines.items() if deadline <= now]:
                with Containment(EVENT_STREAMS, partial(self._break_off, response)):
                    response.end_access()

    async def keep_alive(self) -> None:
        """Runs until cancelled, and ends the silence of every response that was silent for half an interval.

        A stream on which that fails is cut off; the others go on. Returns at once if that is switched off.
        """
        while self._keepalive:
            await trio.sleep(self._keepalive / 2)
            for number, response in enumerate(tuple(self._responses), 1):
                with Containment(EVENT_STREAMS, partial(self._break_off, response)):
                    self._tick(response)
                if number % _RESPONSES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            for number, request in enumerate(tuple(self.unanswered), 1):
                with Containment(EVENT_STREAMS, partial(self._give_up, request)):
                    self._open(request)
                if number % _RESPONSES_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()

    def _tick(self, response: SseResponse) -> None:
        if not response.quiet:
            response.quiet = True
        elif response in self._responses and not response.full:
            try:
                response.write(COMMENT)
            except trio.BrokenResourceError:
                self._responses.discard(response)

    def _open(self, request: Unanswered) -> None:
        if not request.quiet:
            request.quiet = True
        elif request in self.unanswered:
            request.open_stream()

    def _give_up(self, request: Unanswered, error: BaseException) -> None:
        self.unanswered.discard(request)

    def _break_off(self, response: SseResponse, error: BaseException) -> None:
        self._responses.discard(response)
        response.break_off()
