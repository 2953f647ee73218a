"""One HTTP/1.1 connection: reads requests, gives them to the application, and sends the answers in their order.

Everything that affects the states of a connection is in this file. `NEXT_STATE` is the table of them; nothing else
decides what a connection does next. The rules behind it (RFC 9112 section 9):

* A client may send further requests before it has an answer (pipelining); they are answered in their order.
* After the last answer that a connection will carry, because a side asked for that or because a request was
  malformed, the server takes no further request. It closes its own half and goes on reading for a while, since
  closing both halves at once could lose the answer of a client that is still sending.
* A client that closes its sending half while an answer is outstanding counts as gone: over TCP that looks like a
  close, and a disconnect has to cancel the work. When the answer is complete by then, it is still sent.

Whether bytes are unsent is not a state: a slow reader may be sending its next request at the same time. It decides
which event an end causes (`ConnectionEvent.LAST` or `ConnectionEvent.OVER`).

A `Connection` has a `Pipeline` of requests that wait, one `ConnectionResponse` at a time, and a `WriteBuffer` of bytes
that its peer has not taken yet. The connections of one server share its `ServerState`, whose ticker enforces the time
limits by `Connection.deadline` and `Connection.expire`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from functools import partial
from typing import Literal

import attrs
import trio

from mcp_actors.supervision.access_log import AccessEntry, access_log
from mcp_actors.supervision.budget import BudgetStatistics
from mcp_actors.supervision.containment import Containment, TaskKind, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import HTTP_FLUSH, HTTP_RESPONSE, HTTP_SERVE, SOCKET_CONNECTION
from mcp_transports._poller import Ticker, open_poller
from mcp_transports._sockets import ListeningSocket
from mcp_transports.http.h1.byte_stream import RECEIVE_BYTES, ByteStream
from mcp_transports.http.h1.limits import HttpClock, HttpLimits
from mcp_transports.http.h1.parser import HeldBodies, ParserPool, RequestParser
from mcp_transports.http.h1.request import MalformedRequest, Request
from mcp_transports.http.h1.response import (
    Headers,
    Response,
    ResponseStateError,
    Successor,
    header_line,
    status_head,
    type_line,
)

__all__ = [
    "NEXT_STATE",
    "App",
    "Connection",
    "ConnectionCounts",
    "ConnectionEvent",
    "ConnectionState",
    "ServerState",
]


class ConnectionState(Enum):
    # The hash of Enum is written in Python, and this table is looked up several times for every request.
    __hash__ = object.__hash__

    IDLE = "idle"
    """Between two requests."""
    READING = "reading"
    """A request is half read, and no answer is outstanding."""
    ANSWERING = "answering"
    """An answer is outstanding. Further requests are read and wait."""
    DRAINING = "draining"
    """No further request is taken. Outstanding answers are made and sent; received bytes are dropped."""
    LINGERING = "lingering"
    """Everything is sent and our half is closed. Received bytes are dropped, for `HttpLimits.linger_time`."""
    UPGRADED = "upgraded"
    """Another protocol has the byte stream."""
    CLOSED = "closed"
    """Nothing is read, sent or started any more."""


class ConnectionEvent(Enum):
    __hash__ = object.__hash__

    BYTES = "a part of a request has come"
    REQUEST = "a request is complete"
    ANSWERED = "no answer is outstanding any more"
    LAST = "no further request is taken, but there is something to answer or to send"
    SENT = "the last byte has been sent, and our half is closed"
    UPGRADE = "another protocol takes over"
    OVER = "the connection ends: nothing is outstanding, or nothing can be sent"


_STATE, _EVENT = ConnectionState, ConnectionEvent
_OPEN = (_STATE.IDLE, _STATE.READING, _STATE.ANSWERING)

# A pair that is missing here leaves the state as it is.
NEXT_STATE: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (_STATE.IDLE, _EVENT.BYTES): _STATE.READING,
    (_STATE.IDLE, _EVENT.REQUEST): _STATE.ANSWERING,
    (_STATE.READING, _EVENT.REQUEST): _STATE.ANSWERING,
    (_STATE.ANSWERING, _EVENT.ANSWERED): _STATE.IDLE,
    (_STATE.ANSWERING, _EVENT.UPGRADE): _STATE.UPGRADED,
    **{(each, _EVENT.LAST): _STATE.DRAINING for each in _OPEN},
    (_STATE.DRAINING, _EVENT.SENT): _STATE.LINGERING,
    **{(each, _EVENT.OVER): _STATE.CLOSED for each in _STATE if each is not _STATE.CLOSED},
}

# The same for every pair, since a lookup that cannot fail is the cheapest.
STATE_AFTER = {(state, event): NEXT_STATE.get((state, event), state) for state in _STATE for event in _EVENT}


# -- the requests that wait, and the bytes ---


class Pipeline:
    """A queue of requests, with the bound up to which a connection reads ahead of its answers."""

    __slots__ = (
        "_limits",
        "_resumed",
        "ended_unannounced",
        "has_refusal",
        "held",
        "read_ahead",
        "waiting",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._resumed: trio.Event | None = None
        self.waiting: list[Request | MalformedRequest] = []
        self.read_ahead = 0
        """Bytes read while an answer was outstanding."""
        self.held: HeldBodies | None = None
        """The account of the bodies that wait; made for the first one that comes in several reads."""
        self.ended_unannounced = False
        """Whether the last answer has ended since the server leaves, and could not say so."""
        self.has_refusal = False
        """Whether a malformed request was answered. Its peer may still be sending, and should get that answer."""

    @property
    def is_full(self) -> bool:
        """Whether so much was read ahead that nothing more may be read now."""
        limits = self._limits
        return self.read_ahead > limits.pipelined_bytes or len(self.waiting) > limits.pipelined_requests

    def resume(self) -> None:
        """Lets reading go on, because every request is answered or none will be."""
        self.read_ahead = 0
        if self._resumed is not None:
            self._resumed.set()

    async def wait_until_resumed(self) -> None:
        """Waits for `resume`."""
        self._resumed = trio.Event()
        await self._resumed.wait()
        self._resumed = None


class WriteBuffer:
    """Sends as much as the kernel takes without waiting; a task that exists only while it is needed sends the rest."""

    __slots__ = (
        "_clock",
        "_closed",
        "_flushing",
        "_limits",
        "_room",
        "_sender",
        "_stream",
        "_unsent",
        "deadline",
        "full",
    )

    def __init__(self, limits: HttpLimits, clock: HttpClock, stream: ByteStream, sender: Connection) -> None:
        self._limits = limits
        self._clock = clock
        self._stream = stream
        self._sender = sender
        self._unsent: bytearray | None = None
        self._room: trio.Event | None = None
        self._flushing = self._closed = False
        self.full = False
        """Whether more than ``HttpLimits.write_buffer`` is unsent."""
        self.deadline = math.inf
        """The time at which the peer must have taken some of the unsent bytes."""

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return len(self._unsent) if self._unsent else 0

    def would_overflow(self, more: int) -> bool:
        """Whether ``more`` bytes behind others would be more than ``HttpLimits.max_buffered``."""
        return bool(self._unsent) and self.unsent + more > self._limits.max_buffered

    def send(self, data: bytes, *, before_end: bool = False) -> None:
        """Sends ``data``, or keeps the part that cannot be sent now. Does nothing once closed.

        Args:
            data: The bytes.
            before_end: Whether our half is closed at once if all of it was sent.
        """
        if self._closed:
            return
        if self._unsent:
            self._unsent += data
            self._update_full()
            return
        try:
            sent = self._stream.send_before_end(data) if before_end else self._stream.send_now(data)
        except trio.BrokenResourceError:
            self._sender.lost()
            return
        if sent < len(data):
            self._unsent = bytearray(memoryview(data)[sent:])
            self._update_full()
            self.deadline = self._clock.in_seconds(self._limits.write_timeout)
            if not self._flushing:
                self._flushing = True
                self._sender.start(HTTP_FLUSH, self._flush)

    async def drained(self) -> None:
        """Waits until the buffer is not `full`. Always a checkpoint; cancelling it loses nothing.

        Raises:
            trio.BrokenResourceError: The connection ended first.
        """
        await trio.lowlevel.checkpoint()
        while self.full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
        if self._closed:
            raise trio.BrokenResourceError("the peer is gone, or took nothing for too long")

    def close(self) -> None:
        """Drops the unsent bytes, sends nothing more, and makes `drained` raise. Called once."""
        self._closed = True
        # The connection refers to this buffer: a cycle would have to wait for the garbage collector.
        del self._sender
        self._unsent = None
        self.deadline = math.inf
        self._update_full()

    async def _flush(self) -> None:
        try:
            while self._unsent:
                sent = await self._stream.send_some(self._unsent)
                if self._closed:
                    return
                del self._unsent[:sent]
                self.deadline = self._clock.in_seconds(self._limits.write_timeout)
                self._update_full()
        except trio.BrokenResourceError:
            if not self._closed:
                self._sender.lost()
            return
        finally:
            self._flushing = False
        if self._closed:
            return
        self._unsent = None
        self.deadline = math.inf
        self._sender.sent()

    def _update_full(self) -> None:
        self.full = self.unsent > self._limits.write_buffer
        if not self.full and self._room is not None:
            self._room.set()
            self._room = None


# -- an answer, and the connection ---


# Pipelined requests answered before other connections are served.
_SERVED_AT_ONCE = 16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Looking a member up in the class of its enumeration takes longer than a call.
_IDLE, _READING, _ANSWERING, _DRAINING, _LINGERING, _UPGRADED, _CLOSED = ConnectionState
_BYTES, _REQUEST, _ANSWERED, _LAST, _SENT, _UPGRADE, _OVER = ConnectionEvent
# Seconds that a connection over the limits has until its request begins: who asks for metrics sends that at once.
_TIME_OVER_LIMIT = 1.0
# While the server is not stopping, or may not have said so yet, a connection goes on behind an answer.
_GOES_ON = (False, "leaving")
_NO_REQUEST = Request("GET", "", "", "", {}, b"", "1.1", False)


class ConnectionResponse(Response):
    """The answer to one request of a connection, made into bytes of HTTP/1.1. Its methods are those of `Response`."""

    __slots__ = ("_chunked", "_connection", "_head_only", "_http10", "_server", "_size", "entry")

    def __init__(self, connection: Connection, server: ServerState, request: Request) -> None:
        self._connection = connection
        self._server = server
        self._state = "new"
        self._closes = not request.keep_alive
        self._http10 = request.version == "1.0"
        self._head_only = request.method == "HEAD"
        self._chunked = False
        self.on_gone = None
        self.entry: AccessEntry | None = None
        """Its line in the access log; ``None`` without one."""
        self._size = 0

    @property
    def gone(self) -> bool:
        return self._connection.state is _CLOSED

    @property
    def full(self) -> bool:
        return self._connection.full

    def answer(
        self, status: int, body: bytes = b"", *, content_type: str | None = None, headers: Headers = ()
    ) -> None:
        if self._state != "new":
            raise ResponseStateError("this request was answered already")
        head = self._server.clock.heads.get(status) or self._head(status)
        extra = type_line(content_type)
        for name, value in headers:
            extra += header_line(name, value)
        self._state = "ended"
        connection = self._connection
        if connection.state is _CLOSED:
            return
        if self._closes or self._http10 or self._server.stopping:
            extra += self._connection_line()
        if status == 204 or status == 304:
            # RFC 9110 section 6.4.1: these statuses never have a body, and 204 has no length.
            data = b"%b%b\r\n" % (head, extra)
        else:
            content = b"" if self._head_only else body
            data = b"%b%bcontent-length: %d\r\n\r\n%b" % (head, extra, len(body), content)
        if self.entry is not None:
            self.entry.answered(status, 0 if self._head_only else len(body))
        connection.finish(data, closes=self._closes)

    def start(
        self, status: int = 200, *, content_type: str | None, headers: Headers = (), first: bytes = b""
    ) -> None:
        self._must_be_new()
        parts = [self._server.clock.heads.get(status) or self._head(status), type_line(content_type)]
        if status in (204, 304):
            raise ValueError(f"an answer with the status {status} has no body to stream")
        parts += [header_line(name, value) for name, value in headers]
        self._state = "streaming"
        if self.gone:
            return
        if self.entry is not None:
            self.entry.status = status
            self._size = len(first)
        if self._http10:
            self._closes = True
        else:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts += (self._connection_line(), b"\r\n")
        if first:
            parts.append(self._framed(first))
        self._connection.send(b"".join(parts))

    def write(self, data: bytes) -> None:
        if self._state != "streaming":
            self._must_stream()
        connection = self._connection
        if connection.state is _CLOSED:
            raise trio.BrokenResourceError("the peer is gone")
        if data and not self._head_only:
            self._size += len(data)
            connection.send_piece(self._framed(data))
            if connection.state is _CLOSED:
                raise trio.BrokenResourceError("the peer is gone")

    async def drained(self) -> None:
        await self._connection.drained()

    def end(self, last: bytes = b"") -> None:
        self._must_stream()
        self._state = "ended"
        if self.gone:
            return
        piece = self._framed(last) if last and not self._head_only else b""
        if self._chunked and not self._head_only:
            piece += b"0\r\n\r\n"
        if self.entry is not None:
            self.entry.answered(self.entry.status, self._size + len(last))
        self._connection.finish(piece, closes=self._closes)

    def abort(self) -> None:
        if self._state != "ended":
            self._state = "ended"
            self._connection.lost()

    def upgrade(self, successor: Successor) -> bool:
        self._must_be_new()
        if not self._connection.upgrade(successor):
            return False
        self._state = "ended"
        if self.entry is not None:
            self.entry.answered(101, 0)
        return True

    def lost(self) -> None:
        """Takes note that the connection has ended before the answer was complete."""
        if self.entry is not None:
            self.entry.answered(self.entry.status, self._size, lost=True)

    def run(self, fn: Callable[[], Awaitable[None]]) -> None:
        if not self.gone:
            self._connection.start(HTTP_RESPONSE, partial(self._run, fn), lambda _: self.fail())

    def _head(self, status: int) -> bytes:
        clock = self._server.clock
        clock.heads[status] = head = status_head(status) + clock.date_line
        return head

    def _framed(self, data: bytes) -> bytes:
        if self._head_only:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _connection_line(self) -> bytes:
        if self._closes or self._server.stopping:
            self._closes = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self._http10 else b""


class Connection:
    """Serves one byte stream; run `serve` in a task of its own.

    Args:
        server: The state that it shares with the other connections.
        stream: The byte stream, which `serve` closes.
        listener: Where it was accepted, if it was.
        over_limit: The limit that it is over, in words; ``None`` for most. Such a connection has a second for one
            request, which is answered if its path is one of `ServerState.answered_when_full`, and refused otherwise.
    """

    __slots__ = (
        "_corked",
        "_listener",
        "_nursery",
        "_output",
        "_parser",
        "_pipeline",
        "_response",
        "_server",
        "_stream",
        "_successor",
        "is_new",
        "over_limit",
        "read_deadline",
        "state",
    )

    _nursery: trio.Nursery

    def __init__(
        self,
        server: ServerState,
        stream: ByteStream,
        listener: ListeningSocket | None = None,
        over_limit: str | None = None,
    ) -> None:
        limits = server.limits
        self.over_limit = over_limit
        self._server, self._stream, self._listener = server, stream, listener
        self.state = _IDLE
        self.is_new = True
        """Whether nothing has been received."""
        self._parser: RequestParser | None = None  # none between two requests: idle connections are small
        self._pipeline = Pipeline(limits)
        self._response: ConnectionResponse | None = None
        self._output = WriteBuffer(limits, server.clock, stream, self)
        self._corked: list[bytes] | None = None  # what the application writes at once leaves in one piece
        self._successor: Successor | None = None
        # A client begins a TLS handshake, or its request to a server that stops, at once: these have a head's time.
        at_once = stream.secure or server.stopping
        seconds = limits.head_time if at_once else limits.idle_time
        self.read_deadline = server.clock.in_seconds(seconds if over_limit is None else _TIME_OVER_LIMIT)

    def __repr__(self) -> str:
        waiting = len(self._pipeline.waiting)
        return f"<Connection {self._stream.peer} {self.state.value}, {waiting} waiting, {self.unsent} bytes unsent>"

    @property
    def gone(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.state is _CLOSED

    @property
    def may_bring_more(self) -> bool:
        """Whether its client is likely to send a request over it although the server leaves, as it cannot know that."""
        return self._pipeline.ended_unannounced and self.state is _IDLE

    @property
    def is_being_read(self) -> bool:
        """Whether it waits for a request, or for the rest of one."""
        return self.state is _IDLE or self.state is _READING

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding or unsent."""
        return self._response is not None or self._output.unsent > 0

    @property
    def holder(self) -> str | None:
        """The holder of the budget for connections; ``None`` where peers have no addresses."""
        return None if self._listener is None else self._listener.holder_of(self._stream.peer)

    @property
    def silent_since(self) -> float:
        """The time since which no request has begun; infinite if there is one, or where the limits do not count it."""
        if self.state is not _IDLE or self._listener is None or self._output.unsent or self.over_limit:
            return math.inf
        limits, clock = self._server.limits, self._server.clock
        began_at_once = self._stream.secure and self.read_deadline <= clock.in_seconds(limits.head_time)
        return self.read_deadline - clock.tick - (limits.head_time if began_at_once else limits.idle_time)

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._output.unsent

    @property
    def full(self) -> bool:
        """Whether more than ``HttpLimits.write_buffer`` is unsent."""
        return self._output.full

    @property
    def deadline(self) -> float:
        """The time at which `expire` is due."""
        return min(self.read_deadline, self._output.deadline)

    def _change(self, event: ConnectionEvent) -> None:
        self.state = STATE_AFTER[self.state, event]

    async def serve(self) -> Awaitable[None] | None:
        """Serves until all its tasks have ended, and closes, or returns what to await next, after an upgrade."""
        graceful, handover = False, None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._server.ticker.add(self)
                # Inside of the nursery, whose scope would take a stray Cancelled for its own.
                with Containment(SOCKET_CONNECTION, self.crashed, {"peer": self._stream.peer}):
                    await self._read()
            graceful = not nursery.cancel_scope.cancel_called
            if self._successor is not None and self.state is _UPGRADED:
                handover = self._successor(self._stream.as_trio_stream())
        finally:
            self._close()
            self._server.ticker.discard(self)
            if handover is None:
                await self._stream.aclose(graceful=graceful)
        return handover

    async def _read(self) -> None:
        stream = self._stream
        if self._server.stopping is True:
            self.stop()
        try:
            while not stream.stopped_reading:
                await stream.read(self.received)
                await self._wait_to_read()
        except trio.BrokenResourceError:
            self.lost()
        except BaseException:
            self._close()
            raise
        self._peer_ended()
        if self._successor is None and not self._output.unsent:
            # A nursery that closes takes no further task, so none may be started. Unsent bytes have a task by now.
            self._close()
        if self._successor is None and self.gone:
            stream.close_now()  # the peer need not wait for tasks that outlive their answers

    def _peer_ended(self) -> None:
        """Ends what the end of the received bytes ends; does nothing where this side stopped reading."""
        if self._response is not None or self._pipeline.waiting:
            self.lost()
        elif self._output.unsent:
            self._take_no_more()

    # -- receiving --------------------------------------------------------------------------------------------------

    def received(self, data: bytes | memoryview) -> bool:
        """Takes bytes of the peer, and returns whether more may be read before a request is answered."""
        state, pipeline = self.state, self._pipeline
        self.is_new = False
        if state is not _IDLE and state is not _READING and state is not _ANSWERING:
            return True  # dropped
        request = None if self._parser is not None else self._server.parsers.repeated(data)
        if request is None:
            self._parse(data)
        else:
            pipeline.waiting.append(request)
            self._change(_REQUEST)
        if pipeline.waiting and self._response is None and not self._output.full:
            self._answer_waiting()
        else:
            self._go_on()
        if self.state is not _ANSWERING:
            return True
        pipeline.read_ahead += len(data)
        return not pipeline.is_full

    def _parse(self, data: bytes | memoryview) -> None:
        server, pipeline, parser = self._server, self._pipeline, self._parser
        if parser is None:
            parser = self._parser = server.parsers.take()
        before = parser.state
        parser.feed(data)
        if parser.ready:
            if before == "between" == parser.state:
                server.parsers.learn(data, parser.ready)
            pipeline.waiting += parser.ready
            parser.ready.clear()
            self._change(_REQUEST)
        if parser.finished:
            self._take_no_more()
        elif parser.state == "between":
            self._parser = None
            server.parsers.give_back(parser)
        else:
            self._change(_BYTES)
            self._restart_clock(parser, before)
            if parser.state == "body":
                pipeline.held = held = pipeline.held or HeldBodies(server.parsers.bodies, self._stream.peer)
                if (reason := held.charge(parser.message)) is not None:
                    self._refuse_unfinished(parser, 503, reason)

    def _restart_clock(self, parser: RequestParser, before: str) -> None:
        """Sets the deadline of a request that is half read, of which ``before`` was read before."""
        clock, message = self._server.clock, parser.message
        if parser.state == "body":
            if message.body_began is None:
                message.body_began = clock.now
            self.read_deadline = clock.body_deadline(message.body_began, message.body_size)
        elif before != "head":
            self.read_deadline = clock.in_seconds(self._server.limits.head_time)

    def _refuse_unfinished(self, parser: RequestParser, status: int, reason: str) -> None:
        """Answers the request that is half read with an error, after those before it."""
        parser.refuse(status, reason)
        self._pipeline.waiting += parser.ready
        self._take_no_more()

    async def _wait_to_read(self) -> None:
        """Waits, after the peer sent far more than was answered, until everything is answered."""
        if self.state is not _ANSWERING or not self._pipeline.is_full:
            return
        self.read_deadline = math.inf
        await self._pipeline.wait_until_resumed()
        if self._parser is not None:
            # The time limits of a request that is half read begin anew, because the delay was ours.
            self._parser.message.body_began = None
            self._restart_clock(self._parser, "between")

    def _take_no_more(self) -> None:
        """Stops taking requests. Those that wait are still answered."""
        self._change(_LAST)
        self.read_deadline = math.inf
        if self._parser is not None:
            self._parser.close()
            self._parser = None

    # -- requests and their answers ---------------------------------------------------------------------------------

    def _answer_waiting(self) -> None:
        """Hands requests to the application until one is not answered at once."""
        server, waiting, output = self._server, self._pipeline.waiting, self._output
        for _ in range(_SERVED_AT_ONCE):
            if not waiting or self._response is not None or output.full:
                break
            item = waiting.pop(0)
            corked: list[bytes] = []
            self._corked = corked
            if isinstance(item, MalformedRequest):
                server.refused += 1
                self._pipeline.has_refusal = True
                self._response = response = ConnectionResponse(self, server, _NO_REQUEST)
                if access_log.is_on:
                    response.entry = AccessEntry("", "", self._stream.peer)
                response.refuse(item.status, item.reason)
            elif self.over_limit is not None and item.path not in server.answered_when_full:
                server.rejected += 1
                self._response = response = ConnectionResponse(self, server, item)
                response.refuse(503, self.over_limit)
            else:
                server.requests += 1
                item.peer, item.secure = self._stream.peer, self._stream.secure
                self._response = response = ConnectionResponse(self, server, item)
                if self.over_limit is not None:
                    response.close_after()
                if access_log.is_on:
                    item.entry = response.entry = AccessEntry(item.method, item.path, item.peer)
                try:
                    server.app(item, response)
                except BaseException as error:
                    response.app_raised(error, self._stream.peer)
            self._corked = None
            if corked:
                output.send(corked[0] if len(corked) == 1 else b"".join(corked))
        self._go_on()

    def _go_on(self) -> None:
        """Updates the state after something was received, answered or sent, and does what the new state needs."""
        parser = self._parser
        if self._response is not None or self._pipeline.waiting:
            if parser is None:
                self.read_deadline = math.inf
            if self._response is None and not self._output.full:
                # In a task of its own, because this may run in any task, while the application writes an answer.
                self.start(HTTP_SERVE, self._answer_later)
            return
        server = self._server
        if (held := self._pipeline.held) is not None:
            held.release(parser.message.charged if parser is not None else 0)
        if self.state is _ANSWERING:
            self._change(_ANSWERED)
            if self._pipeline.read_ahead:
                self._pipeline.resume()
            if parser is not None:
                self._change(_BYTES)
        if self.state is _IDLE:
            self.read_deadline = server.clock.idle_deadline
            if not server.stopping:
                return
            if server.stopping == "leaving":
                # Where the answer could not say that it is the last one, the next request must find the connection.
                self._pipeline.ended_unannounced = True
                return
            self._take_no_more()
        elif parser is not None and parser.message.expects_continue:
            parser.message.expects_continue = False
            if not parser.message.body_size:
                self._output.send(_CONTINUE)
        if self.state is _DRAINING and not self._output.unsent:
            self._end_gracefully()

    async def _answer_later(self) -> None:
        if self._response is None:
            self._answer_waiting()

    def _end_gracefully(self) -> None:
        """Closes our half and goes on reading for a while (RFC 9112 section 9.6)."""
        if self._stream.stopped_reading:
            self._close()
        elif self._stream.half_close() or self._pipeline.has_refusal:
            self._change(_SENT)
            self.read_deadline = self._server.clock.in_seconds(self._server.limits.linger_time)
        else:
            self._end()

    # -- sending, called by `Response` ------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Sends or buffers a part of the current answer."""
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._output.send(data)

    def send_piece(self, data: bytes) -> None:
        """Sends or buffers a piece of a stream; breaks the connection if it runs too far ahead of its reader."""
        if self._corked is None and self._output.would_overflow(len(data)):
            log.info("a peer reads too slowly and is dropped", peer=self._stream.peer, unsent=self.unsent)
            self.lost()
        else:
            self.send(data)

    def finish(self, data: bytes, *, closes: bool) -> None:
        """Sends the last part of the current answer, and ends the connection behind it if it ``closes``."""
        self._response = None
        if closes:
            self._pipeline.waiting.clear()
            self._take_no_more()
        if self._corked is not None:
            self._corked.append(data)
        else:
            # A stream that began before the stop has not said that it is the last answer. A peer that saw the end of
            # the stream before that of the connection would send its next request into a connection that ends.
            self._output.send(data, before_end=self._ends_behind_answer())
            self._go_on()

    def _ends_behind_answer(self) -> bool:
        """Whether `_go_on` is about to close our half, if all bytes are sent by then."""
        if self.state is not _DRAINING and self._server.stopping in _GOES_ON:
            return False
        return self._parser is None and not self._pipeline.waiting and not self._stream.stopped_reading

    def start(
        self,
        kind: TaskKind,
        fn: Callable[[], Awaitable[None]],
        on_crash: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Runs ``fn`` in a task of this connection, which ends with the task's crash unless ``on_crash`` is given."""
        start(self._nursery, kind, fn, about=self._stream.peer, on_crash=on_crash or self.crashed)

    def upgrade(self, successor: Successor) -> bool:
        """Reads no further and gives the stream to ``successor``, if nothing lies before or behind the request."""
        if self.state is not _ANSWERING or self._pipeline.waiting or self._parser is not None or self.unsent:
            return False
        self._change(_UPGRADE)
        self._successor, self._response = successor, None
        self._stream.stop_reading()
        self._pipeline.resume()
        return True

    async def drained(self) -> None:
        """Waits until the connection is not `full`; see `WriteBuffer.drained`."""
        await self._output.drained()

    def sent(self) -> None:
        """Notes that every byte was sent."""
        if self.state is not _CLOSED:
            self._go_on()

    # -- the end ----------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Applies the time limit whose deadline has passed."""
        if self._output.deadline <= now:
            log.info("a peer takes no bytes and is dropped", peer=self._stream.peer, unsent=self.unsent)
            self.lost()
        elif (parser := self._parser) is not None:
            self._refuse_unfinished(parser, 408, f"the {parser.state} of the request takes too long")
            self._go_on()
        elif self.busy and self.state is not _LINGERING:
            self.read_deadline = math.inf
        elif self.over_limit is not None and self.state is _IDLE:
            self._turn_away()
        else:
            self._end()

    def give_way(self) -> bool:
        """Ends a connection over the limits at once for another one, unless its request is being answered.

        Returns:
            Whether it did.
        """
        if self._response is not None or self.state is _CLOSED:
            return False
        if self.state is _IDLE or self.state is _READING:
            self._turn_away()
        self._end()
        return True

    def _turn_away(self) -> None:
        """Refuses a connection over the limits that has not brought its request."""
        self._take_no_more()
        self._pipeline.waiting.append(_NO_REQUEST)
        self._answer_waiting()

    def stop(self) -> None:
        """Closes the connection if it is idle; otherwise the connection ends after its outstanding answers.

        A request that has arrived and was not read yet is answered: to close the connection would lose it.
        """
        if self.state is _IDLE and not self._output.unsent and not self._stream.has_unread:
            self._end()

    def _end(self) -> None:
        """Ends a connection that has nothing outstanding: its task wakes, closes the stream and returns."""
        self._close()
        self._stream.stop_reading()

    def crashed(self, error: BaseException) -> None:
        """Ends the connection, because a task of it, or one that serves it, raised ``error``, which is logged."""
        self.lost()

    def lost(self) -> None:
        """Ends a connection that broke: cancels the tasks, and calls `Response.on_gone`."""
        if self.state is not _CLOSED:
            # Closed first: what `Response.on_gone` raises must not pass for this cancellation.
            self._close()
            self._nursery.cancel_scope.cancel()

    def _close(self) -> None:
        if self.state is _CLOSED:
            return
        self._change(_OVER)
        self._take_no_more()
        if self._pipeline.held is not None:
            self._pipeline.held.release(0)
        self._pipeline.waiting.clear()
        self._pipeline.resume()
        self._output.close()
        response, self._response = self._response, None
        if response is not None:
            self._server.lost += 1
            response.lost()
            response.peer_left(self._stream.peer)


# -- what the connections of one server share ---

App = Callable[[Request, Response], None]


@attrs.frozen(kw_only=True)
class ConnectionCounts:
    """A snapshot; counters count from the start of the server."""

    connections: int
    """Open now."""
    busy: int
    """Of these, how many have a request that is not answered completely, or bytes that are not sent."""
    requests: int
    """Handed to the application."""
    refused: int
    """Answered by the server itself, because they were malformed, too long or too slow."""
    rejected: int
    """Connections turned away because too many were open, of one address or in all."""
    lost: int
    """Connections that broke, or whose peer left, while an answer was outstanding."""
    unsent: int
    """Bytes that wait for peers to take them."""
    bodies: BudgetStatistics
    """Bytes of bodies of requests that are not answered yet, by address."""
    by_address: BudgetStatistics
    """Open connections by address, those that became WebSockets included."""


class ServerState:
    """Shared by all connections of a server.

    Args:
        app: The application, called with each request and its response. It must not wait.
        limits: The bounds on peers.
    """

    def __init__(self, app: App, limits: HttpLimits) -> None:
        self.app = app
        self.limits = limits
        self.stopping: bool | Literal["leaving", "accepting"] = False
        """Whether every answer that begins from now on closes its connection; ``"accepting"`` where new connections
        still get one, and ``"leaving"`` where those that an earlier answer has left open do, too."""
        self.answered_when_full: Collection[str] = ()
        """The paths of requests that are answered also on connections over the limits: how the server is, is asked
        most when it is full."""
        self.clock = HttpClock(limits)
        self.ticker: Ticker[Connection] = Ticker(self.clock.tick, self._tick)
        self.poller = open_poller()
        self.parsers = ParserPool(limits)
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.requests = self.refused = self.rejected = self.lost = 0

    def _tick(self) -> None:
        self.clock.refresh()
        self.parsers.forget_heads()

    def close(self) -> None:
        """Closes the poller, and the parsers that are kept for later requests."""
        self.poller.close()
        self.parsers.close()

    def statistics(self, by_address: BudgetStatistics) -> ConnectionCounts:
        """Returns a snapshot of the counters."""
        members = self.ticker.members
        return ConnectionCounts(
            connections=len(members),
            busy=sum(each.busy for each in members),
            requests=self.requests,
            refused=self.refused,
            rejected=self.rejected,
            lost=self.lost,
            unsent=sum(each.unsent for each in members),
            bodies=self.parsers.bodies.statistics(),
            by_address=by_address,
        )
