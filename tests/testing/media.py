"""Makers for `check_transport`: the media that tests check."""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.abc.framing import LineChannel
from mcp_actors.errors import ConnectFailed
from mcp_transports.memory import MemoryTransport
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream

# How many checks the kit has for both ends of a link in memory, and from end to end for each era.
LINKS, ENDS_TO_END = 25, 14
# For media that cost much: none of them knows an era, and others are checked in both.
ERAS = tuple(os.environ.get("MCP_KIT_ERAS", "modern").split(","))
RELAY = Path(__file__).parent / "relay.py"


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[Any, Any]]:
    transport = MemoryTransport()
    yield transport, lambda where: transport


class PipedChannel(LineChannel):
    """What both ends of stdio are: lines over the stdio binding's own streams on pipes."""

    def __init__(self, descriptor_in: int, descriptor_out: int) -> None:
        self.out = DescriptorSendStream(descriptor_out)
        super().__init__(DescriptorReceiveStream(descriptor_in), self.out, peer="pipes")


class PipedTransport:
    """Each connection is a pair of pipes inside this process."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._handler: Any = None

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                self._handler = handler
                task_status.started("pipes:")
                await trio.sleep_forever()
        finally:
            self._nursery = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        if self._nursery is None:
            raise ConnectFailed("nobody serves here")
        (there_in, there_out), (back_in, back_out) = os.pipe(), os.pipe()
        self._nursery.start_soon(self._handle, PipedChannel(there_in, back_out))
        async with PipedChannel(back_in, there_out) as ours:
            yield ours

    async def _handle(self, channel: FrameChannel) -> None:
        async with channel:
            await self._handler(channel)


@asynccontextmanager
async def pipes() -> AsyncIterator[tuple[Any, Any]]:
    transport = PipedTransport()
    yield transport, lambda where: transport


async def close_one_way(channel: FrameChannel) -> None:
    assert isinstance(channel, PipedChannel)
    await channel.out.aclose()


class SocketServer:
    """Accepts the far sides of `relay.py`: what is received and sent here is what a stdio server does there."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(self._path)
        listening.listen(64)

        async def handle(stream: trio.SocketStream) -> None:
            async with LineChannel(stream, stream) as channel:
                await handler(channel)

        task_status.started(self._path)
        await trio.serve_listeners(handle, [trio.SocketListener(listening)])


@asynccontextmanager
async def stdio() -> AsyncIterator[tuple[Any, Any]]:
    """Real child processes, in which the stdio server relays to and from a handler in this process."""
    with tempfile.TemporaryDirectory() as folder:
        # On a busy machine a child may need longer to start than a server usually has to exit.
        command = [sys.executable, str(RELAY)]
        yield SocketServer(f"{folder}/far"), lambda where: StdioClientTransport([*command, where], grace=20)


class TcpTransport:
    """Lines over TCP: a medium that can close one way, and be reset."""

    def __init__(self, where: int = 0) -> None:
        self._port = where

    async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async def handle(stream: trio.SocketStream) -> None:
            async with TcpChannel(stream) as channel:
                await handler(channel)

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, handle, 0)
            task_status.started(listeners[0].socket.getsockname()[1])

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with TcpChannel(await trio.open_tcp_stream("localhost", self._port)) as channel:
            yield channel


class TcpChannel(LineChannel):
    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream, stream, peer="tcp")
        self.stream = stream


@asynccontextmanager
async def tcp() -> AsyncIterator[tuple[Any, Any]]:
    yield TcpTransport(), TcpTransport


async def send_eof(channel: FrameChannel) -> None:
    assert isinstance(channel, TcpChannel)
    await channel.stream.send_eof()


async def reset(channel: FrameChannel) -> None:
    """What is sent now is a reset, not an end."""
    assert isinstance(channel, TcpChannel)
    channel.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await channel.aclose()
