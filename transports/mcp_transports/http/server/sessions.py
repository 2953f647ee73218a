"""Legacy sessions (protocol §6.4): made by a valid ``initialize``, known by an unguessable id, freed in time."""

from __future__ import annotations

import logging
import secrets

import attrs
import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler, ServerSession
from mcp_transports.http.server.calls import CallStream, JsonCallStream
from mcp_transports.http.server.error_responses import (
    INTERNAL_ERROR,
    TOO_MANY_SESSIONS,
    UNKNOWN_EVENT,
    Exchange,
)
from mcp_transports.http.server.exchange import status_of
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.server.streams import (
    SessionStream,
    StandaloneStream,
    StreamSettings,
)
from mcp_transports.http.sse import encode_event

__all__ = ["SESSION_HEADER", "HttpSessionStatistics", "LegacySession", "SessionTable"]

log = logging.getLogger("mcp_transports.http")

SESSION_HEADER = "mcp-session-id"
# Bytes of randomness of an id: nobody finds one of 50,000 by trying.
_ID_BYTES = 24
# The idle time is counted in so many ticks of the one task that looks after all sessions: no request asks for the time.
_TICKS = 4
# Sessions that are looked at before other tasks get a turn.
_AT_ONCE = 1000


@attrs.frozen
class HttpSessionStatistics:
    """The sessions of one listener."""

    open: int
    """Sessions that exist now."""
    opened: int
    """Sessions that ever began."""
    expired: int
    """Sessions that were closed because nothing happened in them."""
    refused: int
    """Sessions that did not begin because there were too many."""
    calls: int
    """Streams of calls in flight, of all sessions."""


class LegacySession:
    """One session: what the engine has of it, and its streams. It costs no task."""

    __slots__ = ("_names", "_table", "engine", "id", "principal", "seen", "settings", "standalone", "streams")

    engine: ServerSession

    def __init__(self, table: SessionTable, principal: str | None) -> None:
        self._table = table
        self.settings = table.settings
        self.principal = principal
        self.id = ""
        self.standalone = StandaloneStream(self)
        # Of calls in flight. Whether one of them waits for its client is asked when it matters.
        self.streams: set[SessionStream] = set()
        self.seen = table.tick
        self._names = 0

    def __repr__(self) -> str:
        state = "in use" if self.in_use else "idle"
        return f"<LegacySession {self.id[:6]}… {state} calls={len(self.streams)} {self.standalone!r}>"

    @property
    def in_use(self) -> bool:
        """Whether something is in flight or a client waits for something: then it is never idle."""
        return self.engine.busy or self.standalone.attached or any(stream.attached for stream in self.streams)

    def touch(self) -> None:
        """Something happened: the idle time begins anew."""
        self.seen = self._table.tick

    def new_stream_name(self) -> str:
        """One that no other stream of this session had."""
        self._names += 1
        return str(self._names)

    def deliver(self, arrival: Arrival, turn: Exchange) -> None:
        """Takes what a client POSTed. 202 for what is owed no answer."""
        self.seen = self._table.tick
        try:
            if arrival.requests:
                make = JsonCallStream if self.settings.json_replies else CallStream
                self.engine.deliver(arrival, make(self, turn))
            else:
                self.engine.deliver(arrival, self.standalone)
                turn.answer(202)
        except Exception:
            # Nobody knows what state it is in: the client is told to begin anew.
            self._table.close(self)
            raise

    async def resume(self, turn: Exchange, last_event_id: str) -> None:
        """Goes on with the stream that an event belongs to, right after it; 404 if that cannot be done exactly."""
        store = self.settings.store
        events: list[tuple[str, bytes]] = []
        cursor = last_event_id
        while True:
            replay = await store.after(self.id, cursor) if store is not None else None
            if replay is None or self._table.find(self.id, self.principal) is not self:
                turn.refuse(UNKNOWN_EVENT)
                return
            events += replay.events
            if events:
                cursor = events[-1][0]
            stream = self._stream(replay.stream)
            # More may have been appended while a slow store was asked; what has ended meanwhile has no last id here.
            if stream.last_id == cursor if stream is not None else not replay.events:
                break
            if not replay.events:
                log.error("the event store has lost events of a stream")
                turn.refuse(UNKNOWN_EVENT)
                return
        # No checkpoint from here on: nothing comes between what was missed and what comes now.
        self.touch()
        if stream is not None:
            stream.resume(turn, events)
        else:
            _replay(turn, self.settings.open_streams, events)

    def _stream(self, name: str) -> SessionStream | None:
        if self.standalone.name == name:
            return self.standalone
        return next((stream for stream in self.streams if stream.name == name), None)

    def close(self) -> None:
        """Ends the engine's side, then every response that waits."""
        self.engine.close()
        for stream in (*self.streams, self.standalone):
            stream.close()
        self.streams.clear()
        if self.settings.store is not None:
            self.settings.store.forget(self.id)


