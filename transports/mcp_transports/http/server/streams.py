"""The streams of a legacy session (protocol §6.4): one for each POST that is owed an answer, one for everything else.

A stream is a line of messages in order; a response is where they go while there is one. A client that lost the response
did not cancel anything: what follows is kept, if the client was ever told an event id to come back with. Each message
goes to one stream, and to one response at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from mcp_actors.abc import Frame, ServerSession
from mcp_transports.http.server.error_responses import STREAM_TAKEN, Exchange
from mcp_transports.http.server.event_store import EventStore
from mcp_transports.http.server.exchange import too_long
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event, encode_retry

__all__ = ["SessionStream", "StandaloneStream", "StreamOwner", "StreamSettings"]

# The stream of a session that belongs to no request has this name in the event store; the others have numbers.
_STANDALONE = "get"


@attrs.frozen
class StreamSettings:
    """What all streams of a listener have in common."""

    open_streams: OpenSseResponses
    longest: int
    """Bytes of the longest message that is sent."""
    store: EventStore | None
    """Where events are kept for clients that come back; without it nobody can."""
    json_replies: bool
    """Whether a POST is always answered with JSON."""
    retry: int
    """Milliseconds after which a client comes back whose stream was closed."""


class StreamOwner(Protocol):
    """What a stream asks of its session."""

    id: str
    settings: StreamSettings
    engine: ServerSession
    standalone: StandaloneStream
    streams: set[SessionStream]

    def touch(self) -> None: ...

    def new_stream_name(self) -> str: ...


class SessionStream:
    """One stream of a session. An `Outlet`.

    ``name`` is that of the stream in the event store, once a client was told an id of it, and ``last_id`` the last one.
    """

    __slots__ = ("last_id", "live", "name", "session")

    def __init__(self, session: StreamOwner) -> None:
        self.session = session
        self.live: SseResponse | None = None
        self.name: str | None = None
        self.last_id: str | None = None

    @property
    def longest(self) -> int:
        return self.session.settings.longest

    @property
    def attached(self) -> bool:
        """Whether a client waits at the other end."""
        return self.live is not None

    # -- the outlet ------------------------------------------------------------------------------------------------

    def post(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise too_long(frame, self.longest)
        self._put(frame)

    def send_nowait(self, frame: Frame) -> bool:
        if self.live is not None and self.live.full:
            return False
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.send_nowait(frame):
            live = self.live
            assert live is not None
            try:
                await live.drained()
            except trio.BrokenResourceError:
                self._detach(live)

    def settle(self) -> None:
        """Nothing to do: no request is owed an answer here."""

    def close_stream(self) -> None:
        """Hangs up on a client that comes back by itself for the rest, after the time it is told (SEP-1699)."""
        if self.live is not None and self.name is not None and self.session.engine.resumes:
            self._end(encode_retry(self.session.settings.retry))

    # -- who listens -----------------------------------------------------------------------------------------------

    def resume(self, turn: Exchange, events: Sequence[tuple[str, bytes]]) -> None:
        """A client came back: it gets what it missed, then whatever comes. The newest response wins."""
        if self.live is not None and self.live.full:
            # It does not read, or its network is gone: whoever waits for it to take more must not wait any longer.
            self.live.abort()
        self._end()
        self._attach(turn, b"".join(encode_event(data, id=id) for id, data in events))

    def close(self) -> None:
        """The session is over: nothing is kept any more."""
        self._end()
        self.name = None

    def _attach(self, turn: Exchange, first: bytes) -> None:
        live = SseResponse(turn, self.session.settings.open_streams, self._detach, first)
        self.live = None if live.gone else live

    def _detach(self, live: SseResponse) -> None:
        if self.live is live:
            self.live = None
            self.session.touch()

    def _end(self, last: bytes = b"") -> None:
        live, self.live = self.live, None
        if live is not None:
            self.session.touch()
            live.end(last)

    # -- what is said ----------------------------------------------------------------------------------------------

    def _put(self, frame: Frame) -> None:
        raise NotImplementedError

    def _event(self, data: bytes) -> bytes:
        """Makes an event, and keeps it for a client that may miss it and can come back."""
        store = self.session.settings.store
        if store is None or self.name is None:
            return encode_event(data)
        self.last_id = store.append(self.session.id, self.name, data)
        return encode_event(data, id=self.last_id)

    def _primer(self) -> bytes:
        """Tells an id before anything happened, to clients that know such an event from a message (SEP-1699)."""
        return self._event(b"") if self.name is not None and self.session.engine.resumes else b""

    def _say(self, data: bytes) -> None:
        live = self.live
        if live is not None or self.name is not None:
            event = self._event(data)
            if live is not None:
                try:
                    live.write(event)
                except trio.BrokenResourceError:
                    self._detach(live)


class StandaloneStream(SessionStream):
    """What belongs to no request in flight: it flows while the client has its GET open.

    While it has not, notifications are kept if the client can come back for them, else dropped, and questions fail.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<StandaloneStream {'attached' if self.attached else 'detached'}>"

    def open(self, turn: Exchange) -> None:
        """A GET without an id to go on from: 409 while another one is open."""
        if self.live is not None:
            turn.refuse(STREAM_TAKEN)
            return
        if self.session.settings.store is not None:
            self.name = _STANDALONE
        self._attach(turn, self._primer())

    def _put(self, frame: Frame) -> None:
        if self.live is None and frame.request is not None:
            raise trio.BrokenResourceError("the client has no stream open on which it could be asked")
        self._say(frame.data)
