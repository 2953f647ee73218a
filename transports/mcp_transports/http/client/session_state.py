"""The state that all the requests and streams of one channel share, and the queue of the frames it received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from mcp_actors.abc import Frame, NewAccess, NoAnswer, NotificationsMissed, Waiting
from mcp_actors.auth.client.settings import ClientAuth
from mcp_actors.errors import (
    ConnectionLost,
    LocalProtocolError,
    McpError,
    RemoteProtocolError,
    SessionExpired,
)
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import HTTP_SESSION_END
from mcp_transports.http.client.http import Headers, HttpRequester, HttpResponse

__all__ = [
    "HttpClientOptions",
    "HttpClientSession",
    "ReceiveQueue",
    "RequestInFlight",
    "Resumptions",
    "SessionState",
    "is_stateless",
]

ACCEPT_BOTH = (b"accept", b"application/json, text/event-stream")
ACCEPT_STREAM = (b"accept", b"text/event-stream")
CONTENT_TYPE = (b"content-type", b"application/json")

# Seconds for which requests in flight may still be answered by the server after their session has expired.
EXPIRY_GRACE = 1.0

# Frames that wait for the engine before the streams they come from have to wait. It takes all there are at a time.
MAX_FRAMES = 256


# -- The session and its requests ------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class HttpClientOptions:
    """The options of a channel, as `HttpClientTransport` documents them. Times are in seconds."""

    listen: bool
    max_posts: int
    message_timeout: float
    resume_attempts: int
    auth: ClientAuth | None


class RequestInFlight(Protocol):
    """A request that the channel sends, as its `SessionState` sees it."""

    stateless: bool
    """Whether the request belongs to no session."""
    started: bool
    """Whether the request has left the queue for a connection."""
    is_refused: bool
    """Whether the server did not take it, and access is being had."""
    body_sent: trio.Event
    """Set when the server has the whole request, or will never get it."""

    def response_no_longer_awaited(self) -> None:
        """Notes that the engine waits for no response any more."""

    def cancel(self) -> None:
        """Closes the response stream, and the connection with it."""


class HttpClientSession:
    """The session of a revision that has sessions: its id, its version and the headers that name them.

    MCP 2025-11-25, Transports, Session Management.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        """The id that the server gave, ``None`` without a session or after it has expired."""
        self.has_expired = False
        """Whether the server said that it no longer knows the session."""
        # It may change while the client finds out which revisions the server speaks, and never afterwards.
        self.last_was_stateless = False
        """Whether the last request that was sent belongs to no session."""
        self._version: str | None = None

    @property
    def was_begun(self) -> bool:
        """Whether the requests in flight were sent as part of a session, even if that has expired meanwhile."""
        return self.id is not None or self.has_expired

    def begin(self, response: HttpResponse, peer: str) -> None:
        """Takes the session id of the response to ``initialize``, if there is one.

        Raises:
            RemoteProtocolError: the id has characters other than visible ASCII.
        """
        id = response.header("mcp-session-id")
        if id is not None and not (id and all("!" <= c <= "~" for c in id)):
            raise RemoteProtocolError(f"{peer} gave a session id of characters that are not allowed")
        self.id = id

    def expire(self) -> None:
        """Forgets the id, because a new session begins without one."""
        self.has_expired, self.id = True, None

    def post_headers(self, frame: Frame) -> Headers:
        """Returns the headers for the POST of a frame: the mirrored ones, and the session's unless it is stateless.

        Raises:
            LocalProtocolError: a header has characters other than ASCII.
        """
        metadata = frame.metadata or {}
        headers = [ACCEPT_BOTH, CONTENT_TYPE]
        for name, value in metadata.items():
            headers.append(_header(name, value))
        if not is_stateless(frame):
            self._version = metadata.get("mcp-protocol-version", self._version)
            headers += self._id_header()
        return headers

    def get_headers(self, last_event_id: str | None = None) -> Headers:
        """Returns the headers for the GET of a stream, which is resumed after the event with ``last_event_id``."""
        headers = [ACCEPT_STREAM, *self.delete_headers()]
        if last_event_id is not None:
            headers.append((b"last-event-id", last_event_id.encode()))
        return headers

    def delete_headers(self) -> Headers:
        """Returns the headers that name the session and nothing else."""
        version = [] if self._version is None else [_header("mcp-protocol-version", self._version)]
        return [*version, *self._id_header()]

    def _id_header(self) -> list[tuple[bytes, bytes]]:
        return [] if self.id is None else [_header("mcp-session-id", self.id)]


