"""The kit over WebSocket, and whole clients and servers in both eras: cancelling, listening, coming back."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.errors import ConnectionLost
from mcp_actors.testing import check_transport
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport


@asynccontextmanager
async def maker() -> AsyncIterator[tuple[Any, Any]]:
    yield WebSocketServerTransport("ws://127.0.0.1:0/"), WebSocketClientTransport


async def reset(channel: Any) -> None:
    connected = channel._stream.socket
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    trio.lowlevel.notify_closing(connected)
    connected.close()


async def test_the_kit_over_websocket() -> None:
    report = await check_transport(maker, break_off=reset, senders_at_once=True, quiet=0.02)
    assert "senders_at_once" in report.passed


class Site:
    def __init__(self) -> None:
        self.server = server = Server("site")
        self.began = trio.Event()
        self.cancelled = trio.Event()
        self.runs = 0

        @server.tool
        async def hold() -> None:
            self.runs += 1
            self.began.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                self.cancelled.set()
                raise

        @server.prompt
        def greet() -> str:
            return "hello"

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_is_given_up_is_cancelled_over_there(era: str) -> None:
    site = Site()
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(site.server.serve, "ws://127.0.0.1:0/")
        async with Client(url, era=era) as client:
            async with trio.open_nursery() as calls:
                calls.start_soon(client.call_tool, "hold")
                await site.began.wait()
                calls.cancel_scope.cancel()
            with trio.fail_after(5):
                await site.cancelled.wait()
            assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_two_listens_on_one_connection_are_told_apart(era: str) -> None:
    site = Site()
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(site.server.serve, "ws://127.0.0.1:0/")
        async with (
            Client(url, era=era) as client,
            client.listen(tools=True) as tools,
            client.listen(prompts=True) as prompts,
        ):
            await client.list_tools()  # a legacy server has read by then that we are initialized
            site.server.add_tool(lambda: None, name="more")
            site.server.add_prompt(lambda: "text", name="talk")
            with trio.fail_after(5):
                assert (await anext(aiter(tools))).kind == "tools"
                assert (await anext(aiter(prompts))).kind == "prompts"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_comes_back_and_repeats_nothing(era: str) -> None:
    site = Site()
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(site.server.serve, "ws://127.0.0.1:0/")
        transport = WebSocketClientTransport(url)
        opened: list[Any] = []
        back = trio.Event()

        class Watched:
            @asynccontextmanager
            async def connect(self) -> AsyncIterator[Any]:
                async with transport.connect() as channel:
                    opened.append(channel)
                    if len(opened) == 2:
                        back.set()
                    yield channel

        async with Client(Watched(), era=era, restart=True) as client:
            async with trio.open_nursery() as calls:

                async def hold() -> None:
                    with pytest.raises(ConnectionLost):
                        await client.call_tool("hold")

                calls.start_soon(hold)
                await site.began.wait()
                await reset(opened[-1])
            with trio.fail_after(5):
                await back.wait()
            assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
            assert len(opened) == 2
            assert site.runs == 1
            with trio.fail_after(5):
                await site.cancelled.wait()
        nursery.cancel_scope.cancel()
