"""Responses that carry server-sent events, and the settings that all streams of a listener share.

`OpenSseResponses` has the task that ends the silence of responses. A `KeptSseResponse` sends an event only once a log
that spans processes has kept it: a client that got an event may come back to any node and ask for the events behind
it, so no node may send one that the others could not find if this node were lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import attrs
import trio

from mcp_actors.abc import EventLog
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.principal import Principal
from mcp_actors.supervision.task_kinds import EVENT_STREAMS
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.responses import EVENTS, Header
from mcp_transports.http.sse import COMMENT, encode_event

__all__ = [
    "KeptSseResponse",
    "OpenSseResponses",
    "PendingEvent",
    "SessionEnding",
    "SseResponse",
    "StreamSettings",
    "Unanswered",
]

# No intermediary may hold events back (MCP 2026-07-28, Streamable HTTP, Receiving Messages).
_HEADERS: tuple[Header, ...] = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
# Responses that are written to before other tasks run: some milliseconds' worth.
_RESPONSES_AT_ONCE = 64
# Seconds between two looks for responses whose access has ended: little beside the grace that they have.
_EXPIRY_INTERVAL = 5.0
SessionEnding = Literal["deleted", "closed", "failed"]
"""Why a session ended: its client deleted it, this side closed it, or it failed."""
# Bytes of events that are not known to be kept: from the first on their writer waits, and over the second the
# response is cut off, as `HttpLimits.write_buffer` and `HttpLimits.max_buffered` by default.
WRITE_BUFFER = 256 * 1024
MAX_PENDING = 8 * 1024 * 1024
# Seconds that a client which resumes waits for an event to be kept; longer than any log tries.
_LONGEST_WAIT = 10.0
# Seconds between two looks at whether an event still waits for the log, once the server stops.
_LOOK_AGAIN = 0.02


@attrs.frozen
class StreamSettings:
    """The settings that all streams of a listener share."""

    open_responses: OpenSseResponses
    """The registry of the responses that carry events now."""
    longest: int
    """Bytes of the longest message that is sent."""
    store: EventLog | None
    """Keeps events for clients that resume a stream; without a store no stream can be resumed."""
    json_replies: bool
    """Whether a POST is always answered with JSON."""
    retry: int
    """Milliseconds after which a client comes back when its stream was closed on purpose (SEP-1699)."""

    @property
    def waits_for_log(self) -> bool:
        """Whether an event may leave only once the log has kept it, because other nodes have to find it then."""
        return self.store is not None and self.store.spans_processes


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

    @property
    def waits(self) -> bool:
        """Whether there are events that were not sent yet, because they wait for the log."""
        return False

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
        # By the clock of Trio: when responses end because the access of their callers does.
        self._deadlines: dict[SseResponse, float] = {}

    def __repr__(self) -> str:
        return f"<OpenSseResponses: {len(self._responses)}, a comment every {self._keepalive:g} s of silence>"

    def __len__(self) -> int:
        return len(self._responses)

    async def until_none_waits(self) -> None:
        """Waits until no response has events that wait for the log."""
        while any(each.waits for each in self._responses):  # noqa: ASYNC110 - no event for many
            await trio.sleep(_LOOK_AGAIN)

    def add(self, response: SseResponse) -> None:
        """Adds a response that was opened."""
        self._responses.add(response)

    def discard(self, response: SseResponse) -> None:
        """Removes a response that has ended."""
        self._responses.discard(response)
        if self._deadlines:
            self._deadlines.pop(response, None)

    def end_with_access(self, response: SseResponse, principal: Principal | None) -> None:
        """Ends a response some time after the access of its principal has ended: see `Principal.seconds_left`."""
        if principal is not None and principal.expires_at is not None:
            self._deadlines[response] = trio.current_time() + principal.seconds_left(time.time())

    async def end_expired(self) -> None:
        """Runs until cancelled, and ends responses whose access has ended; if that fails, it cuts them off."""
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
        """Takes the decision of the log, perhaps before the id is known; see `mcp_actors.abc.EventLog.append`."""
        self.is_kept = is_kept
        if not is_kept:
            self._on_lost()
        if self._decided is not None:
            self._decided.set()
        if self.response is not None:
            self.response.flush()

    async def wait(self) -> bool:
        """Waits for the decision of the log, for a bounded time; false if it was known before or does not come."""
        if self.is_kept is not None:
            return False
        if self._decided is None:
            self._decided = trio.Event()
        with trio.move_on_after(_LONGEST_WAIT):
            await self._decided.wait()
        return self.is_kept is not None

    def encoded(self) -> bytes:
        """Returns the bytes to send: nothing for an event with neither an id nor data."""
        if self.is_kept:
            return encode_event(self._data, id=self.id)
        return encode_event(self._data) if self._data else b""


class KeptSseResponse(SseResponse):
    """An `SseResponse` in which events wait for the log, and later ones wait behind them."""

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

    @property
    def waits(self) -> bool:
        return bool(self._pending) and not self.response.gone

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
        """Closes the connection without ending the response, and drops the events that wait."""
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
