"""The streams of a legacy session: one for each POST with requests, and one for everything else.

A stream is a sequence of messages; a response carries them while there is one. MCP 2025-11-25, Transports, Multiple
Connections: each message goes to one stream only. A client that lost the response has cancelled nothing (ibid.,
Sending Messages to the Server): the messages that follow are kept, if the client received an event id that it can
resume from (ibid., Resumability and Redelivery).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec
import trio

from mcp_actors.abc import EventLog, Frame, ServerSession
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.task_kinds import EVENT_STREAMS
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.outlet import ResponseOutlet
from mcp_transports.http.server.responses import (
    INTERNAL_ERROR,
    LEGACY_STATUSES,
    SESSION_NOT_FOUND,
    STREAM_ALREADY_OPEN,
    Refusal,
)
from mcp_transports.http.server.sse_response import (
    KeptSseResponse,
    PendingEvent,
    SessionEnding,
    SseResponse,
    StreamSettings,
)
from mcp_transports.http.sse import COMMENT, encode_event, encode_retry

__all__ = [
    "STANDALONE",
    "CallStream",
    "JsonCallStream",
    "SessionStream",
    "StandaloneStream",
    "StreamOwner",
    "StreamPart",
]

# Messages that wait for a client which comes back from another node: each URI that it may have subscribed to has one.
MAX_HELD = 2048
# Their bytes: twice those of updates of as many of the longest URIs as a session may have.
MAX_HELD_BYTES = 16 * 1024 * 1024

# The standalone stream of a session has this name in the event log; those of calls have numbers.
STANDALONE = "get"
# The answer to a POST in flight. A client that has deleted its session wants no answer any more, and gets what a
# cancelled call gets; the official Python client would have no caller to report an error to, and fail.
_REFUSALS: dict[SessionEnding, Refusal | None] = {
    "deleted": None,
    "closed": SESSION_NOT_FOUND,
    "failed": INTERNAL_ERROR,
}


class StreamOwner(Protocol):
    """The attributes and methods of a session that its streams use."""

    id: str
    settings: StreamSettings
    engine: ServerSession
    standalone: StandaloneStream
    streams: dict[SessionStream, None]

    def touch(self) -> None: ...

    def call_ended(self) -> None: ...

    def end(self) -> None: ...

    def new_stream_name(self) -> str: ...

    def ends_if_raised(self, doing: str) -> Containment: ...

    def goes_on_if_raised(self, doing: str) -> Containment: ...


class SessionStream(ResponseOutlet):
    """One stream of a session.

    ``name`` is its name in the event log, once the client has an event id of it, and ``last_id`` the last such id.
    """

    __slots__ = ("_newest", "last_id", "name", "session")

    def __init__(self, session: StreamOwner) -> None:
        self.session = session
        self.longest = session.settings.longest
        self.sse = None
        self.name: str | None = None
        # The newest event, where events wait for the log.
        self._newest: PendingEvent | None = None
        self.last_id: str | None = None

    @property
    def attached(self) -> bool:
        """Whether a client waits for messages of this stream."""
        return self.sse is not None

    # -- as an outlet ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Does nothing, because no request is answered on this stream."""

    def close_stream(self) -> None:
        """Ends the response. The client resumes the stream by itself, after the delay that it was sent (SEP-1699)."""
        if self.sse is not None and self.name is not None and self.session.engine.resumes:
            self._end_response(encode_retry(self.session.settings.retry))

    async def _drained(self) -> None:
        sse = self.sse
        assert sse is not None
        try:
            await sse.drained()
        except trio.BrokenResourceError:
            # Only the response is lost: the messages that follow are kept for the client.
            self._detach(sse)

    # -- the response ----------------------------------------------------------------------------------------------

    def resume(self, exchange: HttpExchange, events: Sequence[tuple[str, bytes]]) -> None:
        """Answers a client that resumes, with the events that it missed and then with all later ones.

        This replaces an earlier response, because a client that resumes has lost it.
        """
        missed = b"".join(encode_event(data, id=id) for id, data in events)
        sse, self.sse = self.sse, None
        if sse is not None and (sse.full or self.session.settings.waits_for_log):
            # Its client does not read, or its network is gone. A call that waits for room must not wait any longer.
            sse.abort()
        elif sse is not None:
            sse.end()
        self._attach(exchange, missed)

    def close(self, ending: SessionEnding) -> None:
        """Ends the stream with its session: in order, or cut off if the session failed. Never raises."""
        sse, self.sse = self.sse, None
        self.name = None
        if sse is not None:
            with Containment(EVENT_STREAMS, lambda error: sse.abort(), {"doing": "end a stream"}):
                if ending == "failed":
                    sse.abort()
                else:
                    sse.end()

    def _attach(self, exchange: HttpExchange, first: bytes) -> None:
        settings = self.session.settings
        kind = KeptSseResponse if settings.waits_for_log else SseResponse
        sse = kind(exchange, settings.open_responses, self._detach, first)
        self.sse = None if sse.gone else sse

    def _detach(self, sse: SseResponse) -> None:
        if self.sse is sse:
            self.sse = None
            self.session.touch()

    def _end_response(self, last: bytes = b"") -> None:
        sse, self.sse = self.sse, None
        if sse is not None:
            self.session.touch()
            sse.end(last)

    # -- events ----------------------------------------------------------------------------------------------------

    def _event(self, data: bytes) -> bytes:
        """Makes an event, and keeps it if the client can resume this stream.

        Raises:
            trio.BrokenResourceError: The store failed, which has ended the session, because the client could not know
                that its stream has a gap.
        """
        store = self.session.settings.store
        if store is None or self.name is None:
            return encode_event(data)
        try:
            if store.spans_processes:
                self.last_id = self._send_once_kept(store, self.name, data)
                return b""
            id = _checked(store.append(self.session.id, self.name, data))
            event = encode_event(data, id=id)
        except BaseException:
            with self.session.ends_if_raised("keep an event"):
                raise
            raise trio.BrokenResourceError("the session ended, because its event log failed") from None
        self.last_id = id
        return event

    def _send_once_kept(self, store: EventLog, name: str, data: bytes) -> str:
        """Gives an event to the log, which has it sent on the response once it is kept, and returns its id."""
        event = PendingEvent(data, partial(self._lose_log, name))
        event.id = id = _checked(store.append(self.session.id, name, data, event.kept))
        self._newest = event
        if isinstance(self.sse, KeptSseResponse):
            self.sse.add(event)
        return id

    def _lose_log(self, name: str) -> None:
        """Goes on without ids, because an event could not be kept: the stream cannot be resumed from here on."""
        if self.name == name:
            self.name = None

    async def wait_until_kept(self) -> bool:
        """Waits until the log has kept the newest event, and returns false if there is nothing to wait for."""
        return self._newest is not None and await self._newest.wait()

    def _priming_event(self) -> bytes:
        """Makes an empty event with an id, so that a client can resume before the first message (SEP-1699).

        Clients of revisions before 2025-11-25 do not get it, because they would read it as a message. It raises the
        errors of `_event`.
        """
        return self._event(b"") if self.name is not None and self.session.engine.resumes else b""

    def _write(self, data: bytes) -> None:
        """Sends a message, or keeps it, or drops it if the client can never get it. Raises the errors of `_event`."""
        sse = self.sse
        if sse is not None or self.name is not None:
            event = self._event(data)
            if sse is not None:
                try:
                    sse.write(event)
                except trio.BrokenResourceError:
                    self._detach(sse)


