"""The channel of a client: each frame becomes an HTTP request, whatever comes back becomes frames."""

from __future__ import annotations

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import McpError, RemoteProtocolError, SessionExpired
from mcp_transports.http.client.http import Body
from mcp_transports.http.client.post import Post
from mcp_transports.http.client.server_streams import ENDPOINT_TIMEOUT, follow_older_binding, follow_session
from mcp_transports.http.client.session_state import SessionState, Waiting, is_modern, log

__all__ = ["HttpChannel"]

# Seconds, when the channel is closed, for messages that are on their way, a cancellation for example, and the DELETE of
# the session.
FAREWELL_TIMEOUT = 2.0


class HttpChannel(FrameChannel):
    """Frames by HTTP, in both eras and by HTTP+SSE; made by `HttpClientTransport.connect`.

    Every request of ours is a POST in a task of its own. What goes wrong with one is received as `NoAnswer`; only the
    end of the session and the end of the stream of HTTP+SSE end the channel.
    """

    def __init__(self, talk: SessionState) -> None:
        self._talk = talk
        self._closing = False
        # Messages whose POST was started and has not ended.
        self._messages = 0
        self._told = trio.lowlevel.ParkingLot()
        self._stopped = trio.Event()
        self._closed = trio.Event()

    def __repr__(self) -> str:
        talk = self._talk
        state = "closed" if self._closing else "broken" if talk.broken else "open"
        return f"<HttpChannel {talk.wire.peer} {state}: {len(talk.waiting)} requests, {len(talk.inbox)} to receive>"

    @property
    def max_message_bytes(self) -> int:
        return self._talk.wire.max_message_bytes

    @property
    def mirrors(self) -> bool:
        return True

    @property
    def peer(self) -> str:
        """The URL, without the places in which secrets are kept."""
        return self._talk.wire.peer

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The parent of all tasks of this channel; returns when it was closed or broke."""
        try:
            async with trio.open_nursery() as nursery:
                self._talk.tasks = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._stopped.set()

    # -- outgoing --------------------------------------------------------------------------------------------------

    async def send(self, value: Frame) -> None:
        """Starts the POST of a frame and does not wait for its end, but for that of ``notifications/initialized``:
        servers may refuse what overtakes it. A request waits for room in its own task.
        """
        await trio.lowlevel.checkpoint()
        tasks = self._tasks()
        if self._talk.forgotten:
            self._refuse(value)
        elif value.request is not None:
            exchange = Post(value, self._talk, self._fall_back)
            self._talk.modern = exchange.modern
            self._talk.waiting[value.request] = exchange
            tasks.start_soon(exchange.run, name=f"POST {value.method} {value.request!r}")
        elif value.cancels is not None:
            self._cancel(value, tasks)
        elif value.method == "notifications/initialized":
            done = trio.Event()
            self._messages += 1
            tasks.start_soon(self._initialized, value, done)
            await done.wait()
        else:
            self._messages += 1
            tasks.start_soon(self._post, value)

    def _tasks(self) -> trio.Nursery:
        if self._closing:
            raise trio.ClosedResourceError("the channel is closed")
        if self._talk.broken is not None or self._talk.tasks is None:
            raise trio.BrokenResourceError(str(self._talk.broken)) from self._talk.broken
        return self._talk.tasks

    def _refuse(self, frame: Frame) -> None:
        """The server would: it no longer knows the session."""
        if frame.request is not None:
            self._talk.no_answer(frame.request, self._talk.expired(never_run=True))

    def settled(self, request: int | str) -> None:
        """Nobody waits for that answer: its stream is not resumed, and closed if it does not end soon."""
        exchange = self._talk.waiting.get(request)
        if exchange is not None:
            exchange.settle()

    def _cancel(self, frame: Frame, tasks: trio.Nursery) -> None:
        """Modern: closing the stream is the message (protocol §5.7). Legacy: a message that follows its request."""
        assert frame.cancels is not None
        exchange = self._talk.waiting.get(frame.cancels)
        if exchange is not None and (exchange.modern or not exchange.begun):
            exchange.cancel()
        elif not self._talk.modern:
            self._messages += 1
            tasks.start_soon(self._take_back, frame, exchange)

    async def _take_back(self, frame: Frame, exchange: Waiting | None) -> None:
        """The message is not to overtake its request. Once it is told, nothing that the stream brings is of use."""
        await self._post(frame, None if exchange is None else exchange.sent)
        if exchange is not None:
            exchange.cancel()

    async def _initialized(self, frame: Frame, done: trio.Event) -> None:
        try:
            accepted = await self._post(frame)
        finally:
            done.set()
        talk = self._talk
        if accepted and talk.options.listen and talk.endpoint is None and not is_modern(frame):
            await follow_session(talk)

    async def _post(self, frame: Frame, after: trio.Event | None = None) -> bool:
        """Posts what gets no answer; says whether it was accepted. What becomes of it is not the channel's ending."""
        try:
            return await self._post_in_time(frame, after)
        finally:
            self._messages -= 1
            if not self._messages:
                self._told.unpark_all()

    async def _post_in_time(self, frame: Frame, after: trio.Event | None) -> bool:
        talk = self._talk
        what = frame.method or "an answer"
        with trio.move_on_after(talk.options.message_timeout):
            if after is not None:
                await after.wait()
            try:
                headers = talk.post_headers(frame)
                wire = talk.endpoint or talk.wire
                async with wire.ask("POST", headers, Body(frame.data, trio.Event())) as answer:
                    if answer.status == 404 and talk.session is not None and not is_modern(frame):
                        raise talk.expired()
                    if not answer.ok:
                        raise await answer.refused()
                    # Read to its end, or the connection cannot be used again.
                    await answer.body()
                    return True
            except SessionExpired:
                talk.expire()
                return False
            except McpError as error:
                log.warning("%s did not get through: %s", what, error)
                return False
        log.warning("%s did not get through in %g s", what, talk.options.message_timeout)
        return False

    async def _fall_back(self) -> None:
        """The server may speak the oldest binding only (protocol §1.4, §6.5)."""
        with trio.move_on_after(ENDPOINT_TIMEOUT):
            await self._tasks().start(follow_older_binding, self._talk)
            return
        raise RemoteProtocolError(f"{self.peer} opened an event stream and did not say where to post")

    # -- incoming --------------------------------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Waits for one frame. Cancelling loses nothing."""
        return (await self._talk.inbox.take(1))[0]

    async def receive_many(self) -> list[Frame]:
        """Waits for one frame and returns it with all that are there already. Cancelling loses nothing."""
        return await self._talk.inbox.take()

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes all streams and ends the session with a DELETE.

        The server has two seconds for that and for the messages that are on their way.
        """
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        self._talk.inbox.close()
        deadline = trio.current_time() + FAREWELL_TIMEOUT
        try:
            with trio.move_on_at(deadline, shield=True):
                while self._messages:
                    await self._told.park()
            with trio.CancelScope(shield=True):
                if self._talk.tasks is not None:
                    self._talk.tasks.cancel_scope.cancel(reason="the channel is closed")
                    # Bounded: cancelled tasks only close their sockets.
                    await self._stopped.wait()
            with trio.move_on_at(deadline, shield=True):
                await self._say_farewell()
        finally:
            self._closed.set()

    async def _say_farewell(self) -> None:
        talk = self._talk
        if talk.session is None:
            return
        try:
            async with talk.wire.ask("DELETE", talk.session_headers()) as answer:
                log.debug("%s answered the end of the session with HTTP %d", self.peer, answer.status)
        except McpError as error:
            log.debug("the end of the session could not be told: %s", error)
