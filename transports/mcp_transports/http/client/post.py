"""One POST of a message, and what becomes of its response.

A sender may have to get access to the server first. `HeldScope` is what it sees of the message meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from types import TracebackType
from typing import Literal

import msgspec
import trio

from mcp_actors.abc import Frame
from mcp_actors.errors import (
    AuthorizationError,
    ConnectFailed,
    ConnectionLost,
    McpError,
    RemoteProtocolError,
    SessionExpired,
)
from mcp_transports.http.client.http import (
    AccessRefused,
    HttpRefused,
    HttpResponse,
    RequestBody,
    StreamPosition,
    is_outage,
    names_forgotten_session,
    read_events,
)
from mcp_transports.http.client.session_state import SessionState, is_stateless

__all__ = ["HeldScope", "Post", "body_of", "operation_of"]

# Seconds that a stream may stay open after its response. Servers end it right after, and a connection that was read to
# its end can be used again.
LINGER = 1.0
# Requests whose answer says which protocol is spoken: a status that says something else must not pass for one.
HANDSHAKE = ("server/discover", "initialize")
# Messages that change nothing, or the same whether they come once or twice. Of its own calls a program says which may
# be made again, by `mcp_actors.middleware.Retry`.
REPEATABLE = frozenset(
    {
        *(
            "server/discover",
            "ping",
            "tools/list",
            "prompts/list",
            "resources/list",
            "resources/templates/list",
        ),
        *(
            "resources/read",
            "tasks/get",
            "tasks/list",
            "notifications/initialized",
            "notifications/cancelled",
        ),
    }
)
# Statuses about the HTTP method and the media types, whatever the body is: the message was not looked at.
UNSEEN = (405, 406, 415)
# Checkpoints after which the caller, woken by the engine's reader, has called `HttpChannel.settled`.
CALLER_CHECKPOINTS = 2

# Of a request: its response may still bring something, or was read to its end; "over" once no task waits for it.
Stage = Literal["reading", "read", "over"]


def body_of(frame: Frame, sent: trio.Event) -> RequestBody:
    """Returns the body that carries a frame; ``sent`` is set when all of it was written."""
    return RequestBody(frame.data, sent, is_repeatable=frame.method in REPEATABLE)


class Post:
    """One request in flight. `run` is its task, which ends when nothing more can arrive for the request.

    Args:
        frame: the request.
        state: the state of its channel.
        fall_back: changes the channel to HTTP+SSE, for a server that refuses ``initialize``.
    """

    def __init__(self, frame: Frame, state: SessionState, fall_back: Callable[[], Awaitable[None]]) -> None:
        assert frame.request is not None
        self.id = frame.request
        self.stateless = is_stateless(frame)
        self.body_sent = trio.Event()
        self.started = False
        self.is_refused = False
        self._frame = frame
        self._state = state
        self._fall_back = fall_back
        self._scope = trio.CancelScope()
        self._stage: Stage = "reading"
        # Set when the engine has processed the last frame, or no longer waits for the response.
        self._processed = trio.Event()
        # The number of the last frame of this request in the receive queue.
        self._last_frame = 0

    def __repr__(self) -> str:
        state = "done" if not self._is_awaited else "sent" if self.body_sent.is_set() else "new"
        return f"<Post {self.id!r} {self._frame.method} {state}>"

    @property
    def _is_awaited(self) -> bool:
        return self._stage != "over"

    def response_no_longer_awaited(self) -> None:
        """Stops resuming the stream, and closes it if it does not end within `LINGER` seconds."""
        if self._stage == "reading":
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + LINGER)
        self._stage = "over"
        self._processed.set()

    def cancel(self) -> None:
        """Closes the stream at once, and the connection with it."""
        self._stage = "over"
        self._scope.cancel(reason="the request was given up")

    @property
    def operation(self) -> str:
        """See `AccessWaiter.operation`."""
        return operation_of(self._frame)

    def hold(self) -> None:
        """See `AccessWaiter.hold`."""
        self._state.hold()

    def release(self) -> None:
        """See `AccessWaiter.release`."""
        self._state.release()

    async def run(self) -> None:
        """Waits for a free slot, sends the request and puts the messages of its response into the receive queue.

        An error of the request is put there as a `~mcp_actors.abc.NoAnswer`.
        """
        state = self._state
        try:
            with self._scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    # A slot that is free costs no turn of the loop.
                    state.post_limiter.acquire_nowait()
                except trio.WouldBlock:
                    await state.post_limiter.acquire()
                try:
                    self.started = True
                    await self._send_and_receive()
                finally:
                    state.post_limiter.release()
        except SessionExpired as expired:
            state.fail_request(self.id, expired)
            state.expire_session()
        except McpError as error:
            state.fail_request(self.id, error)
        finally:
            self.body_sent.set()
            state.remove_request(self.id)

    def fail_after_crash(self, crash: BaseException) -> None:
        """Reports that the request ended because its task failed."""
        error = ConnectionLost(
            f"{self._frame.method} failed on this side: {crash!r}; it may have been carried out"
        )
        error.__cause__ = crash
        self._state.fail_request(self.id, error)

    async def _send_and_receive(self) -> None:
        try:
            await self._post_and_read()
        except HttpRefused as refused:
            if self._frame.method != "initialize" or not refused.suggests_http_sse:
                raise
            try:
                await self._fall_back()
            except RemoteProtocolError as error:
                # The user should see what the server said to the first attempt.
                raise refused from error
            await self._post_to_sse_endpoint()

    async def _post_and_read(self) -> None:
        state, position = self._state, StreamPosition()
        if state.sse_endpoint is not None:
            await self._post_to_sse_endpoint()
            return
        headers = state.session.post_headers(self._frame)
        body = body_of(self._frame, self.body_sent)
        async with state.requester.request("POST", headers, body, self) as response:
            self.body_sent.set()
            if self._frame.method == "initialize" and response.ok:
                state.session.begin(response, state.peer)
            elif response.status == 404 and not self.stateless and state.session.was_begun:
                raise state.session_expired(never_run=True)
            if response.is_event_stream:
                failure = await self._read_stream(response, position)
            else:
                failure = await self._read_body(response)
        ended = trio.current_time()
        while await self._is_still_awaited():
            if self.stateless or position.last_event_id is None:
                raise failure
            failure = await self._resume(position, ended)
            ended = trio.current_time()

    async def _post_to_sse_endpoint(self) -> None:
        """Posts the request only: with HTTP+SSE its response comes on the one stream of the channel."""
        state = self._state
        assert state.sse_endpoint is not None
        headers = state.session.post_headers(self._frame)
        body = body_of(self._frame, self.body_sent)
        async with state.sse_endpoint.request("POST", headers, body, self) as response:
            if not response.ok:
                raise await response.read_error()
            # The connection can be used again only if the body is read to its end.
            await response.read_body()

    # -- what comes back -------------------------------------------------------------------------------------------

    async def _is_still_awaited(self) -> bool:
        """Waits until the engine has processed all frames and returns whether it still waits for a response."""
        if self._last_frame and self._is_awaited:
            self._processed = trio.Event()
            self._state.receive_queue.set_when_processed(self._last_frame, self._processed)
            await self._processed.wait()
            for _ in range(CALLER_CHECKPOINTS):
                if not self._is_awaited:
                    break
                await trio.lowlevel.checkpoint()
        return self._is_awaited

    async def _put(self, data: bytes) -> None:
        self._last_frame = await self._state.receive_queue.put(Frame(data, about=self.id))

    async def _read_body(self, response: HttpResponse) -> McpError:
        """Receives a body that is one message, and returns the error to raise if that is no response to the request.

        Raises:
            McpError: the body is not a message.
        """
        peer, method = self._state.peer, self._frame.method
        if not response.is_json:
            if not response.ok:
                refused = await response.read_error()
                self._check_session(response, refused.text.encode())
                raise refused
            if response.status in (202, 204) or not await response.read_body():
                raise RemoteProtocolError(f"{peer} took {method} (HTTP {response.status}) and gave no answer")
            kind = response.media_type or "a body of no type"
            raise RemoteProtocolError(f"{peer} answered {method} with {kind}, neither JSON nor events")
        data = await response.read_body()
        self._check_session(response, data)
        # A JSON-RPC error may come with any status. The error page of a web framework may be JSON too.
        if not response.ok and (
            not (data.lstrip().startswith(b"{") and b'"jsonrpc"' in data)
            or self._says_nothing(response.status)
        ):
            raise response.error(data)
        if not data:
            raise RemoteProtocolError(f"{peer} took {method} (HTTP {response.status}) and gave no answer")
        if not self.stateless:
            # The server may have written a report of progress before it, on the stream of the session. Both can be read
            # by now, and that stream's task has its turn first.
            await trio.lowlevel.checkpoint()
        if self._stage == "reading":
            # Nothing is open any more that would have to be closed.
            self._stage = "read"
        await self._put(data)
        return RemoteProtocolError(f"{peer} answered {method} with something that is no answer to it")

    def _check_session(self, response: HttpResponse, data: bytes) -> None:
        """Raises `SessionExpired` for a 400 that says that the session is not known, as some servers do."""
        in_session = not self.stateless and self._state.session.was_begun
        if response.status == 400 and in_session and names_forgotten_session(data, self.id):
            raise self._state.session_expired(never_run=True)

    def _says_nothing(self, status: int) -> bool:
        """Whether a JSON-RPC error with that status says nothing about the protocol that the server speaks.

        MCP 2025-11-25, Transports, Backwards Compatibility: a 405 for ``initialize`` is that of the older binding.
        """
        method = self._frame.method
        return method in HANDSHAKE and (is_outage(status) or (status in UNSEEN and method == "initialize"))

    async def _read_stream(self, response: HttpResponse, position: StreamPosition) -> McpError:
        """Receives a stream to its end, and returns the error to raise if it brought no response to the request."""
        method = self._frame.method
        try:
            async with aclosing(read_events(response, position)) as events:
                async for event in events:
                    if event.is_message:
                        await self._put(event.data)
        except ConnectionLost as error:
            return error
        return ConnectionLost(
            f"{self._state.peer} ended the stream of {method}: the answer was lost; it may have been carried out"
        )

    # -- resumption ------------------------------------------------------------------------------------------------

    async def _resume(self, position: StreamPosition, ended: float) -> McpError:
        """Opens the stream again when it is time and reads on; returns the error to raise if that fails too.

        MCP 2025-11-25, Transports, Resumability and Redelivery; SEP-1699.

        Raises:
            ConnectionLost: too many attempts in a row have failed.
            SessionExpired: the server no longer knows the session.
        """
        state = self._state
        with ExitStack() as waiting:
            waiting.enter_context(state.resumptions.waiting())
            await trio.sleep_until(ended + position.delay)
            if not self._is_awaited:
                return ConnectionLost("nobody waits for the answer any more")
            position.failures += 1
            headers = state.session.get_headers(position.last_event_id)
            try:
                async with state.requester.request("GET", headers, None, self) as response:
                    waiting.close()
                    if response.status == 404 and state.session.id is not None:
                        raise state.session_expired()
                    if response.is_event_stream:
                        return await self._read_stream(response, position)
                    may_try_again = response.is_temporary_failure
                    failure: McpError = await response.read_error()
            except (ConnectionLost, ConnectFailed) as error:
                denied = isinstance(error, AccessRefused | AuthorizationError)
                failure, may_try_again = error, not denied
        if not may_try_again or position.failures >= state.options.resume_attempts:
            raise ConnectionLost(
                f"the stream of {self._frame.method} broke off and could not be resumed: {failure}; "
                "the answer was lost, it may have been carried out"
            ) from failure
        return failure


class HeldScope:
    """Bounds what it is a block of, by seconds in which no person is asked; a `AccessWaiter` for what is sent in it.

    The block ends early, without an exception, when the seconds are over.

    Args:
        state: The state of the channel, whose clocks stop while a person is asked.
        seconds: The bound.
    """

    operation = ""

    def __init__(self, state: SessionState, seconds: float) -> None:
        self.is_refused = False
        self._state = state
        self._scope = trio.CancelScope(relative_deadline=seconds)
        self._asked_since = 0.0
        self._deadline = 0.0

    def __enter__(self) -> HeldScope:
        self._scope.__enter__()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(self._scope.__exit__(cls, error, traceback))

    def hold(self) -> None:
        """A person begins to be asked."""
        self._asked_since = trio.current_time()
        self._deadline, self._scope.deadline = self._scope.deadline, trio.current_time() + float("inf")
        self._state.hold()

    def release(self) -> None:
        """The person is asked no more."""
        self._scope.deadline = self._deadline + trio.current_time() - self._asked_since
        self._state.release()


class _Params(msgspec.Struct):
    name: str | None = None
    uri: str | None = None


class _Request(msgspec.Struct):
    params: _Params = msgspec.field(default_factory=_Params)


def operation_of(frame: Frame) -> str:
    """Returns the method of a request, with the name or the URI that it is about behind a colon."""
    try:
        params = msgspec.json.decode(frame.data, type=_Request).params
    except (msgspec.MsgspecError, UnicodeDecodeError):
        params = _Params()
    subject = params.name or params.uri
    return f"{frame.method}:{subject}" if subject else frame.method or ""