class Resumptions:
    """Counts the streams that have ended and wait until it is time to resume them.

    Some servers recognise the GET that resumes a stream by its time only, so no other GET may be sent meanwhile.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._none_waiting = trio.lowlevel.ParkingLot()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts one for the length of the block."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._none_waiting.unpark_all()

    async def wait_until_none(self) -> None:
        """Waits until no stream is about to be resumed."""
        while self._waiting:
            await self._none_waiting.park()


class SessionState:
    """The state of one channel: its server, its session, the requests in flight and how it ended."""

    def __init__(
        self, requester: HttpRequester, receive_queue: ReceiveQueue, options: HttpClientOptions
    ) -> None:
        self.requester = requester
        self.receive_queue = receive_queue
        self.options = options
        self.session = HttpClientSession()
        self.resumptions = Resumptions()
        self.post_limiter = trio.CapacityLimiter(options.max_posts)
        self.nursery: trio.Nursery | None = None
        # The URL to POST to, once the server turned out to speak HTTP+SSE only.
        self.sse_endpoint: HttpRequester | None = None
        self.broken: McpError | None = None
        self.requests: dict[int | str, RequestInFlight] = {}
        self.new_token = trio.lowlevel.ParkingLot()
        """Where those wait who were refused, until the server accepts another token."""
        self._request_ended = trio.lowlevel.ParkingLot()
        self._held = 0

    @property
    def peer(self) -> str:
        """The server's URL, for messages."""
        return self.requester.peer

    def expire_session(self) -> None:
        """Ends the channel, because the server no longer knows the session.

        Requests that were not started fail at once with an error that says that they never ran. For those in flight the
        server has `EXPIRY_GRACE` seconds to say the same, because a caller may repeat a request that never ran.
        """
        if self.session.has_expired or self.broken is not None or self.nursery is None:
            return
        self.session.expire()
        for id, request in list(self.requests.items()):
            if not request.started:
                request.cancel()
                self.fail_request(id, self.session_expired(never_run=True))
        start(self.nursery, HTTP_SESSION_END, self._end_after_grace, on_crash=self._end_expired)

    async def _end_after_grace(self) -> None:
        with trio.move_on_after(EXPIRY_GRACE):
            while any(request.started for request in self.requests.values()):
                await self._request_ended.park()
        self._end_expired()

    def _end_expired(self, crash: BaseException | None = None) -> None:
        for id in list(self.requests):
            self.fail_request(id, self.session_expired())
        self.end(self.session_expired())

    def session_expired(self, *, never_run: bool = False) -> SessionExpired:
        """Returns a new error for each caller, because an exception keeps the traceback of where it was raised."""
        text = f"{self.peer} no longer knows our session; the next call begins another one"
        return SessionExpired(text, never_run=never_run)

    def remove_request(self, id: int | str) -> None:
        """Notes that a request is no longer in flight."""
        self.requests.pop(id, None)
        self._request_ended.unpark_all()

    def end(self, cause: McpError | None) -> None:
        """Ends the channel. Frames that arrived before can still be received. ``None`` is a clean end by the server."""
        if self.broken is None:
            self.broken = cause or ConnectionLost(f"{self.peer} ended the stream that answers come on")
        self.receive_queue.end(cause)
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason="the connection has ended")

    def end_after_crash(self, crash: BaseException) -> None:
        """Ends the channel, because one of the tasks that all of it depends on has failed."""
        error = ConnectionLost(f"the connection to {self.peer} failed on this side: {crash!r}")
        error.__cause__ = crash
        self.end(error)

    def hold(self) -> None:
        """A person is asked: the engine's clocks stop until as many calls of `release`."""
        self._held += 1
        if self._held == 1:
            self.receive_queue.put_at_once(Waiting(b""))

    def release(self) -> None:
        """The person is asked no more."""
        self._held -= 1
        if not self._held:
            self.receive_queue.put_at_once(Waiting(b"", over=True))

    def has_new_access(self) -> None:
        """Reports to the engine that requests are made for another caller from now on, or with other scopes."""
        self.receive_queue.put_at_once(NewAccess(b""))

    def stream_begins_anew(self, first: bool) -> None:
        """Reports to the engine that the stream of the session is open, and does not go on where it ended."""
        self.receive_queue.put_at_once(NotificationsMissed(b"", first=first))

    def stream_is_over(self, why: McpError, first: bool) -> None:
        """Reports to the engine that the session has no stream; ``first`` if it never had one."""
        self.receive_queue.put_at_once(NotificationsMissed(b"", first=first, reason=why))

    def fail_request(self, id: int | str, error: McpError) -> None:
        """Reports to the engine that a request gets no answer."""
        self.receive_queue.put_at_once(NoAnswer(b"", about=id, reason=error))


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    try:
        return name.encode("ascii"), value.encode("ascii")
    except UnicodeEncodeError:
        raise LocalProtocolError(f"the header {name} can only have ASCII characters") from None


