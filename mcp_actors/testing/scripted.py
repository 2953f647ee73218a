"""A server and a client in memory, and a peer that does what a test tells it to, message by message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import ClientTransport, Frame, FrameChannel
from mcp_actors.client import Client
from mcp_actors.discovery import client_transport
from mcp_actors.server import Server

__all__ = ["RawServer", "ScriptedPeer", "connected_pair", "raw_client", "raw_server"]


@asynccontextmanager
async def connected_pair(server: Server, **client_options: Any) -> AsyncIterator[Client]:
    """A client of ``server`` in memory. Leaving the block ends both, without waiting for any clock."""
    async with Client(server, **client_options) as client:
        yield client


# ChannelHandler that a raw server lets wait until the test accepts them.
MAX_WAITING_PEERS = 64


class ScriptedPeer:
    """One end of a connection, driven by a test message by message: what a hostile or odd peer would do."""

    def __init__(self, channel: FrameChannel) -> None:
        self.channel = channel

    async def send(self, message: Any) -> None:
        """Sends a message: an object that is encoded, or ``bytes`` exactly as they are."""
        data = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":")).encode()
        await self.channel.send(Frame(data))

    async def receive(self) -> Any:
        """Waits for one message, decoded. Raises the channel's endings."""
        return json.loads((await self.channel.receive()).data)

    async def request(self, id: int | str, method: str, params: dict[str, Any] | None = None) -> Any:
        """Sends a request and returns the next message that carries its id."""
        await self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        while True:
            message = await self.receive()
            if message.get("id") == id and "method" not in message:
                return message

    async def initialize(self, version: str, capabilities: dict[str, Any] | None = None) -> Any:
        """Performs a legacy handshake as a client and returns the server's result."""
        answer = await self.request(
            "initialize",
            "initialize",
            {
                "protocolVersion": version,
                "capabilities": capabilities or {},
                "clientInfo": {"name": "scripted", "version": "0"},
            },
        )
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]


@asynccontextmanager
async def raw_client(server: Server) -> AsyncIterator[ScriptedPeer]:
    """A scripted client of ``server`` in memory."""
    transport: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with transport.connect() as channel:
            yield ScriptedPeer(channel)
        nursery.cancel_scope.cancel()


class RawServer:
    """What `raw_server` yields: connect a `Client` to ``transport``, then `accept` its other end."""

    def __init__(self, transport: Any, channels: trio.MemoryReceiveChannel[FrameChannel]) -> None:
        self.transport: ClientTransport = transport
        self._channels = channels

    async def accept(self) -> ScriptedPeer:
        """Waits for a connection; each one has a peer of its own, good until the block of `raw_server` ends."""
        return ScriptedPeer(await self._channels.receive())


@asynccontextmanager
async def raw_server() -> AsyncIterator[RawServer]:
    """A scripted server in memory, for tests of clients."""
    transport: Any = client_transport("memory:")
    accepted, channels = trio.open_memory_channel[FrameChannel](MAX_WAITING_PEERS)

    async def handler(channel: FrameChannel) -> None:
        accepted.send_nowait(channel)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, handler)
        yield RawServer(transport, channels)
        nursery.cancel_scope.cancel()
