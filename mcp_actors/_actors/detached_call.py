"""A call whose function goes on after its request was answered, or without one: it reaches its client by a voice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mcp_actors._actors.continuation import Continuation
from mcp_actors._actors.inbound_call import CallOwner, InboundCall
from mcp_actors._actors.responses import too_long_frame
from mcp_actors._actors.voice import Voice
from mcp_actors._eras.era import Invocation
from mcp_actors._wire.codec import decode_value
from mcp_actors.abc import Frame, HttpRequest

__all__ = ["DetachedCall"]


class DetachedCall(InboundCall):
    """A call that has no outlet, no place among the calls in flight, and no answer but what `outcome` returns.

    Args:
        invocation: The request; it is kept for as long as the function runs.
        owner: Whose rules for failures apply: the session of the request, or the server.
        http_request: The request over HTTP that began it, ``None`` with other bindings.
        longest: Bytes of the longest outcome.
        voice: Takes what the function tells and asks the client.
    """

    __slots__ = ("_voice",)

    def __init__(
        self,
        invocation: Invocation,
        owner: CallOwner,
        http_request: HttpRequest | None,
        longest: int,
        voice: Voice,
    ) -> None:
        super().__init__(invocation, owner, _NoOutlet(http_request, longest))
        self._voice = voice
        self.reports: Any = voice

    def __repr__(self) -> str:
        return f"<DetachedCall {self.invocation.method.name}>"

    @property
    def voice(self) -> Voice:
        return self._voice

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        await self._voice.notify(method, params)

    async def outcome(self, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Returns what the client of a plain call is sent: an object with either ``result`` or ``error``.

        What ``function`` raises is logged, masked and told as it is for any call.
        """
        self.continuation = Continuation(function)
        frame = await self._outcome()
        assert frame is not None
        if len(frame.data) > self.outlet.longest:
            frame = too_long_frame(self.id, len(frame.data), self.outlet.longest)
        answer = decode_value(frame.data)
        return {name: answer[name] for name in ("result", "error") if name in answer}


class _NoOutlet:
    """The outlet of a call that nobody waits for."""

    def __init__(self, http_request: HttpRequest | None, longest: int) -> None:
        self.http_request = http_request
        self.longest = longest

    def post(self, frame: Frame) -> None:
        """Does nothing."""

    def send_nowait(self, frame: Frame) -> bool:
        return True

    async def send(self, frame: Frame) -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing."""

    def close_stream(self) -> None:
        """Does nothing."""
