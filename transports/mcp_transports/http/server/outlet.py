"""Outlets that send the engine's frames by HTTP: their common base class, and the outlet of a stateless POST."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.h1.request import Request
from mcp_transports.http.server.authentication import HttpExchange
from mcp_transports.http.server.responses import JSON, LEGACY_STATUSES, StatusTable
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import COMMENT, encode_event

__all__ = ["ResponseOutlet", "StatelessOutlet"]


class ResponseOutlet(ABC):
    """An `mcp_actors.abc.Outlet` whose frames go out as events of a response while it has one.

    ``longest`` is the number of bytes that a frame may have, ``sse`` the response, or ``None`` before it begins.
    """

    __slots__ = ("longest", "sse")

    longest: int
    sse: SseResponse | None

    @abstractmethod
    def _accept(self, frame: Frame) -> None:
        """Sends or keeps a frame that is not too long, without waiting.

        Raises:
            trio.BrokenResourceError: The client cannot be reached any more.
        """

    def post(self, frame: Frame) -> None:
        """See `mcp_actors.abc.Outlet.post`.

        Raises:
            LocalProtocolError: The frame is longer than ``longest`` bytes; nothing was sent.
            trio.BrokenResourceError: The client cannot be reached any more.
        """
        if len(frame.data) > self.longest:
            raise LocalProtocolError(
                f"a message of {len(frame.data)} bytes is too long: the limit is {self.longest}"
            )
        self._accept(frame)

    def send_nowait(self, frame: Frame) -> bool:
        """See `mcp_actors.abc.Outlet.send_nowait`; raises what `post` raises."""
        if self.sse is not None and self.sse.full:
            return False
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        """See `mcp_actors.abc.Outlet.send`; raises what `post` raises. Cancelled, it has sent nothing."""
        while not self.send_nowait(frame):
            await self._drained()

    async def _drained(self) -> None:
        assert self.sse is not None
        await self.sse.drained()


class StatelessOutlet(ResponseOutlet):
    """The outlet of a POST outside of sessions: any of the modern era, and of the legacy era where sessions are off.

    The first frame decides how the POST is answered (MCP 2026-07-28, Streamable HTTP, Sending Messages). If it is the
    last one already, the answer is JSON with a status of ``statuses``; otherwise it is an event stream with status 200.
    A request that stays unanswered for too long gets its event stream before the first frame.

    Args:
        exchange: The POST.
        open_responses: The registry of open streams.
        longest: Bytes of the longest frame.
        statuses: The statuses of answers that are not streams.
        streams: Whether an event stream is accepted; if not, all frames but the last one are dropped.
    """

    __slots__ = ("_cancel", "_exchange", "_open_responses", "_statuses", "_streams", "answered", "quiet")

    def __init__(
        self,
        exchange: HttpExchange,
        open_responses: OpenSseResponses,
        longest: int,
        statuses: StatusTable,
        *,
        streams: bool,
    ) -> None:
        self.longest = longest
        self.sse = None
        self.answered = self.quiet = False
        self._streams = streams
        self._exchange = exchange
        self._open_responses = open_responses
        self._statuses = statuses
        self._cancel: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "answered" if self.answered else "no frame yet" if self.sse is None else repr(self.sse)
        return f"<StatelessOutlet {state}>"

    @property
    def http_request(self) -> Request:
        """The POST."""
        return self._exchange.request

    def begin(self, handler: ServerHandler, arrival: Arrival, principal: Principal | None) -> None:
        """Serves a request. A client that leaves cancels it (MCP 2026-07-28, Streamable HTTP, Cancellation).

        A failure of the engine costs this request alone: 500, or its stream is cut off.
        """
        try:
            self._cancel = handler.begin(arrival, self, principal, self._exchange.request.peer)
        except BaseException:
            with self._exchange.containment("a request could not be begun"):
                self._abandon()
                raise
            return
        if not self.answered and self.sse is None:
            self._exchange.response.on_gone = self._left
            if self._streams:
                self._open_responses.unanswered.add(self)

    async def accept(self, handler: ServerHandler, arrival: Arrival, principal: Principal | None) -> None:
        """Gives the engine messages that expect no answer, and answers 202."""
        await handler.exchange(arrival, self, principal, self._exchange.request.peer)
        self.settle()

    def _accept(self, frame: Frame) -> None:
        sse = self.sse
        if sse is not None:
            event = encode_event(frame.data)
            if frame.last:
                self._forget()
                sse.end(event)
            else:
                sse.write(event)
        elif frame.last:
            self._forget()
            exchange = self._exchange
            status = self._statuses[frame.refusal]
            headers = exchange.headers
            if frame.refusal is not None:
                repeats = self._statuses is LEGACY_STATUSES
                headers = exchange.refusal_headers(status, frame, repeats_granted=repeats)
            # This is `HttpExchange.answer` without a call in between, because nearly every answer is sent here.
            exchange.response.answer(status, frame.data, content_type=JSON, headers=headers)
        elif frame.request is not None:
            raise trio.BrokenResourceError("a client cannot be asked without a session")
        elif self._streams:
            self._begin_stream(encode_event(frame.data))

    def open_stream(self) -> None:
        """Begins the response to a request that was silent for too long."""
        self._begin_stream(COMMENT)

    def _begin_stream(self, first: bytes) -> None:
        self._open_responses.unanswered.discard(self)
        self.sse = SseResponse(self._exchange, self._open_responses, self._left, first)

    def settle(self) -> None:
        """Ends the response, because no frame follows: with 202 if no frame was sent at all."""
        if self.answered:
            return
        sse = self.sse
        self._forget()
        if sse is not None:
            sse.end()
        else:
            self._exchange.answer(202)

    def close_stream(self) -> None:
        """Does nothing: without a session no stream can be resumed."""

    def _forget(self) -> None:
        self.answered = True
        self._open_responses.unanswered.discard(self)
        # Call, outlet and response would otherwise keep each other alive until the garbage collector runs.
        self._cancel = self.sse = self._exchange.response.on_gone = None

    def _abandon(self) -> None:
        sse = self.sse
        self._forget()
        if sse is not None:
            sse.abort()

    def _left(self, sse: SseResponse | None = None) -> None:
        cancel = self._cancel
        self._forget()
        if cancel is not None:
            cancel()