def _replay(turn: Exchange, open_streams: OpenSseResponses, events: list[tuple[str, bytes]]) -> None:
    """All that is left of a stream that has ended."""
    live = SseResponse(
        turn, open_streams, lambda gone: None, b"".join(encode_event(data, id=id) for id, data in events)
    )
    live.end()


class _Handshake:
    """The outlet of an ``initialize``: holds its answer, which goes out with the id of the session or without one."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.answer: Frame | None = None

    def post(self, frame: Frame) -> None:
        if frame.last:
            self.answer = frame

    def send_nowait(self, frame: Frame) -> bool:
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.post(frame)

    def settle(self) -> None:
        """Not answered."""

    def close_stream(self) -> None:
        """There is nothing to come back to."""


class SessionTable:
    """All sessions of one listener, by id.

    ``idle`` seconds after anything happened in it a session is closed (up to a quarter later); ``max_sessions`` bounds
    how many there are.
    """

    def __init__(self, settings: StreamSettings, *, idle: float, max_sessions: int) -> None:
        self.settings = settings
        self.tick = 0
        self._idle = idle
        self._max = max_sessions
        self._sessions: dict[str, LegacySession] = {}
        self._opened = self._expired = self._refused = 0

    def __repr__(self) -> str:
        return f"<SessionTable {len(self._sessions)}/{self._max}>"

    def begin(self, handler: ServerHandler, arrival: Arrival, turn: Exchange, principal: str | None) -> None:
        """Answers an ``initialize``; only one that was answered with a result leaves a session behind."""
        if len(self._sessions) >= self._max:
            self._refused += 1
            turn.refuse(TOO_MANY_SESSIONS)
            return
        session = LegacySession(self, principal)
        session.engine = handler.open_session(session.standalone, principal)
        outlet = _Handshake(self.settings.longest)
        try:
            session.engine.deliver(arrival, outlet)
        except BaseException:
            session.engine.close()
            raise
        answer = outlet.answer
        if answer is not None and session.engine.initialized:
            session.id = secrets.token_urlsafe(_ID_BYTES)
            self._sessions[session.id] = session
            self._opened += 1
            turn.answer(200, answer.data, ((SESSION_HEADER, session.id),))
            return
        session.engine.close()
        if answer is None:
            log.error("an initialize was not answered at once")
            turn.refuse(INTERNAL_ERROR)
        else:
            turn.answer(status_of(answer, "legacy"), answer.data)

    def find(self, id: str, principal: str | None) -> LegacySession | None:
        """The session, for the principal that began it; whoever else asks learns nothing (CVE-2026-52869)."""
        session = self._sessions.get(id)
        return session if session is not None and session.principal == principal else None

    def close(self, session: LegacySession) -> None:
        """Ends a session; its id is unknown from now on."""
        if self._sessions.pop(session.id, None) is not None:
            session.close()

    def close_all(self) -> None:
        for session in tuple(self._sessions.values()):
            self.close(session)

    def close_standalone(self) -> None:
        """Ends the streams that would never end by themselves; calls in flight keep theirs."""
        for session in self._sessions.values():
            session.standalone.close()

    async def expire(self) -> None:
        """Runs until cancelled: closes the sessions in which nothing happened."""
        while True:
            await trio.sleep(self._idle / _TICKS)
            self.tick += 1
            for number, session in enumerate(tuple(self._sessions.values()), 1):
                if session.in_use:
                    session.touch()
                elif self.tick - session.seen > _TICKS:
                    self._expired += session.id in self._sessions
                    self.close(session)
                if number % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()

    def statistics(self) -> HttpSessionStatistics:
        """How many there are and were."""
        calls = sum(len(session.streams) for session in self._sessions.values())
        return HttpSessionStatistics(len(self._sessions), self._opened, self._expired, self._refused, calls)
