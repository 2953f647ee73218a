"""One request of ours: its POST, the stream that answers it, and coming back to that stream when it ends early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing

import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectFailed, ConnectionLost, McpError, RemoteProtocolError, SessionExpired
from mcp_transports.http.client.errors import AccessRefused, HttpRefused
from mcp_transports.http.client.http import Answer, Body
from mcp_transports.http.client.session_state import SessionState, is_modern, log
from mcp_transports.http.client.sse_reader import Cursor, events

__all__ = ["Post"]

# How long a stream may stay open once its request is settled. An answer and the end of its stream come together, and a
# connection that was read to its end is used again.
LINGER = 1.0
CALLERS_TURNS = 2


class Post:
    """One request on its way. `run` is its task and ends when nothing more can come of it."""

    def __init__(self, frame: Frame, talk: SessionState, fall_back: Callable[[], Awaitable[None]]) -> None:
        assert frame.request is not None
        self.id = frame.request
        self.modern = is_modern(frame)
        # Set when the server has, or never will have, all of the request.
        self.sent = trio.Event()
        self.begun = False
        self._frame = frame
        self._talk = talk
        self._fall_back = fall_back
        self._scope = trio.CancelScope()
        self._settled = False
        # Set when it is time to see whether it is settled.
        self._judged = trio.Event()
        # The number of the last frame that was put into the inbox for it.
        self._last = 0

    def __repr__(self) -> str:
        state = "settled" if self._settled else "sent" if self.sent.is_set() else "new"
        return f"<Post {self.id!r} {self._frame.method} {state}>"

    def settle(self) -> None:
        """Nobody waits for the answer any more."""
        self._settled = True
        self._judged.set()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + LINGER)

    def cancel(self) -> None:
        """Closes the stream, and the connection with it."""
        self._settled = True
        self._scope.cancel(reason="the request was given up")

    async def run(self) -> None:
        """Waits for room, sends the request and passes on what comes back, or why nothing does."""
        talk = self._talk
        try:
            with self._scope:
                async with talk.room:
                    self.begun = True
                    await self._converse()
        except SessionExpired as expired:
            talk.no_answer(self.id, expired)
            talk.expire()
        except McpError as error:
            talk.no_answer(self.id, error)
        except Exception as error:
            # A bug of ours, or of what HTTP is spoken with, must not end the other requests.
            log.exception("%s could not be asked", self._frame.method)
            talk.no_answer(
                self.id, RemoteProtocolError(f"{self._frame.method} could not be asked: {error!r}")
            )
        finally:
            self.sent.set()
            talk.left(self.id)

    async def _converse(self) -> None:
        try:
            await self._post_and_read()
        except HttpRefused as refused:
            if self._frame.method != "initialize" or not refused.suggests_older_binding:
                raise
            try:
                await self._fall_back()
            except RemoteProtocolError as error:
                # What the first attempt said is what the user should hear.
                raise refused from error
            await self._post_only()

    async def _post_and_read(self) -> None:
        talk, cursor = self._talk, Cursor()
        if talk.endpoint is not None:
            await self._post_only()
            return
        headers = talk.post_headers(self._frame)
        async with talk.wire.ask("POST", headers, Body(self._frame.data, self.sent)) as answer:
            self.sent.set()
            if self._frame.method == "initialize" and answer.ok:
                talk.begin(answer)
            elif answer.status == 404 and not self.modern and talk.in_session:
                raise talk.expired(never_run=True)
            if answer.streams:
                why = await self._read(answer, cursor)
            else:
                why = await self._take_body(answer)
        ended = trio.current_time()
        while not await self._answered():
            if self.modern or cursor.last_event_id is None:
                raise why
            why = await self._resume(cursor, ended)
            ended = trio.current_time()

    async def _post_only(self) -> None:
        """The answer comes on the one stream of the older binding."""
        talk = self._talk
        assert talk.endpoint is not None
        headers = talk.post_headers(self._frame)
        async with talk.endpoint.ask("POST", headers, Body(self._frame.data, self.sent)) as answer:
            if not answer.ok:
                raise await answer.refused()
            # Read to its end, or the connection cannot be used again.
            await answer.body()

    # -- what comes back -------------------------------------------------------------------------------------------

    async def _answered(self) -> bool:
        """Whether what was passed on settled the request, once the engine is done with it."""
        if self._last and not self._settled:
            self._judged = trio.Event()
            self._talk.inbox.tell(self._last, self._judged)
            await self._judged.wait()
            # Its reader is; so is, after these turns, the caller whom it has woken.
            for _ in range(CALLERS_TURNS):
                if self._settled:
                    break
                await trio.lowlevel.checkpoint()
        return self._settled

    async def _put(self, data: bytes) -> None:
        self._last = await self._talk.inbox.put(Frame(data, about=self.id))

    async def _take_body(self, answer: Answer) -> McpError:
        """Passes on a body that is one message; returns the error it is if that does not settle the request."""
        peer, method = self._talk.wire.peer, self._frame.method
        if not answer.json:
            if not answer.ok:
                raise await answer.refused()
            if answer.status in (202, 204) or not await answer.body():
                raise RemoteProtocolError(f"{peer} took {method} (HTTP {answer.status}) and gave no answer")
            raise RemoteProtocolError(
                f"{peer} answered {method} with {answer.media_type or 'a body of no type'}, neither JSON nor events"
            )
        data = await answer.body()
        # An error response is one at whatever status; a web framework's own error page may be JSON too.
        if not answer.ok and not (data.lstrip().startswith(b"{") and b'"jsonrpc"' in data):
            raise answer.refused_with(data)
        if not data:
            raise RemoteProtocolError(f"{peer} took {method} (HTTP {answer.status}) and gave no answer")
        await self._put(data)
        return RemoteProtocolError(f"{peer} answered {method} with something that is no answer to it")

    async def _read(self, answer: Answer, cursor: Cursor) -> McpError:
        """Passes on a stream to its end; returns what it means if that did not settle the request."""
        method = self._frame.method
        try:
            async with aclosing(events(answer, cursor)) as stream:
                async for event in stream:
                    if event.is_message:
                        await self._put(event.data)
        except ConnectionLost as error:
            return error
        return ConnectionLost(
            f"{self._talk.wire.peer} ended the stream of {method}: the answer was lost; it may have been carried out"
        )

    # -- coming back -----------------------------------------------------------------------------------------------

    async def _resume(self, cursor: Cursor, ended: float) -> McpError:
        """Comes back to the stream at its time (protocol §6.4, SEP-1699) and reads on."""
        talk = self._talk
        with ExitStack() as pause:
            pause.enter_context(talk.pausing())
            await trio.sleep_until(ended + cursor.delay)
            if self._settled:
                return ConnectionLost("nobody waits for the answer any more")
            cursor.failures += 1
            try:
                async with talk.wire.ask("GET", talk.stream_headers(cursor.last_event_id)) as answer:
                    pause.close()
                    if answer.status == 404 and talk.session is not None:
                        raise talk.expired()
                    if answer.streams:
                        return await self._read(answer, cursor)
                    again = answer.temporary
                    why: McpError = await answer.refused()
            except (ConnectionLost, ConnectFailed) as error:
                why, again = error, not isinstance(error, AccessRefused)
        if not again or cursor.failures >= talk.options.resume_attempts:
            raise ConnectionLost(
                f"the stream of {self._frame.method} broke off and could not be resumed: {why}; "
                "the answer was lost, it may have been carried out"
            ) from why
        return why
