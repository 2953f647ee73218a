"""The channel of an HTTP client: each message is a POST, whose response brings the answer.

Two streams belong to no request: the GET stream of a session, and the only stream of HTTP+SSE.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import httpx2
import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    ConnectFailed,
    ConnectionLost,
    McpError,
    RemoteProtocolError,
    SessionExpired,
)
from mcp_actors.supervision.containment import Containment, start, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HTTP_MESSAGE, HTTP_POST, HTTP_STREAM
from mcp_transports.http.client.http import (
    SHORTEST_BACKOFF,
    HttpResponse,
    HttpUnavailable,
    StreamPosition,
    names_forgotten_session,
    read_events,
)
from mcp_transports.http.client.post import HeldScope, Post, body_of
from mcp_transports.http.client.senders import AccessWaiter, without_secrets
from mcp_transports.http.client.session_state import RequestInFlight, SessionState, is_stateless

__all__ = ["ENDPOINT_TIMEOUT", "HttpChannel", "read_http_sse_stream", "read_session_stream"]

# Seconds, when the channel is closed, for messages that are being posted, such as a cancellation, and for the DELETE of
# the session.
CLOSE_TIMEOUT = 2.0

# Seconds in which an HTTP+SSE server has to name its endpoint: its first event does.
ENDPOINT_TIMEOUT = 10.0
# Attempts for a GET that has never worked.
MAX_FIRST_ATTEMPTS = 5
# Seconds of the longest pause before a message is posted again of which nothing was taken.
LONGEST_PAUSE = 2.0


class HttpChannel(FrameChannel):
    """Frames by HTTP, with or without sessions and by HTTP+SSE; made by `HttpClientTransport.connect`.

    Every request is a POST in a task of its own, and its failure is received as a `~mcp_actors.abc.NoAnswer`. Only the
    end of the session, the end of the stream of HTTP+SSE and a crash of the task that reads a stream of the server end
    the channel.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._closing = False
        self._ended = False
        # Messages that get no response and whose POST has not ended yet.
        self._messages = 0
        self._no_messages = trio.lowlevel.ParkingLot()
        self._stopped = trio.Event()
        self._closed = trio.Event()

    def __repr__(self) -> str:
        state = self._state
        name = "closed" if self._closing else "broken" if state.broken else "open"
        return (
            f"<HttpChannel {state.peer} {name}:"
            f" {len(state.requests)} requests, {len(state.receive_queue)} to receive>"
        )

    @property
    def max_message_bytes(self) -> int:
        return self._state.requester.max_message_bytes

    @property
    def mirrors(self) -> bool:
        return True

    @property
    def keeps_session(self) -> bool:
        return self._state.session.id is not None or self._state.sse_endpoint is not None

    @property
    def peer(self) -> str:
        """The URL, without its parts that may hold secrets."""
        return self._state.peer

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the nursery of all tasks of this channel. Returns when the channel was closed or broke.

        Raises:
            RuntimeError: the tasks were cancelled without either, because one of them raised a stray `trio.Cancelled`.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._state.nursery = nursery
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    # A call that is cancelled together with the channel may still want to tell the server so.
                    self._ended = True
        finally:
            self._stopped.set()
        if not self._closing and self._state.broken is None:
            # A nursery absorbs a stray `trio.Cancelled`, and with it the failure that ended all of its tasks.
            raise RuntimeError("the tasks of the channel were cancelled before it was closed")

    # -- outgoing --------------------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Starts the POST of a frame in a task of its own and returns. A request waits for a free slot there.

        Only for ``notifications/initialized`` it waits for the response, because servers may refuse requests that
        arrive before it.

        Raises:
            trio.ClosedResourceError: the channel was closed.
            trio.BrokenResourceError: the channel has ended, with the reason as its cause.
        """
        await trio.lowlevel.checkpoint()
        if value.method == "notifications/initialized" and not self._state.session.has_expired:
            done, nursery = trio.Event(), self._nursery()
            self._messages += 1
            start(nursery, HTTP_MESSAGE, self._post_initialized, value, nursery, done, about=value.method)
            await done.wait()
        else:
            self._start(value)

    def send_nowait(self, frame: Frame) -> None:
        """Starts the POST of a frame as `send` does, and no task of a writer has to wake for it.

        Raises:
            trio.ClosedResourceError: the channel was closed.
            trio.BrokenResourceError: the channel has ended, with the reason as its cause.
            trio.WouldBlock: the frame is ``notifications/initialized``, or the session has expired.
        """
        if frame.method == "notifications/initialized" or self._state.session.has_expired:
            raise trio.WouldBlock
        self._start(frame)

    def _start(self, value: Frame) -> None:
        nursery, state = self._nursery(), self._state
        if state.session.has_expired:
            # The server would refuse it: it no longer knows the session.
            if value.request is not None:
                state.fail_request(value.request, state.session_expired(never_run=True))
        elif value.request is not None:
            post = Post(value, state, self._fall_back_to_http_sse)
            state.session.last_was_stateless = post.stateless
            state.requests[value.request] = post
            about = f"{value.method} {value.request!r}"
            start(nursery, HTTP_POST, post.run, about=about, on_crash=post.fail_after_crash)
        elif value.cancels is not None:
            self._cancel(value, nursery)
        else:
            self._messages += 1
            start(nursery, HTTP_MESSAGE, self._post_message, value, about=value.method or "")

    def _nursery(self) -> trio.Nursery:
        if self._closing:
            raise trio.ClosedResourceError("the channel is closed")
        broken, nursery = self._state.broken, self._state.nursery
        if self._ended or broken is not None or nursery is None:
            raise trio.BrokenResourceError(str(broken or "the channel has ended")) from broken
        return nursery

    def settled(self, request: int | str) -> None:
        """Stops resuming the stream of that request, and closes it if it does not end soon."""
        post = self._state.requests.get(request)
        if post is not None:
            post.response_no_longer_awaited()

    def _cancel(self, frame: Frame, nursery: trio.Nursery) -> None:
        """Cancels a request: without a session by closing its stream, in a session by a message that follows it.

        MCP 2026-07-28, Cancellation; MCP 2025-11-25, Cancellation.
        """
        assert frame.cancels is not None
        post = self._state.requests.get(frame.cancels)
        if post is not None and (post.stateless or not post.started or post.is_refused):
            post.cancel()
        elif not self._state.session.last_was_stateless:
            self._messages += 1
            start(nursery, HTTP_MESSAGE, self._post_cancellation, frame, post, about=frame.method or "")

    async def _post_cancellation(self, frame: Frame, post: RequestInFlight | None) -> None:
        """Posts a cancellation after its request, then closes the stream of the request, which is useless by then."""
        try:
            await self._post_message(frame, None if post is None else post.body_sent)
        finally:
            if post is not None:
                post.cancel()

    async def _post_initialized(self, frame: Frame, nursery: trio.Nursery, done: trio.Event) -> None:
        try:
            accepted = await self._post_message(frame)
        finally:
            done.set()
        state = self._state
        if accepted and state.options.listen and state.sse_endpoint is None and not is_stateless(frame):
            start(
                nursery,
                HTTP_STREAM,
                read_session_stream,
                state,
                about="of the session",
                on_crash=state.end_after_crash,
            )

    async def _post_message(self, frame: Frame, after: trio.Event | None = None) -> bool:
        """Posts a message that gets no response and returns whether it was accepted. Its failure is logged only."""
        try:
            return await self._post_message_in_time(frame, after)
        finally:
            self._messages -= 1
            if not self._messages:
                self._no_messages.unpark_all()

    async def _post_message_in_time(self, frame: Frame, after: trio.Event | None) -> bool:
        state = self._state
        message = frame.method or "an answer"
        with HeldScope(state, state.options.message_timeout) as waiter:
            if after is not None:
                await after.wait()
            pause = SHORTEST_BACKOFF
            while True:
                try:
                    await self._post_once(frame, waiter)
                    return True
                except SessionExpired:
                    state.expire_session()
                    return False
                except McpError as error:
                    wait = self._wait_before_next_post(frame, error)
                    if wait is None:
                        # Where the server is gone its calls are too, and their callers learn it.
                        gone = message == "notifications/cancelled" and isinstance(
                            error, ConnectFailed | ConnectionLost
                        )
                        tell = log.debug if gone else log.warning
                        tell("a message was not accepted", peer=self.peer, message=message, error=str(error))
                        return False
                await trio.sleep(wait + pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        log.warning(
            "a message was not accepted in time",
            peer=self.peer,
            message=message,
            seconds=state.options.message_timeout,
        )
        return False

    def _wait_before_next_post(self, frame: Frame, error: McpError) -> float | None:
        """Returns the seconds after which a message may be posted again; ``None`` if it is given up.

        It is where the server has taken nothing of it: a call there may wait for an answer. A cancellation is not: the
        server that has the call is gone, or stops.
        """
        if not isinstance(error, ConnectionLost | HttpUnavailable) or not error.never_run:
            return None
        if self._closing or frame.cancels is not None:
            return None
        return (isinstance(error, HttpUnavailable) and error.retry_after) or 0.0

    async def _post_once(self, frame: Frame, waiter: HeldScope) -> None:
        """Posts a message that gets no response.

        Raises:
            McpError: It was not accepted.
        """
        state = self._state
        in_session = state.session.id is not None and not is_stateless(frame)
        requester = state.sse_endpoint or state.requester
        body = body_of(frame, trio.Event())
        async with requester.request("POST", state.session.post_headers(frame), body, waiter) as response:
            if response.status == 404 and in_session:
                raise state.session_expired()
            if not response.ok:
                refused = await response.read_error()
                forgotten = response.status == 400 and names_forgotten_session(refused.text.encode(), None)
                if forgotten and in_session:
                    raise state.session_expired()
                raise refused
            # The connection can be used again only if the body is read to its end.
            await response.read_body()

    async def _fall_back_to_http_sse(self) -> None:
        """Changes the channel to HTTP+SSE (MCP 2025-11-25, Transports, Backwards Compatibility).

        Raises:
            McpError: the server does not speak HTTP+SSE either.
        """
        nursery = self._state.nursery
        assert nursery is not None
        with HeldScope(self._state, ENDPOINT_TIMEOUT) as waiter:
            await start_and_wait(
                nursery,
                HTTP_STREAM,
                read_http_sse_stream,
                self._state,
                waiter,
                about="of HTTP+SSE",
                on_crash=self._state.end_after_crash,
            )
            return
        raise RemoteProtocolError(f"{self.peer} opened an event stream and did not say where to post")

    # -- incoming --------------------------------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing. Raises the errors of `ReceiveQueue.take`."""
        return (await self._state.receive_queue.take(1))[0]

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns it with all that are there already, as `receive` does."""
        return await self._state.receive_queue.take()

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        self._state.receive_queue.deliver_to(take)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes all streams and ends the session with a DELETE.

        The server has two seconds for that and for the messages that are being posted. Cancelled, it still does all of
        this.
        """
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        self._state.receive_queue.close()
        deadline = trio.current_time() + CLOSE_TIMEOUT
        try:
            with trio.move_on_at(deadline, shield=True):
                while self._messages:
                    await self._no_messages.park()
            with trio.CancelScope(shield=True):
                if self._state.nursery is not None:
                    self._state.nursery.cancel_scope.cancel(reason="the channel is closed")
                    # This is bounded, because cancelled tasks only close their sockets.
                    await self._stopped.wait()
            with (
                Containment(HTTP_MESSAGE, details={"task": "DELETE of the session"}),
                trio.move_on_at(deadline, shield=True),
            ):
                await self._delete_session()
        finally:
            self._closed.set()

    async def _delete_session(self) -> None:
        state = self._state
        if state.session.id is None:
            return
        try:
            async with state.requester.request("DELETE", state.session.delete_headers()) as response:
                log.debug("the session was ended", peer=self.peer, status=response.status)
        except McpError as error:
            log.debug("the session could not be ended", peer=self.peer, error=str(error))