def is_stateless(frame: Frame) -> bool:
    """Whether a frame is sent outside of any session.

    Only revisions without sessions mirror the method in a header (MCP 2026-07-28, Streamable HTTP).
    """
    return frame.metadata is not None and "mcp-method" in frame.metadata


# -- The frames that wait for the engine -----------------------------------------------------------


def _take_nothing(frame: Frame) -> bool:
    return False


class ReceiveQueue:
    """A bounded queue of frames that knows which of them its reader has processed.

    Args:
        max_bytes: the bound for the bytes of all frames that wait. A single longer frame is accepted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        # Frames are numbered from 1 in the order in which they were put. These are the numbers of the last one that was
        # put, and processed.
        self._put = 0
        self._processed = 0
        self._deliver: Callable[[Frame], bool] = _take_nothing
        self._closed = False
        self._ended = False
        self._cause: BaseException | None = None
        self._arrival = trio.lowlevel.ParkingLot()
        self._space = trio.lowlevel.ParkingLot()
        self._processed_events: list[tuple[int, trio.Event]] = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        return f"<ReceiveQueue {state}: {len(self._frames)}/{MAX_FRAMES}>"

    def __len__(self) -> int:
        return len(self._frames)

    def put_at_once(self, frame: Frame) -> int:
        """Puts a frame even when the queue is full, and returns its number. One that comes after the end is dropped."""
        if self._closed or self._ended:
            return self._put
        self._put = number = self._put + 1
        # A reader that waits has processed all that was put before.
        if self._arrival and not self._frames and self._deliver(frame):
            self._processed = max(self._processed, number)
            return number
        self._frames.append(frame)
        self._bytes += len(frame.data)
        self._arrival.unpark_all()
        return number

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Gives each frame to ``take`` at once while a reader waits, and keeps those that it does not take."""
        self._deliver = take

    async def put(self, frame: Frame) -> int:
        """Waits for space, puts a frame and returns its number. Cancelled while it waits, it has put nothing."""
        while self._frames and (len(self._frames) >= MAX_FRAMES or self._bytes >= self._max_bytes):
            await self._space.park()
        return self.put_at_once(frame)

    async def take(self, max_frames: int = MAX_FRAMES) -> list[Frame]:
        """Waits for at least one frame. Cancelled, it has taken nothing.

        The call also says that the caller has processed the frames that it took before.

        Raises:
            trio.ClosedResourceError: the queue was closed.
            trio.EndOfChannel: no frame is left, and the server ended the channel.
            trio.BrokenResourceError: no frame is left, and the channel failed.
        """
        taken = self._put - len(self._frames)
        if self._processed != taken:
            self._processed = taken
            events, self._processed_events = self._processed_events, []
            for number, event in events:
                self.set_when_processed(number, event)
        await trio.lowlevel.checkpoint()
        while not self._frames or self._closed:
            if self._closed:
                raise trio.ClosedResourceError("the channel is closed")
            if self._ended:
                if self._cause is None:
                    raise trio.EndOfChannel
                raise trio.BrokenResourceError(str(self._cause)) from self._cause
            await self._arrival.park()
        frames = [self._frames.popleft() for _ in range(min(max_frames, len(self._frames)))]
        self._bytes -= sum(len(frame.data) for frame in frames)
        self._space.unpark_all()
        return frames

    def set_when_processed(self, number: int, event: trio.Event) -> None:
        """Sets ``event`` once the reader has processed the frame with that number and asks for more."""
        if number <= self._processed:
            event.set()
        else:
            self._processed_events.append((number, event))

    def end(self, cause: BaseException | None) -> None:
        """Accepts no more frames. Those in the queue can still be taken; then `take` raises the end, with ``cause``."""
        if not self._ended:
            self._ended, self._cause = True, cause
            self._arrival.unpark_all()

    def close(self) -> None:
        """Drops all frames; a reader that waits gets `trio.ClosedResourceError`."""
        self._closed = True
        self._frames.clear()
        self._arrival.unpark_all()
        self._space.unpark_all()
