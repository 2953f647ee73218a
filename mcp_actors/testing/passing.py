"""A channel that passes everything on to another one, for channels that watch or change what passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_actors.abc import Frame, FrameChannel, HttpRequest, RequestId

__all__ = ["PassingChannel"]


class PassingChannel(FrameChannel):
    """A channel whose methods are those of the inner channel."""

    def __init__(self, inner: FrameChannel) -> None:
        self._inner = inner

    @property
    def max_message_bytes(self) -> int | None:
        return self._inner.max_message_bytes

    @property
    def mirrors(self) -> bool:
        return self._inner.mirrors

    @property
    def sessions_only(self) -> bool:
        return self._inner.sessions_only

    @property
    def keeps_session(self) -> bool:
        return self._inner.keeps_session

    @property
    def needs_pings(self) -> bool:
        return self._inner.needs_pings

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def http_request(self) -> HttpRequest | None:
        return self._inner.http_request

    def settled(self, request: RequestId) -> None:
        self._inner.settled(request)

    def loss_report(self) -> Mapping[str, Any]:
        return self._inner.loss_report()

    async def send(self, value: Frame) -> None:
        await self._inner.send(value)

    async def send_many(self, frames: Sequence[Frame]) -> None:
        await self._inner.send_many(frames)

    def send_nowait(self, frame: Frame) -> None:
        self._inner.send_nowait(frame)

    def write_now(self, frame: Frame) -> bool:
        return self._inner.write_now(frame)

    async def receive(self) -> Frame:
        return await self._inner.receive()

    async def receive_many(self) -> list[Frame]:
        return await self._inner.receive_many()

    async def aclose(self) -> None:
        await self._inner.aclose()
