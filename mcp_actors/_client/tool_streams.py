"""The parts of a tool's result as they come, and the messages to the call while it runs.

A call asks for parts by the member `STREAMS` of its ``_meta``, so a server that knows nothing of it answers as ever.
Then there is one part, which is the whole.

Parts are numbered. One that comes twice, because a stream was resumed from what its server remembers (MCP 2025-11-25,
Transports, Resumability and Redelivery) or because the function was begun again to take an answer (MCP 2026-07-28,
Multi Round-Trip Requests), is dropped. The server is told what the program has read, and sends no more than a window
ahead: so a slow program holds the function, and not the connection, which serves other calls.

Over HTTP without sessions such a request may reach another node than the call. It is repeated then, until it has
reached the node, or the call has ended.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions, WaitingTasks
from mcp_actors._client.requests import Requests
from mcp_actors._client.tool_results import returned_value
from mcp_actors._eras.era import CALL_MESSAGE, PARTS_READ, STREAMS, Era
from mcp_actors._schema.convert import ConversionError
from mcp_actors._schema.returned import conversion
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import (
    CallEnded,
    CallTimeout,
    InboxUnavailable,
    LocalProtocolError,
    McpError,
    MethodNotFound,
    Overloaded,
    RemoteProtocolError,
    ToolFailed,
    UnexpectedResult,
)
from mcp_actors.supervision.arguments import require_trio
from mcp_actors.supervision.logging import log
from mcp_actors.types import UNSET, CallToolResult, TextContent

__all__ = ["WINDOW", "PartStream", "ToolStream", "streamed"]


WINDOW = 256 * 1024
"""Bytes of parts that a server may send before the program has read them, as JSON."""
# Servers that know nothing of the window are cut off here: a part that was sent before what was read was heard of, and
# the longest that may follow it.
MOST_UNREAD = 16 * 1024 * 1024
# Seconds between two attempts to reach the node of a call.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class PartStream:
    """The parts of one call as they arrive, without their meaning, and what is said about the call to its server.

    Args:
        requests: Make the requests about the call.
        options: The clocks of these requests.
    """

    def __init__(self, requests: Requests, options: CallOptions) -> None:
        self._requests = requests
        self._options = CallOptions(idle=options.idle, cap=options.cap)
        self._token = secrets.token_urlsafe(16)
        self._parts: deque[tuple[int, dict[str, Any], int]] = deque()
        self._bytes = 0
        self._next = 0
        # The last part that the program has taken, and the bytes that were taken since the server was told.
        self._taken = -1
        self._unacknowledged = 0
        self._pause = 0.0
        self._failure: BaseException | None = None
        self._outcome: Any = None
        self._is_over = False
        self._waiting = WaitingTasks()
        self._sending = trio.Lock()

    def __repr__(self) -> str:
        state = "ended" if self._is_over else "open"
        return f"<{type(self).__name__} {state}, {self._next} parts, {len(self._parts)} unread>"

    @property
    def meta(self) -> dict[str, Any]:
        """The members of ``_meta`` by which a call asks for parts."""
        return {STREAMS: {"token": self._token, "window": WINDOW}}

    @property
    def has_parts(self) -> bool:
        """Whether a part has come."""
        return self._next > 0

    def open(self) -> None:
        """Takes parts from now on, until `close`."""
        self._requests.streams[self._token] = self

    def close(self) -> None:
        """Takes no more parts."""
        self._requests.streams.pop(self._token, None)

    # -- the read path -----------------------------------------------------------------------------------------------

    def put(self, params: dict[str, Any]) -> None:
        """Takes a part. Never waits."""
        number = params.get("seq")
        if type(number) is not int or self._is_over:
            return
        if number < self._next:
            self._put_again(number, params)
            return
        if number > self._next:
            self.fail(RemoteProtocolError(f"the parts {self._next} to {number - 1} of a result are missing"))
            return
        part = _part_in(params)
        if not part:
            # The server says that there are no parts, although it sends them.
            self._next += 1
            return
        size = len(encode_value(part))
        if self._parts and self._bytes + size > MOST_UNREAD:
            self.fail(RemoteProtocolError("the server sends parts of a result although none is read"))
            return
        self._next += 1
        self._parts.append((number, part, size))
        self._bytes += size
        self._waiting.unpark_all()

    def _put_again(self, number: int, params: dict[str, Any]) -> None:
        """Drops a part that has come before, and counts it as read once more: a function that was begun again waits."""
        if number <= self._taken:
            self._unacknowledged += len(encode_value(_part_in(params)))
            if self._unacknowledged * 2 >= WINDOW:
                self._waiting.unpark_all()

    def end(self, outcome: Any) -> None:
        """The call was answered with ``outcome``. Only the first end counts."""
        if not self._is_over:
            self._is_over, self._outcome = True, outcome
            self._waiting.unpark_all()

    def fail(self, error: BaseException) -> None:
        """The call gets no answer, or its parts cannot be used."""
        if not self._is_over:
            self._is_over, self._failure = True, error
            self._waiting.unpark_all()

    @property
    def outcome(self) -> Any:
        """The answer to the call, ``None`` before its end; raises why there is none."""
        if self._failure is not None:
            raise self._failure
        return self._outcome

    # -- the program -------------------------------------------------------------------------------------------------

    async def next_part(self) -> dict[str, Any] | None:
        """Waits for the next part, ``None`` at the end. Cancelled, no part is lost.

        Raises:
            McpError: Why the call has failed, after the parts that came before.
        """
        await trio.lowlevel.checkpoint()
        while True:
            is_due = self._unacknowledged * 2 >= WINDOW and not self._is_over
            if is_due:
                await self._acknowledge()
            if self._parts:
                self._taken, part, size = self._parts.popleft()
                self._bytes -= size
                self._unacknowledged += size
                return part
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                return None
            if not is_due:
                await self._waiting.park()

    async def _acknowledge(self) -> None:
        """Tells the server what was read; what does not reach it is told again."""
        taken, unacknowledged = self._taken, self._unacknowledged
        try:
            await self._requests.send(PARTS_READ, {"token": self._token, "seq": taken}, self._options)
        except MethodNotFound:
            # It sends parts, and does not wait for what it is told.
            self._unacknowledged -= unacknowledged
        except McpError as error:
            log.debug("a server was not told what was read of a result", error=str(error))
            self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
            if not self._parts and not self._is_over:
                with trio.move_on_after(self._pause):
                    await self._waiting.park()
        else:
            self._pause = 0.0
            self._unacknowledged -= unacknowledged

    async def send(self, message: Any, timeout: float | None = None) -> None:
        """Sends a message to the function; see `ToolStream.send`."""
        seconds = self._options.idle if timeout is None else timeout
        options = attrs.evolve(self._options, idle=seconds)
        params = {"token": self._token, "message": message}
        # In the order of the calls of this.
        async with self._sending:
            deadline, pause = trio.current_time() + seconds, FIRST_PAUSE
            while not self._is_over:
                try:
                    await self._requests.request(CALL_MESSAGE, params, options)
                    return
                except MethodNotFound:
                    raise InboxUnavailable(
                        f"the server takes no messages for calls that run ({STREAMS}), and the call goes on"
                    ) from None
                except CallEnded:
                    # The call may be on its way, or at another node, or its answer on its way here.
                    if trio.current_time() + pause > deadline:
                        raise CallTimeout(CALL_MESSAGE, "idle", seconds) from None
                except Overloaded as error:
                    pause = max(pause, error.retry_after or 0.0)
                    if trio.current_time() + pause > deadline:
                        raise
                with trio.move_on_after(pause):
                    await self._waiting.park()
                pause = min(pause * 2, LONGEST_PAUSE)
            raise CallEnded()


def _part_in(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key in ("content", "structuredContent")}


class ToolStream:
    """The parts of a tool's result, as an async iterator; made by `Client.stream_tool`.

    A part is text, a content block, a list of these, or the JSON value that the tool has yielded; with ``returns=``
    it is an object of that class. A tool or a server without parts has one part, which is the whole. Each part comes
    once.
    """

    def __init__(self, name: str, era: Callable[[], Era], stream: PartStream, returns: Any = None) -> None:
        require_trio("client.stream_tool(...)", "Client")
        self._name = name
        self._era = era
        self._stream = stream
        self._convert = None if returns is None else conversion(returns)
        self._gave_whole = False

    def __repr__(self) -> str:
        return f"<ToolStream of {self._name!r} {self._stream!r}>"

    @property
    def result(self) -> CallToolResult:
        """The whole result, with all parts in it; a failure inside the tool is one with ``is_error``.

        Raises:
            LocalProtocolError: The call has not ended: iterate to the end first.
            McpError: Why the call has failed.
        """
        result: CallToolResult | None = self._stream.outcome
        if result is None:
            raise LocalProtocolError(f"{self._name!r} has not ended: the result comes after the last part")
        return result

    async def send(self, message: Any, *, timeout: float | None = None) -> None:
        """Sends a message to the function while it runs, which takes it from ``ctx.inbox``.

        Messages arrive in the order of these calls. The function may read them at any time, or never: that the message
        is there is all that this says. Cancelled, or after a loss of the connection, it may be there or not.

        Args:
            message: Any JSON value.
            timeout: Seconds in all; by default the client's.

        Raises:
            CallEnded: The call has ended.
            InboxUnavailable: The server does not have the extension.
            Overloaded: Too many messages wait for the function, for the whole time.
            CallTimeout: The call was not found at the server, or it did not answer, for the whole time.
            RpcError: The server answered with another error.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """
        await self._stream.send(message, timeout)

    def __aiter__(self) -> ToolStream:
        return self

    async def __anext__(self) -> Any:
        part = await self._stream.next_part()
        if part is not None:
            return self._read(part)
        result = self.result
        if self._convert is not None and result.is_error:
            raise ToolFailed(self._name, result.text, result)
        if self._stream.has_parts or self._gave_whole or result.is_error:
            raise StopAsyncIteration
        self._gave_whole = True
        return (
            self._whole(result)
            if self._convert is None
            else returned_value(self._convert, self._name, result)
        )

    def _read(self, part: dict[str, Any]) -> Any:
        era = self._era()
        try:
            result = era.structure({"content": [], **part}, CallToolResult)
        except Exception as error:  # cattrs raises whatever the member's own conversion raised
            raise RemoteProtocolError(
                f"a part of what {self._name!r} returned is malformed: {error}"
            ) from error
        return self._whole(result)

    def _whole(self, result: CallToolResult) -> Any:
        value: Any
        if result.structured_content is not UNSET:
            value = result.data
        else:
            blocks = [each.text if isinstance(each, TextContent) else each for each in result.content]
            value = blocks[0] if len(blocks) == 1 else blocks
        if self._convert is None:
            return value
        try:
            return self._convert(value)
        except ConversionError as error:
            raise UnexpectedResult(self._name, str(error), result) from error


@asynccontextmanager
async def streamed(
    stream: PartStream,
    run: Callable[[Callable[[], Awaitable[None]]], None],
    call: Callable[[], Awaitable[Any]],
) -> AsyncIterator[None]:
    """Makes a call, whose parts ``stream`` takes, for the length of the block; leaving it cancels the call.

    Args:
        stream: Is used for this call alone.
        run: Starts a task that the client owns.
        call: Makes the call.
    """
    scope, ended = trio.CancelScope(), trio.Event()

    async def make() -> None:
        try:
            with scope:
                stream.end(await call())
        except trio.Cancelled:
            raise
        except BaseException as error:
            # It belongs to the program, which reads the parts.
            stream.fail(error)
        finally:
            stream.fail(
                LocalProtocolError("the block of client.stream_tool(...) was left before the result came")
            )
            ended.set()

    run(make)
    stream.open()
    try:
        yield
    finally:
        stream.close()
        scope.cancel(reason="the block of client.stream_tool(...) is left")
        with trio.CancelScope(shield=True):
            # It ends at once: it sends a cancellation, and waits for nothing.
            await ended.wait()
