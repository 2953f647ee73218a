"""An upstream that answers whatever a test makes it answer, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mcp_actors.abc import Frame, FrameChannel
from mcp_transports.memory import MemoryTransport

__all__ = ["HostileUpstream"]


VERSION = "2025-11-25"


class HostileUpstream:
    """A server in memory that speaks the protocol up to its handshake, and after that as it is told.

    Args:
        nursery: Owns its tasks.
        answers: The results of methods, or functions that return them or send what they want. A method that is not
            there is answered with an error.
    """

    def __init__(self, nursery: trio.Nursery, **answers: Any) -> None:
        self.capabilities: dict[str, Any] = {"tools": {"listChanged": True}}
        self.tools: list[Any] = [tool("x")]
        self.answers: dict[str, Any] = {"initialize": self.initialize, "tools/list": self._list, "ping": {}}
        self.answers |= {name.replace("__", "/"): value for name, value in answers.items()}
        self.connects = 0
        self.open = 0
        self.received: list[dict[str, Any]] = []
        self.after_handshake: Callable[[FrameChannel], Awaitable[None]] | None = None
        self._nursery = nursery
        self._transport = MemoryTransport()

    async def begin(self) -> MemoryTransport:
        """Begins to serve, and returns the way to it."""
        await self._nursery.start(self._transport.serve, self._serve)
        return self._transport

    async def _serve(self, channel: FrameChannel, principal: Any = None) -> None:
        self.connects += 1
        self.open += 1
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    frame = await channel.receive()
                    message = json.loads(frame.data)
                    self.received.append(message)
                    nursery.start_soon(self._take, channel, message)
        except* (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.open -= 1

    async def _take(self, channel: FrameChannel, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method == "notifications/initialized" and self.after_handshake is not None:
            await self.after_handshake(channel)
        if method is None or "id" not in message:
            return
        answer = self.answers.get(method)
        if callable(answer):
            answer = await answer(channel, message)
            if answer is None:
                return
        refusal = {"error": {"code": -32601, "message": "no such method"}}
        body = refusal if answer is None else {"result": answer}
        await self.send(channel, {"id": message["id"], **body})

    async def send(self, channel: FrameChannel, message: dict[str, Any]) -> None:
        """Sends one message."""
        await channel.send(Frame(json.dumps({"jsonrpc": "2.0", **message}).encode()))

    async def initialize(self, channel: FrameChannel, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the result of a handshake."""
        return {
            "protocolVersion": VERSION,
            "capabilities": self.capabilities,
            "serverInfo": {"name": "hostile", "version": "1"},
        }

    async def _list(self, channel: FrameChannel, message: dict[str, Any]) -> dict[str, Any]:
        return {"tools": self.tools}


def tool(name: str, **members: Any) -> dict[str, Any]:
    """Returns a tool as a server lists it."""
    return {"name": name, "inputSchema": {"type": "object"}, **members}