async def read_session_stream(state: SessionState) -> None:
    """Keeps the GET stream of a session open, until the server answers that it has none.

    MCP 2025-11-25, Transports, Listening for Messages from the Server. A server need not have such a stream, so nothing
    that goes wrong here ends the channel, except the end of the session. A stream that cannot be resumed is begun anew,
    and the engine learns that it has a gap. The engine learns as well when the stream is given up. One that was refused
    for want of access is begun anew once the server has accepted another token.
    """
    position, opened = StreamPosition(), False
    failure: McpError = ConnectionLost(
        f"{state.peer} ended the stream of the session before it said anything"
    )
    while opened or position.failures < MAX_FIRST_ATTEMPTS:
        await state.resumptions.wait_until_none()
        position.failures += 1
        last_event_id = position.last_event_id
        headers = state.session.get_headers(last_event_id)
        try:
            async with state.requester.request("GET", headers) as response:
                if response.is_event_stream:
                    if last_event_id is None:
                        # Even before the first one the server may have had something to send, and dropped it.
                        state.stream_begins_anew(first=not opened)
                    opened = True
                    await _receive_messages(state, response, position)
                elif response.status == 404 and opened and state.session.id is not None:
                    state.expire_session()
                    return
                elif response.status == 400 and last_event_id is not None:
                    # The server has forgotten the event, such as one of the process before it.
                    position.last_event_id = None
                else:
                    failure = await _no_stream(state, response)
                    if not response.is_temporary_failure:
                        break
        except AuthorizationUnavailable as error:
            failure = error
        except AuthorizationError as error:
            log.warning("the stream of the session is given up", peer=state.peer, error=str(error))
            state.stream_is_over(error, first=not opened)
            await state.new_token.park()
            position = StreamPosition()
            continue
        except (ConnectionLost, ConnectFailed) as error:
            failure = error
        except McpError as error:
            failure = error
            break
        # A stream that was open and ended has not failed, unless it brought nothing: then the delay grows.
        await trio.sleep(position.delay)
    # That a server never had a stream is no reason to worry anybody.
    tell = log.warning if opened else log.debug
    tell("the stream of the session is given up", peer=state.peer, error=str(failure))
    state.stream_is_over(failure, first=not opened)


