"""One POST that is one exchange: the modern era's only shape, and the legacy era's without sessions (protocol §6.3)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import trio

from mcp_actors.abc import Arrival, Frame, ServerHandler
from mcp_actors.errors import LocalProtocolError, Overloaded
from mcp_transports.http.server.error_responses import INTERNAL_ERROR, Exchange, Header
from mcp_transports.http.server.sse_response import OpenSseResponses, SseResponse
from mcp_transports.http.sse import encode_event

__all__ = ["ExchangeOutlet", "run_exchange", "status_of"]

log = logging.getLogger("mcp_transports.http")

_MODERN_STATUS = {None: 200, -32601: 404, Overloaded.CODE: 503}
_LEGACY_STATUS = {-32700: 400, -32600: 400}
_RETRY_LATER: tuple[Header, ...] = (("retry-after", "1"),)


def status_of(frame: Frame, era: Literal["legacy", "modern"]) -> int:
    """The status of an answer (protocol §6.3, §6.4): what the modern era could not serve as it stands tells so."""
    if era == "modern":
        return _MODERN_STATUS.get(frame.refusal, 400)
    return _LEGACY_STATUS.get(frame.refusal, 200) if frame.refusal is not None else 200


class ExchangeOutlet:
    """The `Outlet` of one exchange. Its first frame decides: the last one already is a JSON answer with its status,
    any other opens an event stream, whose status is 200 for good.
    """

    __slots__ = ("_cancel", "_era", "_live", "_streams", "_turn", "answered", "longest")

    def __init__(
        self, turn: Exchange, streams: OpenSseResponses, longest: int, era: Literal["legacy", "modern"]
    ) -> None:
        self.longest = longest
        self.answered = False
        self._turn = turn
        self._streams = streams
        self._live: SseResponse | None = None
        self._era = era
        self._cancel: Callable[[], None] | None = None

    def begin(self, handler: ServerHandler, arrival: Arrival, principal: str | None) -> None:
        """Runs a request; its client's leaving cancels it (protocol §6.3)."""
        try:
            self._cancel = handler.begin(arrival, self, principal)
        except Exception:
            log.exception("an exchange failed")
            self.fail()
            return
        if not self.answered and self._live is None:
            self._turn.response.on_gone = self._left

    def _over(self) -> None:
        self.answered = True
        # Call, outlet and response would otherwise keep each other alive until the garbage collector comes by.
        self._cancel = self._live = self._turn.response.on_gone = None

    def _left(self, stream: SseResponse | None = None) -> None:
        self.answered = True
        if self._cancel is not None:
            self._cancel()

    def __repr__(self) -> str:
        state = "answered" if self.answered else "no frame yet" if self._live is None else repr(self._live)
        return f"<ExchangeOutlet {state}>"

    def post(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise too_long(frame, self.longest)
        live = self._live
        if frame.last:
            self._over()
        if live is not None:
            event = encode_event(frame.data)
            if frame.last:
                live.end(event)
            else:
                live.write(event)
        elif frame.last:
            status = status_of(frame, self._era)
            self._turn.answer(status, frame.data, _RETRY_LATER if status == 503 else ())
        elif frame.request is not None:
            # Without a session there is no way back for the client's answer.
            raise trio.BrokenResourceError("a client cannot be asked without a session")
        else:
            self._live = SseResponse(self._turn, self._streams, self._left, encode_event(frame.data))

    def send_nowait(self, frame: Frame) -> bool:
        if self._live is not None and self._live.full:
            return False
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.send_nowait(frame):
            assert self._live is not None
            await self._live.drained()

    def settle(self) -> None:
        self.finish()

    def close_stream(self) -> None:
        """Nothing can be resumed here: the stream stays."""

    def finish(self) -> None:
        """There is nothing more to say: a message was accepted, or a request got no answer."""
        if self.answered:
            return
        live = self._live
        self._over()
        if live is not None:
            live.end()
        else:
            self._turn.answer(202)

    def fail(self) -> None:
        """Something broke on our side: its peer must not wait for the rest."""
        if self.answered:
            return
        live = self._live
        self._over()
        if live is not None:
            live.abort()
        else:
            self._turn.refuse(INTERNAL_ERROR)


async def run_exchange(
    handler: ServerHandler, arrival: Arrival, outlet: ExchangeOutlet, principal: str | None
) -> None:
    """Has something accepted that is owed no answer, in a task of its connection."""
    try:
        await handler.exchange(arrival, outlet, principal)
    except trio.BrokenResourceError:
        log.debug("a client left its exchange")
    except Exception:
        log.exception("an exchange failed")
        outlet.fail()
    else:
        outlet.finish()


def too_long(frame: Frame, longest: int) -> LocalProtocolError:
    """What the sender of such a frame is told; nothing was sent."""
    return LocalProtocolError(f"a message of {len(frame.data)} bytes is too long: the limit is {longest}")
