"""A JSON-RPC batch: the answers to its requests go back together, as one array, in any order."""

from __future__ import annotations

from mcp_actors._actors.last_report import SupportsWaitUntilRead
from mcp_actors._actors.responses import too_long_frame
from mcp_actors.abc import Frame, HttpRequest, Outlet

__all__ = ["Batch"]

# Bytes that are kept free for each answer to come: the error that says that an answer is too long, without its id.
_SHORTEST_ANSWER = 256


class Batch:
    """An outlet that holds the answers back until every request of the batch has ended, with or without one.

    An answer with which the array would be too long to be sent is replaced by an error that says so.
    """

    def __init__(self, outlet: Outlet, expected: int) -> None:
        self._outlet = outlet
        self.longest = outlet.longest
        self.http_request: HttpRequest | None = getattr(outlet, "http_request", None)
        self._expected = expected
        self._answers: list[bytes] = []
        self._size = len(b"[]")

    def post(self, frame: Frame) -> None:
        if not frame.last:
            self._outlet.post(frame)
        elif (whole := self._collect(frame)) is not None:
            self._outlet.post(whole)

    async def send(self, frame: Frame) -> None:
        if not frame.last:
            await self._outlet.send(frame)
        elif (whole := self._collect(frame)) is not None:
            await self._outlet.send(whole)

    def send_nowait(self, frame: Frame) -> bool:
        if not frame.last:
            return self._outlet.send_nowait(frame)
        self.post(frame)
        return True

    async def wait_until_read(self) -> bool:
        """See `SupportsWaitUntilRead`."""
        return not isinstance(self._outlet, SupportsWaitUntilRead) or await self._outlet.wait_until_read()

    def settle(self) -> None:
        """One request of the batch ended without an answer: it was cancelled."""
        if (whole := self._collect(None)) is not None:
            self._outlet.post(whole)
        elif not self._expected:
            self._outlet.settle()

    def close_stream(self) -> None:
        self._outlet.close_stream()

    def _collect(self, answer: Frame | None) -> Frame | None:
        self._expected -= 1
        if answer is not None:
            room = self.longest - self._size - self._expected * _SHORTEST_ANSWER
            if len(answer.data) > room:
                answer = too_long_frame(answer.about, len(answer.data), max(room, 0))
            self._answers.append(answer.data)
            self._size += len(answer.data) + len(b",")
        if self._expected or not self._answers:
            return None
        return Frame(b"[" + b",".join(self._answers) + b"]", last=True)
