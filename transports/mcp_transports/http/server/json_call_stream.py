"""The stream of a POST whose answer is JSON in any case."""

from __future__ import annotations

from mcp_actors.abc import Frame
from mcp_transports.http.server.session_streams import CallStream

__all__ = ["JsonCallStream"]


class JsonCallStream(CallStream):
    """A `CallStream` that is always answered with JSON. All other messages go to the standalone stream."""

    __slots__ = ()

    def _await_silence(self) -> None:
        """Does nothing, because an answer that is JSON cannot begin before it is known."""

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
        """Does nothing, because there is no stream that could be resumed."""
