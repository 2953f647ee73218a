"""The outlet of the request that begins a session."""

from __future__ import annotations

import trio

from mcp_actors.abc import Frame

__all__ = ["InitializeOutlet"]


class InitializeOutlet:
    """The outlet of an ``initialize``: holds its answer, which is sent with the new session's id or without one."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.answer: Frame | None = None
        self.answered = trio.Event()

    def post(self, frame: Frame) -> None:
        if frame.last:
            self.answer = frame
            self.answered.set()

    def send_nowait(self, frame: Frame) -> bool:
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.post(frame)

    def settle(self) -> None:
        """Takes note that there is no answer, because the call was cancelled."""
        self.answered.set()

    def close_stream(self) -> None:
        """Does nothing, because there is no stream that could be resumed."""
