"""The requests of one connection that wait until those before them are answered."""

from __future__ import annotations

import trio

from mcp_transports.http.h1.held_bodies import HeldBodies
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import MalformedRequest, Request

__all__ = ["Pipeline"]


class Pipeline:
    """A queue of requests, with the bound up to which a connection reads ahead of its answers."""

    __slots__ = ("_limits", "_resumed", "has_refusal", "held", "read_ahead", "waiting")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._resumed: trio.Event | None = None
        self.waiting: list[Request | MalformedRequest] = []
        self.read_ahead = 0
        """Bytes read while an answer was outstanding."""
        self.held: HeldBodies | None = None
        """The account of the bodies that wait; made for the first one that comes in several reads."""
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
