"""The stream of a session that a POST opens: what belongs to its requests, until the last word about them."""

from __future__ import annotations

import trio

from mcp_actors.abc import Frame
from mcp_transports.http.server.error_responses import FORGOTTEN, Exchange
from mcp_transports.http.server.exchange import status_of
from mcp_transports.http.server.streams import SessionStream, StreamOwner

__all__ = ["CallStream", "JsonCallStream"]


class CallStream(SessionStream):
    """What belongs to the requests of one POST, until the last word about them.

    The first frame decides: is it the last one too, the POST is answered with JSON; else it becomes an event stream.
    """

    __slots__ = ("_turn",)

    def __init__(self, session: StreamOwner, turn: Exchange) -> None:
        super().__init__(session)
        self._turn: Exchange | None = turn
        turn.response.on_gone = self._left
        session.streams.add(self)

    def __repr__(self) -> str:
        state = "waits" if self._turn is not None else "attached" if self.live is not None else "detached"
        return f"<CallStream {state}>"

    @property
    def attached(self) -> bool:
        return self._turn is not None or self.live is not None

    def settle(self) -> None:
        """Everything was cancelled: there is no answer, and none is waited for."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.answer(202)
        self._complete()

    def close_stream(self) -> None:
        turn = self._turn
        if turn is not None and self.session.settings.store is not None and self.session.engine.resumes:
            self._open(turn)
        super().close_stream()

    def close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.refuse(FORGOTTEN)
        super().close()

    def _left(self) -> None:
        self._turn = None
        self.session.touch()

    def _put(self, frame: Frame) -> None:
        turn = self._turn
        if turn is not None:
            if frame.last:
                self._turn = None
                turn.answer(status_of(frame, "legacy"), frame.data)
            else:
                self._open(turn, frame.data)
        elif frame.last:
            self._end(self._event(frame.data))
        elif frame.request is not None and self.live is None and self.name is None:
            raise trio.BrokenResourceError("the client has left and cannot come back to this stream")
        else:
            self._say(frame.data)
        if frame.last:
            self._complete()

    def _open(self, turn: Exchange, *messages: bytes) -> None:
        self._turn = None
        if self.session.settings.store is not None:
            self.name = self.session.new_stream_name()
        self._attach(turn, self._primer() + b"".join(map(self._event, messages)))

    def _complete(self) -> None:
        self.session.streams.discard(self)
        if self.name is not None and self.session.settings.store is not None:
            self.session.settings.store.end(self.session.id, self.name)
        self._end()
        self.session.touch()


class JsonCallStream(CallStream):
    """A `CallStream` that never becomes an event stream: all but the answer goes to the session's own stream."""

    __slots__ = ()

    def post(self, frame: Frame) -> None:
        if frame.last:
            super().post(frame)
        else:
            self.session.standalone.post(frame)

    def send_nowait(self, frame: Frame) -> bool:
        if frame.last:
            return super().send_nowait(frame)
        return self.session.standalone.send_nowait(frame)

    async def send(self, frame: Frame) -> None:
        if frame.last:
            await super().send(frame)
        else:
            await self.session.standalone.send(frame)

    def close_stream(self) -> None:
        """There is nothing to come back to."""
