"""One HTTP/1.1 connection: a reader that never waits for an answer, and a flusher when the peer reads slowly.

What a connection is doing follows from four facts:

================ ==============================================================================
``_parser``      a request is half read (there is none between requests: idle costs nothing)
``_response``    a request is with the application; the next one waits in ``_queue``
``_outbox``      may hold unsent bytes; a flusher task is at work then
``_last``        no further request is taken: after the last byte is sent, the end is near
================ ==============================================================================

The reader reads on while an answer is outstanding, so it sees at once that the peer left. **A peer that closes its
sending half counts as gone** when an answer is outstanding: TCP cannot tell that from a close, and a disconnect has to
cancel the work. When the answer is complete by then, it is still sent.

Times are kept by the hub's ticker, which looks at ``read_deadline`` and ``write_deadline``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from mcp_transports.http.h1.byte_stream import ByteStream
from mcp_transports.http.h1.parser import RequestParser
from mcp_transports.http.h1.read_loop import Reader
from mcp_transports.http.h1.request import MalformedRequest, Request
from mcp_transports.http.h1.response import Response, Successor
from mcp_transports.http.h1.server_state import ServerState
from mcp_transports.http.h1.write_buffer import Outbox

__all__ = ["Connection"]

_logger = logging.getLogger("mcp_transports.http")
# Pipelined requests answered before other connections get their turn.
_SERVED_AT_ONCE = 16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_REQUEST = Request("GET", "", "", "", {}, b"", "1.1", False)


class Connection:
    """Serves one wire until either side has enough; run `serve` in a task of its own."""

    __slots__ = (
        "_ahead",
        "_body_since",
        "_corked",
        "_hub",
        "_last",
        "_lingering",
        "_nursery",
        "_outbox",
        "_parser",
        "_queue",
        "_reader",
        "_reading",
        "_refused",
        "_response",
        "_resumed",
        "_secure",
        "_serving",
        "_successor",
        "_wire",
        "gone",
        "peer",
        "read_deadline",
    )

    def __init__(self, hub: ServerState, wire: ByteStream, peer: str, *, secure: bool = False) -> None:
        hub.open += 1
        self._hub = hub
        self._wire = wire
        self._secure = secure
        self.peer = peer
        self._parser: RequestParser | None = None
        self._response: Response | None = None
        self._queue: list[Request | MalformedRequest] = []
        self._ahead = 0
        self._body_since = 0.0
        self._outbox = Outbox(hub, wire, self)
        self._reader = Reader(wire, hub.poller, self)
        self._corked: list[bytes] | None = None
        self._last = self._lingering = self._refused = self._serving = False
        self._resumed: trio.Event | None = None
        self._successor: Successor | None = None
        self.gone = False
        # A TLS handshake is due at once, a first request like any other one.
        limits = hub.limits
        self.read_deadline = hub.in_seconds(limits.head_time if secure else limits.idle_time)

    def __repr__(self) -> str:
        state = "idle" if self._parser is None else f"reading {self._parser.state}"
        if self._response is not None:
            state = "answering"
        state = "gone" if self.gone else "lingering" if self._lingering else state
        return f"<Connection {self.peer} {state}, {len(self._queue)} waiting, {self.unsent} bytes unsent>"

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding or unsent."""
        return self._response is not None or self._outbox.unsent > 0

    @property
    def write_deadline(self) -> float:
        """When the peer must have taken some of what is unsent."""
        return self._outbox.deadline

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._outbox.unsent

    # -- the task ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Returns when the connection is closed and all its tasks are done. Cancelled, it closes at once."""
        hub = self._hub
        self._reading = trio.CancelScope()
        hub.add(self)
        politely = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self._outbox.nursery = nursery
                if hub.stopping:
                    self.stop()
                with self._reading:
                    await self._reader.run()
                if self._successor is not None:
                    await self._successor(self._wire.stream())
                elif not self.unsent:
                    # Tasks of answers that are complete may still be at work, but the peer need not wait for them.
                    self._wire.drop()
            politely = not self.gone
        finally:
            self._let_go()
            hub.members.discard(self)
            hub.open -= 1
            await self._wire.aclose(politely=politely)

    # -- what its reader brings --------------------------------------------------------------------------------------

    def ended(self) -> None:
        """The peer sends nothing more."""
        if self._response is not None or self._queue:
            self.lost()
        elif self._outbox.unsent:
            self._last = True  # everything is answered: what is unsent goes out, then it is over

    def received(self, data: bytes | memoryview) -> None:
        """The peer sent something."""
        if self._last:
            return  # behind the last request that is taken there is nothing that we want to know
        parser, hub = self._parser, self._hub
        began = "between" if parser is None else parser.state
        if parser is None:
            parser = self._parser = hub.take_parser()
        parser.feed(data)
        if parser.ready:
            self._queue += parser.ready
            parser.ready.clear()
        state = parser.state
        if parser.finished:
            self._no_more()
        elif state == "between":
            self._parser = None
            hub.give_parser(parser)
        elif state == "body":
            self._body_grew(parser, began)
        elif began != "head":
            self.read_deadline = hub.in_seconds(hub.limits.head_time)
        if self._queue and self._response is None and not self._outbox.full:
            self._serve()
        else:
            self.settle()
        self._ahead = self._ahead + len(data) if self._response is not None or self._queue else 0

    def _body_grew(self, parser: RequestParser, began: str) -> None:
        hub, limits = self._hub, self._hub.limits
        if began != "body":
            self._body_since = hub.now
        slowest = self._body_since + hub.tick + limits.body_time + parser.body_received / limits.body_rate
        self.read_deadline = min(hub.in_seconds(limits.body_time), slowest)

    def _no_more(self) -> None:
        """Takes no further request; those in the queue are still answered."""
        self._last = True
        self.read_deadline = math.inf
        if self._parser is not None:
            self._parser.close()
            self._parser = None

    @property
    def reads_too_far(self) -> bool:
        """Whether far more was read than is answered."""
        if self._last or (self._response is None and not self._queue):
            return False
        limits = self._hub.limits
        return self._ahead > limits.pipelined_bytes or len(self._queue) > limits.pipelined_requests

    async def wait_until_wanted(self) -> None:
        """The peer sent far more than was answered: reads nothing until the rest is answered."""
        self._resumed = trio.Event()
        self.read_deadline = math.inf
        await self._resumed.wait()
        self._resumed = None
        parser, hub = self._parser, self._hub
        if parser is not None:
            # The clocks of what is half read start anew: it was we who did not read.
            self.read_deadline = hub.in_seconds(hub.limits.head_time)
            if parser.state == "body":
                self._body_grew(parser, "head")

    # -- requests and their answers ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Hands over requests until one is not answered at once. What it writes meanwhile goes out in one piece."""
        hub, queue = self._hub, self._queue
        self._serving = True
        for _ in range(_SERVED_AT_ONCE):
            if not queue or self._response is not None or self.gone or self._outbox.full:
                break
            corked: list[bytes] = []
            self._corked = corked
            item = queue.pop(0)
            if isinstance(item, MalformedRequest):
                hub.refused += 1
                self._refused = True
                self._response = response = Response(self, hub, _NO_REQUEST)
                response.refuse(item.status, item.reason)
            else:
                hub.requests += 1
                item.peer = self.peer
                item.secure = self._secure
                self._response = response = Response(self, hub, item)
                try:
                    hub.app(item, response)
                except Exception:
                    self._failed(response)
            self._corked = None
            if corked and not self.gone:
                self._outbox.send(corked[0] if len(corked) == 1 else b"".join(corked))
        self._serving = False
        self.settle()

    def settle(self) -> None:
        """What comes next? Called whenever something was received, answered or sent."""
        if self.gone or self._serving or self._successor is not None:
            return
        if self._response is not None or self._queue:
            if self._parser is None:
                self.read_deadline = math.inf
            if self._response is None and not self.full:
                # Not from here: this may be anybody's task, deep inside of something.
                self._nursery.start_soon(self._serve_later)
            return
        self._ahead = 0
        if self._resumed is not None:
            self._resumed.set()
        if self._last or (self._hub.stopping and self._parser is None):
            self._last = True
            if not self._outbox.unsent and not self._lingering:
                self._wind_up()
        elif self._parser is None:
            self.read_deadline = self._hub.idle_deadline
        elif self._parser.expects_continue:
            self._parser.expects_continue = False
            if not self._parser.body_received:
                self._outbox.send(_CONTINUE)

    async def _serve_later(self) -> None:
        if self._queue and self._response is None and not self.gone:
            self._serve()

    def _wind_up(self) -> None:
        """All is said. The peer hears so, and what it still sends is read and dropped for a while."""
        self._lingering = True
        if self._wire.half_close() or self._refused:
            self.read_deadline = self._hub.in_seconds(self._hub.limits.linger_time)
        else:
            self._reading.cancel()

    async def _run(self, response: Response, fn: Callable[[], Awaitable[None]]) -> None:
        try:
            await fn()
        except trio.BrokenResourceError:
            if not self.gone:
                self._failed(response)  # something else broke
        except Exception:
            self._failed(response)

    def _failed(self, response: Response) -> None:
        _logger.exception("the application failed on a request of %s", self.peer)
        if not self.gone:
            response.fail()

    # -- what a response needs --------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether more than ``HttpLimits.write_buffer`` is unsent."""
        return self._outbox.full

    def send(self, data: bytes) -> None:
        """Sends or buffers."""
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._outbox.send(data)

    def send_piece(self, data: bytes) -> None:
        """Sends or buffers a piece of a stream; one that runs too far ahead of its reader breaks the connection."""
        if self._corked is None and self._outbox.overflows(len(data)):
            _logger.warning("%s reads too slowly and is dropped: %d bytes are unsent", self.peer, self.unsent)
            self.lost()
        else:
            self.send(data)

    def completed(self) -> None:
        """The current answer was given to `send` as a whole."""
        response, self._response = self._response, None
        if response is not None and response.closes:
            self._queue.clear()
            self._no_more()
        if not self._serving:
            self.settle()

    def run(self, response: Response, fn: Callable[[], Awaitable[None]]) -> None:
        """Runs ``fn`` in this connection."""
        self._nursery.start_soon(self._run, response, fn)

    def upgrade(self, successor: Successor) -> bool:
        """Reads no further and gives the wire to ``successor``, unless anything lies before or behind the request."""
        if self.gone or self._last or self._queue or self._parser is not None or self._outbox.unsent:
            return False
        self._successor, self._response = successor, None
        self._hub.members.discard(self)
        self._reader.stop()
        self._hang_up()
        return True

    async def drained(self) -> None:
        """Waits until the connection is not `full`."""
        await self._outbox.drained()

    # -- the end ----------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """One of the two deadlines is over."""
        if self._outbox.deadline <= now:
            _logger.info("%s takes no bytes and is dropped: %d are unsent", self.peer, self.unsent)
            self.lost()
        elif self._parser is not None:
            self._parser.refuse(408, f"the {self._parser.state} of the request takes too long")
            self._queue += self._parser.ready
            self._no_more()
            self.settle()
        elif self.busy and not self._lingering:
            self.read_deadline = math.inf
        else:
            self._hang_up()

    def stop(self) -> None:
        """No new work: closes an idle connection, lets another one finish what it is at."""
        if not self.busy and not self._queue and self._parser is None and not self._last:
            self._hang_up()

    def _hang_up(self) -> None:
        self.read_deadline = math.inf
        self._last = True
        self._reading.cancel()

    def lost(self) -> None:
        """Nothing can be sent any more: cancels the tasks and tells the application, once."""
        if not self.gone:
            self._nursery.cancel_scope.cancel()
            self._let_go()

    def _let_go(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._queue.clear()
        self._no_more()
        self._outbox.close()
        response, self._response = self._response, None
        if response is not None:
            self._hub.lost += 1
            if response.on_gone is not None:
                try:
                    response.on_gone()
                except Exception:
                    _logger.exception("the application failed when %s was gone", self.peer)
