"""What all the requests and streams of one channel share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from mcp_actors.abc import Frame, NoAnswer
from mcp_actors.errors import (
    ConnectionLost,
    LocalProtocolError,
    McpError,
    RemoteProtocolError,
    SessionExpired,
)
from mcp_transports.http.client.http import Answer, Headers, HttpRequester
from mcp_transports.http.client.receive_queue import ReceiveQueue

__all__ = ["Options", "SessionState", "Waiting", "is_modern", "log"]

log = logging.getLogger("mcp_transports.http")

ACCEPT_BOTH = (b"accept", b"application/json, text/event-stream")
ACCEPT_STREAM = (b"accept", b"text/event-stream")
CONTENT_TYPE = (b"content-type", b"application/json")

# Seconds in which requests under way may learn by themselves that their session is forgotten.
EXPIRY_GRACE = 1.0


@attrs.frozen(kw_only=True)
class Options:
    """How a channel behaves; times are seconds. `HttpClientTransport` documents them."""

    listen: bool
    max_posts: int
    message_timeout: float
    resume_attempts: int


class Waiting(Protocol):
    """A request of ours that is under way."""

    modern: bool
    begun: bool
    sent: trio.Event

    def settle(self) -> None: ...

    def cancel(self) -> None: ...


class SessionState:
    """One channel's talk with its server: where it goes, in which session, and who waits for what."""

    def __init__(self, wire: HttpRequester, inbox: ReceiveQueue, options: Options) -> None:
        self.wire = wire
        self.inbox = inbox
        self.options = options
        self.room = trio.CapacityLimiter(options.max_posts)
        self.tasks: trio.Nursery | None = None
        # The server's id for us, and the version that was agreed on: legacy only.
        self.session: str | None = None
        self._version: str | None = None
        # Where to post once the server turned out to speak HTTP+SSE.
        self.endpoint: HttpRequester | None = None
        self.broken: McpError | None = None
        self.waiting: dict[int | str, Waiting] = {}
        # The era of the last request: the era of a connection changes while it is found out, never afterwards.
        self.modern = False
        # Whether the server no longer knows our session.
        self.forgotten = False
        self._fewer = trio.lowlevel.ParkingLot()
        self._pauses = 0
        self._quiet = trio.lowlevel.ParkingLot()

    # -- headers ---------------------------------------------------------------------------------------------------

    def post_headers(self, frame: Frame) -> Headers:
        """For the POST of a frame: what the protocol mirrors, and the session, which exists in the legacy era only."""
        headers = [ACCEPT_BOTH, CONTENT_TYPE]
        for name, value in (frame.metadata or {}).items():
            headers.append(_field(name, value))
        if not is_modern(frame):
            self._version = (frame.metadata or {}).get("mcp-protocol-version", self._version)
            headers += self._session_header()
        return headers

    def stream_headers(self, last_event_id: str | None = None) -> Headers:
        """For a GET, which only the legacy era has."""
        headers = [ACCEPT_STREAM, *self.session_headers()]
        if last_event_id is not None:
            headers.append((b"last-event-id", last_event_id.encode()))
        return headers

    def session_headers(self) -> Headers:
        """What places a request in our session: enough for its DELETE."""
        version = [] if self._version is None else [_field("mcp-protocol-version", self._version)]
        return [*version, *self._session_header()]

    def _session_header(self) -> list[tuple[bytes, bytes]]:
        return [] if self.session is None else [_field("mcp-session-id", self.session)]

    # -- the session -----------------------------------------------------------------------------------------------

    def begin(self, answer: Answer) -> None:
        """``initialize`` was answered: from now on its session id comes with everything (protocol §6.4)."""
        session = answer.header("mcp-session-id")
        if session is not None and not (session and all("!" <= c <= "~" for c in session)):
            raise RemoteProtocolError(
                f"{self.wire.peer} gave a session id of characters that are not allowed"
            )
        self.session = session

    def expire(self) -> None:
        """The server no longer knows our session. What is under way may still be told so itself: then it was never
        run, which matters to whoever wants to ask it again.
        """
        if self.forgotten or self.broken is not None or self.tasks is None:
            return
        self.forgotten, self.session = True, None
        for id, each in list(self.waiting.items()):
            if not each.begun:
                each.cancel()
                self.no_answer(id, self.expired(never_run=True))
        self.tasks.start_soon(self._end_expired, name="end an expired session")

    async def _end_expired(self) -> None:
        with trio.move_on_after(EXPIRY_GRACE):
            while any(each.begun for each in self.waiting.values()):
                await self._fewer.park()
        for id in list(self.waiting):
            self.no_answer(id, self.expired())
        self.end(self.expired())

    def expired(self, *, never_run: bool = False) -> SessionExpired:
        """What everybody is told then: one each, since an exception remembers where it was raised."""
        text = f"{self.wire.peer} no longer knows our session; connect again to go on"
        return SessionExpired(text, never_run=never_run)

    def left(self, id: int | str) -> None:
        """A request is no longer under way."""
        self.waiting.pop(id, None)
        self._fewer.unpark_all()

    @property
    def in_session(self) -> bool:
        """Whether what is under way was sent as part of a session, be it forgotten by now."""
        return self.session is not None or self.forgotten

    def end(self, cause: McpError | None) -> None:
        """Ends the channel; what arrived can still be received. Without a cause the server ended it cleanly."""
        self.broken = cause or ConnectionLost(f"{self.wire.peer} ended the stream that answers come on")
        self.inbox.end(cause)
        if self.tasks is not None:
            self.tasks.cancel_scope.cancel(reason="the conversation is over")

    def no_answer(self, id: int | str, error: McpError) -> None:
        """Tells the engine that a request gets no answer."""
        self.inbox.post(NoAnswer(b"", about=id, reason=error))

    # -- resumption ------------------------------------------------------------------------------------------------

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """While an ended stream waits for its time to come back."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._quiet.unpark_all()

    async def quiet(self) -> None:
        """Waits until no stream is about to come back. Servers tell the GET that resumes from others by its time."""
        while self._pauses:
            await self._quiet.park()


def _field(name: str, value: str) -> tuple[bytes, bytes]:
    try:
        return name.encode("ascii"), value.encode("ascii")
    except UnicodeEncodeError:
        raise LocalProtocolError(f"the header {name} can only have ASCII characters") from None


def is_modern(frame: Frame) -> bool:
    """Whether a frame belongs to the era without sessions: only there are methods mirrored."""
    return frame.metadata is not None and "mcp-method" in frame.metadata