def _checked(id: object) -> str:
    if not isinstance(id, str):
        raise TypeError(f"EventLog.append returned {id!r}, which is not an event id")
    return id


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """The part of the stream that belongs to no request with which another node goes on."""

    last_id: str | None
    """The id of its last event; ``None`` if it has none, or cannot be resumed."""
    is_named: bool
    """Whether its events are kept, so that the client can resume it."""
    was_open: bool
    """Whether the client had it open, here or at the node before, and comes back to it by itself."""
    held: list[bytes] = []
    """The messages that waited for that."""


class StandaloneStream(SessionStream):
    """The stream of messages outside of any request.

    MCP 2025-11-25, Transports, Listening for Messages from the Server.

    While the client has no GET open, notifications are kept if it can resume this stream, and dropped otherwise;
    requests to the client fail.
    """

    __slots__ = ("_held", "_held_bytes", "_pass_on", "_waits")
    protocol = "http"

    def __init__(self, session: StreamOwner) -> None:
        super().__init__(session)
        # Messages of a session that another node had, until its client is there, or of one that another node has, until
        # that says so.
        self._held: dict[bytes, None] | None = None
        self._held_bytes = 0
        self._waits = False
        self._pass_on: Callable[[bytes], None] | None = None

    def __repr__(self) -> str:
        return f"<StandaloneStream {'attached' if self.attached else 'detached'}>"

    def open(self, exchange: HttpExchange) -> None:
        """Answers a GET that resumes nothing: with this stream, or with 409 while another GET has it."""
        if self.sse is not None:
            exchange.refuse(STREAM_ALREADY_OPEN)
            return
        if self.session.settings.store is not None:
            self.name = STANDALONE
        if self.session.settings.waits_for_log:
            self._attach(exchange, b"")
            with suppress(trio.BrokenResourceError):
                self._priming_event()
            return
        try:
            first = self._priming_event()
        except trio.BrokenResourceError:
            exchange.refuse(INTERNAL_ERROR)
        else:
            self._attach(exchange, first)

    def leave(self) -> StreamPart:
        """Ends the response, whose client comes back to another node, and returns what that needs to go on."""
        is_named = self.name is not None
        was_open = self.attached or self._waits
        part = StreamPart(self.last_id if is_named else None, is_named, was_open, self._take_held())
        if self.sse is not None:
            self._end_response(
                encode_retry(self.session.settings.retry) if self.session.engine.resumes else b""
            )
        self.name = None
        self._waits = True
        return part

    def go_on(self, part: StreamPart) -> None:
        """Goes on where another node has left the stream: what comes waits for the client, if it was there."""
        if part.is_named and self.session.settings.store is not None:
            self.name, self.last_id = STANDALONE, part.last_id
        self._waits = part.was_open
        for data in part.held:
            self._hold(data)

    @property
    def holds_messages(self) -> bool:
        """Whether messages wait here that another node is to send."""
        return bool(self._held)

    def pass_on(self, take: Callable[[bytes], None]) -> None:
        """Gives all messages to ``take`` from now on: another node has the session."""
        self._pass_on = take
        for data in self._take_held():
            take(data)

    def end_session(self) -> None:
        """Ends the session; its client gets 404 when it comes again."""
        self.session.end()

    def _attach(self, exchange: HttpExchange, first: bytes) -> None:
        super()._attach(exchange, first)
        if self.sse is not None:
            self.session.settings.open_responses.end_with_access(self.sse, exchange.request.principal)
            self._waits = False
            with suppress(trio.BrokenResourceError):
                for data in self._take_held():
                    self._write(data)

    def _hold(self, data: bytes) -> None:
        """Keeps a notification that waits, if there is room. Of two that are alike one is enough: they say the same."""
        if self._held is None:
            self._held = {}
        if (
            data not in self._held
            and len(self._held) < MAX_HELD
            and self._held_bytes + len(data) <= MAX_HELD_BYTES
        ):
            self._held[data] = None
            self._held_bytes += len(data)

    def _take_held(self) -> list[bytes]:
        held, self._held, self._held_bytes = list(self._held or ()), None, 0
        return held

    def _accept(self, frame: Frame) -> None:
        if self.sse is None and frame.request is not None:
            raise trio.BrokenResourceError("the client has no stream open on which it could be asked")
        if self._pass_on is not None:
            self._pass_on(frame.data)
        elif self._waits and self.sse is None:
            self._hold(frame.data)
        else:
            self._write(frame.data)


