"""A server and a client in memory, and a peer that a test drives message by message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors.abc import ClientTransport, Frame, FrameChannel
from mcp_actors.abc.discovery import client_transport
from mcp_actors.client import Client
from mcp_actors.server import Server

__all__ = ["RawServer", "ScriptedPeer", "connected_pair", "raw_client", "raw_server"]


@asynccontextmanager
async def connected_pair(server: Server, **client_options: Any) -> AsyncIterator[Client]:
    """Connects a client to ``server`` in memory. Leaving the block ends both without a delay.

    Args:
        server: it is started with the block and ends with it.
        client_options: those of `~mcp_actors.Client`.

    Raises:
        ConnectFailed: the handshake failed, as for `~mcp_actors.Client`, which may raise its other errors too.
    """
    async with Client(server, **client_options) as client:
        yield client


# Connections of a raw server that wait until the test accepts them.
MAX_WAITING_PEERS = 64


class ScriptedPeer:
    """One end of a connection that a test drives message by message, as a hostile or odd peer would.

    All methods raise the endings of the channel: see `mcp_actors.abc`.
    """

    def __init__(self, channel: FrameChannel) -> None:
        self.channel = channel

    async def send(self, message: Any) -> None:
        """Sends a message: an object that is encoded as JSON, or ``bytes`` exactly as they are."""
        data = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":")).encode()
        await self.channel.send(Frame(data))

    async def receive(self) -> Any:
        """Waits for one message and decodes it. Raises `ValueError` if it is not JSON."""
        return json.loads((await self.channel.receive()).data)

    async def request(self, id: int | str, method: str, params: dict[str, Any] | None = None) -> Any:
        """Sends a request and returns the next message that carries its id."""
        await self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        while True:
            message = await self.receive()
            if message.get("id") == id and "method" not in message:
                return message

    async def initialize(self, version: str, capabilities: dict[str, Any] | None = None) -> Any:
        """Performs the ``initialize`` handshake as a client and returns the server's result.

        Args:
            version: the protocol version to ask for.
            capabilities: those of the client; none by default.

        Raises:
            KeyError: the server answered with an error.
        """
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
    """Serves ``server`` in memory and yields a client that the test drives; leaving the block ends both."""
    transport: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with transport.connect() as channel:
            yield ScriptedPeer(channel)
        nursery.cancel_scope.cancel()


class RawServer:
    """A server that the test drives, made by `raw_server`: connect a `Client` to ``transport`` and `accept` it."""

    def __init__(self, transport: Any, channels: trio.MemoryReceiveChannel[FrameChannel]) -> None:
        self.transport: ClientTransport = transport
        self._channels = channels

    async def accept(self) -> ScriptedPeer:
        """Waits for a connection and returns its server's end, which is open until the block of `raw_server` ends."""
        return ScriptedPeer(await self._channels.receive())


@asynccontextmanager
async def raw_server() -> AsyncIterator[RawServer]:
    """Yields a server in memory that the test drives, for tests of clients. Up to 64 connections wait for `accept`."""
    transport: Any = client_transport("memory:")
    accepted, channels = trio.open_memory_channel[FrameChannel](MAX_WAITING_PEERS)

    async def handler(channel: FrameChannel) -> None:
        accepted.send_nowait(channel)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, handler)
        yield RawServer(transport, channels)
        nursery.cancel_scope.cancel()
