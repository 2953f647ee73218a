"""The HTTP side of one legacy session: its streams, what reaches them, and what its end costs.

MCP 2025-11-25, Transports, Session Management.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from mcp_actors.abc import Arrival, ServerSession
from mcp_actors.errors import SharedStateUnavailable
from mcp_actors.logging import log
from mcp_actors.principal import Principal
from mcp_actors.supervision import Containment, TaskKind
from mcp_transports.http.server.error_responses import (
    EVENT_NOT_FOUND,
    shared_state_unavailable,
)
from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.json_call_stream import JsonCallStream
from mcp_transports.http.server.session_streams import (
    CallStream,
    SessionStream,
    StandaloneStream,
)
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.server.stream_settings import SessionEnding, StreamSettings
from mcp_transports.http.sse import encode_event

__all__ = ["HttpSession"]

# A session has no task of its own: a failure in it ends it, whichever task the failure happens in.
_SESSION = TaskKind(
    "HTTP session", "listener", "session", "the client: 500, then 404, so that it begins anew"
)
_SESSION_CLEANUP = TaskKind("HTTP session", "listener", "nothing", "nobody")


class SessionOwner(Protocol):
    """The part of the table of sessions that a session uses."""

    settings: StreamSettings
    tick: int

    def find(self, id: str, principal: Principal | None) -> HttpSession | None:
        """Returns a session to the principal that began it, and ``None`` to any other."""

    def close(self, session: HttpSession, ending: SessionEnding = "closed") -> None:
        """Ends a session. Never raises."""


class HttpSession:
    """The HTTP side of a session: its id, its owner, its streams, and the time of its last activity.

    The engine keeps its messages and its protocol revision, in ``engine``. A session costs no task.
    """

    __slots__ = (
        "__weakref__",
        "_names",
        "_table",
        "engine",
        "holder",
        "id",
        "principal",
        "seen",
        "settings",
        "standalone",
        "streams",
    )

    engine: ServerSession

    def __init__(self, table: SessionOwner, principal: Principal | None, holder: str | None) -> None:
        self._table = table
        self.settings = table.settings
        self.principal = principal
        # The principal or the address that began it.
        self.holder = holder
        self.id = ""
        # Weakly, since a session that has ended must not wait for the garbage collector.
        self.standalone = StandaloneStream(weakref.proxy(self))
        # The streams of calls in flight. `in_use` looks whether a client waits for one of them.
        self.streams: set[SessionStream] = set()
        self.seen = table.tick
        self._names = 0

    def __repr__(self) -> str:
        state = "in use" if self.in_use else "idle"
        return f"<HttpSession {self.id[:6]}… {state} calls={len(self.streams)} {self.standalone!r}>"

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight or a client waits for something: such a session is never idle."""
        return self.engine.busy or self.standalone.attached or any(stream.attached for stream in self.streams)

    def touch(self) -> None:
        """Notes an activity, with which the idle time begins anew."""
        self.seen = self._table.tick

    def new_stream_name(self) -> str:
        """Returns a name that no other stream of this session had."""
        self._names += 1
        return str(self._names)

    def deliver(self, arrival: Arrival, exchange: HttpExchange) -> None:
        """Takes the messages of a POST. Those that expect no answer are answered with 202.

        If the engine fails on them, the session ends, because its state is unknown then.
        """
        self.seen = self._table.tick
        try:
            if arrival.requests:
                stream = JsonCallStream if self.settings.json_replies else CallStream
                self.engine.deliver(arrival, stream(self, exchange))
                # The stream keeps the request for its calls, which may be long. Its body was decoded.
                exchange.request.body = b""
            else:
                self.engine.deliver(arrival, self.standalone)
                exchange.answer(202)
        except BaseException:
            with self.ends_if_raised("take a message"):
                raise
            exchange.fail()

    async def resume(self, exchange: HttpExchange, last_event_id: str) -> None:
        """Answers a GET with all that followed an event in its stream, or with 404 if that is not known exactly.

        MCP 2025-11-25, Transports, Resumability and Redelivery: no event of another stream is sent.
        """
        try:
            await self._resume(exchange, last_event_id)
        except SharedStateUnavailable as error:
            exchange.refuse(shared_state_unavailable(error))

    async def _resume(self, exchange: HttpExchange, last_event_id: str) -> None:
        store = self.settings.store
        events: list[tuple[str, bytes]] = []
        cursor = last_event_id
        while True:
            replay = await store.after(self.id, cursor) if store is not None else None
            if replay is None or self._table.find(self.id, self.principal) is not self:
                exchange.refuse(EVENT_NOT_FOUND)
                return
            events += replay.events
            if events:
                cursor = events[-1][0]
            stream = self._stream(replay.stream)
            # Events may have been appended while a slow store was read. A stream that has ended is not listed.
            if stream.last_id == cursor if stream is not None else not replay.events:
                break
            if not replay.events and not (stream is not None and await stream.wait_until_kept()):
                log.error("the event log has lost events of a stream", session=self.id[:6])
                exchange.refuse(EVENT_NOT_FOUND)
                return
        # There is no checkpoint from here on, so no message comes between those that were missed and the next ones.
        self.touch()
        if stream is not None:
            stream.resume(exchange, events)
        else:
            _replay(exchange, self.settings.open_responses, events)

    def _stream(self, name: str) -> SessionStream | None:
        if self.standalone.name == name:
            return self.standalone
        return next((stream for stream in self.streams if stream.name == name), None)

    def end(self) -> None:
        """Ends the session as if its client had deleted it. Never raises."""
        self._table.close(self)

    def close(self, ending: SessionEnding) -> None:
        """Ends the engine's session, then every response that waits. Never raises.

        If the session failed, streams are cut off and unanswered requests get an internal error. Otherwise streams end
        in order, and those requests get the error that the session is gone, or 202 if the client deleted it.
        """
        with self.goes_on_if_raised("close the engine's session"):
            self.engine.close()
        for stream in (*self.streams, self.standalone):
            stream.close(ending)
        self.streams.clear()
        if self.settings.store is not None:
            with self.goes_on_if_raised("have the event log forget a session"):
                self.settings.store.forget(self.id)

    def ends_if_raised(self, doing: str) -> Containment:
        """Returns a context manager for work on which the session depends: an error of it ends this session alone."""
        return Containment(
            _SESSION,
            lambda error: self._table.close(self, "failed"),
            {"session": self.id[:6], "doing": doing},
        )

    def goes_on_if_raised(self, doing: str) -> Containment:
        """Returns a context manager for cleaning up: an error of it is logged and ends nothing."""
        return Containment(_SESSION_CLEANUP, None, {"session": self.id[:6], "doing": doing})


def _replay(
    exchange: HttpExchange, open_responses: OpenSseResponses, events: list[tuple[str, bytes]]
) -> None:
    """Sends the events that are left of a stream that has ended."""
    first = b"".join(encode_event(data, id=id) for id, data in events)
    SseResponse(exchange, open_responses, lambda gone: None, first).end()