async def _no_stream(state: SessionState, response: HttpResponse) -> McpError:
    if response.status in (401, 403):
        return await response.read_error()
    return ConnectionLost(
        f"{state.peer} gives the session no stream for its notifications (HTTP {response.status})"
    )


async def _receive_messages(state: SessionState, response: HttpResponse, position: StreamPosition) -> None:
    async with aclosing(read_events(response, position)) as events:
        async for event in events:
            if event.is_message:
                await state.receive_queue.put(Frame(event.data))


async def read_http_sse_stream(
    state: SessionState,
    waiter: AccessWaiter,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Opens the stream of HTTP+SSE and reads it to its end, which ends the channel.

    MCP 2024-11-05, Transports, HTTP with SSE. The task has started when ``state.sse_endpoint`` is known. ``waiter`` is
    notified if access has to be had first.

    Raises:
        McpError: the stream could not be opened.
        RemoteProtocolError: the stream named no endpoint, or one that must not be used.

    After the start it raises nothing.
    """
    try:
        async with state.requester.request("GET", state.session.get_headers(), None, waiter) as response:
            if not response.is_event_stream:
                raise await response.read_error()
            async with aclosing(read_events(response, StreamPosition())) as events:
                async for event in events:
                    if event.event == "endpoint" and state.sse_endpoint is None:
                        url = _endpoint_url(state, event.data.decode("utf-8", "replace"))
                        state.sse_endpoint = state.requester.with_url(url)
                        task_status.started()
                    elif event.is_message:
                        await state.receive_queue.put(Frame(event.data))
            if state.sse_endpoint is None:
                raise RemoteProtocolError(
                    f"the event stream of {state.peer} ended without naming an endpoint"
                )
    except McpError as error:
        if state.sse_endpoint is None:
            raise
        state.end(error)
    else:
        state.end(None)


def _endpoint_url(state: SessionState, reference: str) -> httpx2.URL:
    """Resolves the endpoint. It must have the origin of the stream, or another server would get our credentials.

    Raises:
        RemoteProtocolError: the endpoint is not a URL, or has another origin.
    """
    base = state.requester.url
    try:
        url = base.join(reference.strip())
    except httpx2.InvalidURL as error:
        raise RemoteProtocolError(f"{state.peer} named an endpoint that is no URL: {error}") from error
    if (url.scheme, url.host, url.port) != (base.scheme, base.host, base.port):
        raise RemoteProtocolError(
            f"{state.peer} named an endpoint on another server, {without_secrets(url)}; nothing is sent there"
        )
    return url.copy_with(userinfo=base.userinfo)