class CallStream(SessionStream):
    """The stream of messages about the requests of one POST, until all of them are answered.

    The first frame decides how the POST is answered: with JSON if it is the last one already, else with a stream.
    A POST that stays unanswered for too long gets its stream before the first frame.
    """

    __slots__ = ("_exchange", "http_request", "quiet")

    def __init__(self, session: StreamOwner, exchange: HttpExchange) -> None:
        super().__init__(session)
        # The POST, while it is not answered.
        self._exchange: HttpExchange | None = exchange
        self.quiet = False
        self.http_request = exchange.request
        exchange.response.on_gone = self._left
        session.streams[self] = None
        self._await_silence()

    def __repr__(self) -> str:
        state = "waits" if self._exchange is not None else "attached" if self.sse is not None else "detached"
        return f"<CallStream {state}>"

    @property
    def attached(self) -> bool:
        return self._exchange is not None or self.sse is not None

    def settle(self) -> None:
        """Ends the stream without an answer, because its calls were cancelled."""
        exchange = self._take_exchange()
        if exchange is not None:
            exchange.answer(202)
        self._complete()

    def open_stream(self) -> None:
        """Begins the response to a POST that was silent for too long."""
        exchange = self._exchange
        if exchange is not None:
            with suppress(trio.BrokenResourceError):
                self._open(exchange)

    def close_stream(self) -> None:
        exchange = self._exchange
        if exchange is not None and self.session.settings.store is not None and self.session.engine.resumes:
            with suppress(trio.BrokenResourceError):
                self._open(exchange)
        super().close_stream()

    def close(self, ending: SessionEnding) -> None:
        exchange = self._take_exchange()
        if exchange is not None:
            with exchange.containment("end a call with its session"):
                refusal = _REFUSALS[ending]
                if refusal is None:
                    exchange.answer(202)
                else:
                    exchange.refuse(refusal)
        super().close(ending)

    def _await_silence(self) -> None:
        self.session.settings.open_responses.unanswered.add(self)

    def _take_exchange(self) -> HttpExchange | None:
        """Returns the POST if it is not answered yet; the caller must answer it."""
        self.session.settings.open_responses.unanswered.discard(self)
        exchange, self._exchange = self._exchange, None
        return exchange

    def _left(self) -> None:
        self._take_exchange()
        self.session.touch()

    def _accept(self, frame: Frame) -> None:
        exchange = self._exchange
        if exchange is not None:
            if frame.last:
                self._take_exchange()
                status = LEGACY_STATUSES[frame.refusal]
                if frame.refusal is not None:
                    exchange.headers = exchange.refusal_headers(status, frame, repeats_granted=True)
                exchange.answer(status, frame.data)
            else:
                self._open(exchange, frame.data)
        elif frame.last:
            self._end_response(self._event(frame.data))
        elif frame.request is not None and self.sse is None and self.name is None:
            raise trio.BrokenResourceError("the client has left and cannot come back to this stream")
        else:
            self._write(frame.data)
        if frame.last:
            self._complete()

    def _open(self, exchange: HttpExchange, *messages: bytes) -> None:
        if self.session.settings.store is not None:
            self.name = self.session.new_stream_name()
        if self.session.settings.waits_for_log:
            self._take_exchange()
            self._attach(exchange, COMMENT)
            self._priming_event()
            for message in messages:
                self._event(message)
            return
        # If an event cannot be kept, the session ends and answers the POST. So the exchange is released after that.
        first = self._priming_event() + b"".join(map(self._event, messages))
        self._take_exchange()
        self._attach(exchange, first or COMMENT)

    def _complete(self) -> None:
        self.session.streams.pop(self, None)
        store = self.session.settings.store
        if self.name is not None and store is not None:
            with self.session.goes_on_if_raised("tell the event log of the end of a stream"):
                store.end(self.session.id, self.name)
        self._end_response()
        self.session.call_ended()


class JsonCallStream(CallStream):
    """A `CallStream` that is always answered with JSON. All other messages go to the standalone stream."""

    __slots__ = ()

    def _await_silence(self) -> None:
        """Does nothing, because an answer that is JSON cannot begin before it is known."""

    def post(self, frame: Frame) -> None:
        if frame.last:
            super().post(frame)
        else:
            self.session.standalone.post(frame)

    def send_nowait(self, frame: Frame) -> bool:
        if frame.last:
            return super().send_nowait(frame)
        return self.session.standalone.send_nowait(frame)

    async def send(self, frame: Frame) -> None:
        if frame.last:
            await super().send(frame)
        else:
            await self.session.standalone.send(frame)

    def close_stream(self) -> None:
        """Does nothing: without a stream nothing can be resumed."""
