"""A server to have on sockets, and a peer that writes lines by hand: what a `Client` would never do, this one does."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Limits, Server
from tests.messages import modern_call

PATIENCE = 60  # seconds: nothing here takes a tenth of it


def call(id: int, tool: str, **arguments: Any) -> bytes:
    """A request that needs no session, as a line."""
    return json.dumps(modern_call(id, tool, **arguments)).encode() + b"\n"


class Served:
    """A server, and what its tool ``hold`` waits for."""

    def __init__(self, **limits: float) -> None:
        self.server = server = Server("lines", limits=Limits(**limits))  # type: ignore[arg-type]
        self.holding = 0
        self.cancelled = 0
        self.go = trio.Event()

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def repeat(text: str, times: int) -> str:
            return text * times

        @server.tool
        async def hold() -> str:
            self.holding += 1
            try:
                await self.go.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            return "held"

    @asynccontextmanager
    async def at(self, transport: Any) -> AsyncIterator[str]:
        """Serves for the length of the block, and waits that long for the end of what was stopped in it."""
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as service:
                [place] = await service.start(self.server.serve, transport)
                yield place
                service.cancel_scope.cancel(reason="the test is over")


class LinePeer:
    """The other end, by hand."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._rest = b""

    @classmethod
    async def to(cls, place: str) -> LinePeer:
        """Connects to a URL as a transport reports it."""
        if place.startswith("unix:"):
            return cls(await trio.open_unix_socket(place.removeprefix("unix://")))
        host, _, port = place.removeprefix("tcp://").rpartition(":")
        return cls(await trio.open_tcp_stream(host.strip("[]"), int(port)))

    async def answer(self) -> dict[str, Any]:
        """The next line; raises `trio.EndOfChannel` when there is none."""
        while b"\n" not in self._rest:
            data = await self.stream.receive_some()
            if not data:
                raise trio.EndOfChannel
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def answers(self) -> list[dict[str, Any]]:
        """All that comes until the end."""
        found = []
        while True:
            try:
                found.append(await self.answer())
            except trio.EndOfChannel:
                return found

    async def add(self, a: int, b: int) -> int:
        """One call of the tool."""
        await self.stream.send_all(call(1, "add", a=a, b=b))
        total: int = (await self.answer())["result"]["structuredContent"]
        return total


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what other tasks bring about."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.001)


def open_descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


def reset(connected: Any) -> None:
    """Closes a socket so that its peer gets a reset."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    trio.lowlevel.notify_closing(connected)
    connected.close()
