"""What crashes in or around one WebSocket costs that WebSocket; peers that leave are not worth a line."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectionLost
from mcp_actors.testing import check_transport
from mcp_transports.websocket.channel import FrameWriter, WebSocketChannel
from mcp_transports.websocket.client import WebSocketClientTransport
from mcp_transports.websocket.server import WebSocketServerTransport
from tests.transports.crashes import CRASHES, CrashingOnce, captured_logs, loud
from tests.transports.lines import PATIENCE, reset, until

from .raw import PING, TEXT, RawPeer, frame, path_of, raw_peer

ENDINGS = trio.EndOfChannel, trio.BrokenResourceError
EACH_CRASH = pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
# What a function that never waits can raise.
AT_ONCE = {name: crash for name, crash in CRASHES.items() if name != "a stray Cancelled"}
EACH_CRASH_AT_ONCE = pytest.mark.parametrize("crash", AT_ONCE.values(), ids=AT_ONCE.keys())
Crash = Callable[[], Awaitable[None]]


def crash_now(crash: Crash) -> None:
    """Has ``crash`` raise in a function that never waits."""
    try:
        crash().__await__().send(None)  # type: ignore[attr-defined]
    except StopIteration:
        pass


async def speaks(url: str) -> None:
    async with WebSocketClientTransport(url).connect() as channel:
        await channel.send(Frame(b"1"))
        assert (await channel.receive()).data == b"1"


@EACH_CRASH
async def test_a_handler_that_crashes_costs_its_own_connection(crash: Crash) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(crash))
            async with WebSocketClientTransport(url).connect() as sibling:
                async with WebSocketClientTransport(url).connect() as victim:
                    await victim.send(Frame(b'"crash"'))
                    with pytest.raises(ENDINGS):
                        await victim.receive()
                await sibling.send(Frame(b"{}"))
                assert (await sibling.receive()).data == b"{}"
            await speaks(url)
            await until(lambda: transport.statistics().connections == 0)
            service.cancel_scope.cancel()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["connection failed"]


@EACH_CRASH_AT_ONCE
async def test_a_look_that_crashes_costs_one_connection_and_the_ticker_goes_on(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    transport = WebSocketServerTransport("ws://127.0.0.1:0/", ping_interval=0.1)
    expire = WebSocketChannel.expire

    def crashing(channel: WebSocketChannel, *args: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            crash_now(crash)
        expire(channel, *args)  # type: ignore[arg-type]

    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(crash))
            async with raw_peer(url) as victim:
                monkeypatch.setattr(WebSocketChannel, "expire", crashing)
                assert await victim.ended()
            # The ticker still asks after those that are silent.
            async with raw_peer(url) as late:
                assert await late.frame() == (PING, (1).to_bytes(8))
            service.cancel_scope.cancel()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["ticker failed"]


@EACH_CRASH
async def test_a_writer_that_crashes_costs_its_own_connection(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, crashes = FrameWriter.flush, [crash]

    async def crashing(writer: FrameWriter) -> None:
        if crashes:
            await crashes.pop()()
        await flush(writer)

    monkeypatch.setattr(FrameWriter, "flush", crashing)
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(crash))
            async with raw_peer(url) as sibling:
                async with raw_peer(url) as victim:
                    await victim.send(frame(PING, b"?"))
                    assert await victim.ended()
                await sibling.send(frame(TEXT, b"{}"))
                assert await sibling.frame() == (TEXT, b"{}")
            service.cancel_scope.cancel()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["websocket control failed"]


@EACH_CRASH_AT_ONCE
async def test_a_clients_ticker_that_crashes_breaks_its_channel(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with captured_logs(), trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(crash))
            monkeypatch.setattr(WebSocketChannel, "expire", lambda *args: crash_now(crash))
            async with WebSocketClientTransport(url, ping_interval=0.1).connect() as channel:
                with pytest.raises(trio.BrokenResourceError, match="one of its tasks failed"):
                    await channel.receive()
            service.cancel_scope.cancel()


async def leave(url: str, after: str) -> None:
    """Begins to open a WebSocket and resets the connection."""
    host, _, port = url.split("/")[2].partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer = RawPeer(stream)
    if after == "half a head":
        await peer.send(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n")
    elif after != "nothing":
        await peer.upgrade(path_of(url))
        if after == "the answer":
            await peer.head()
    await stream.aclose()


@pytest.mark.parametrize("after", ["nothing", "half a head", "a request", "the answer"])
async def test_two_hundred_openings_that_are_reset_are_not_worth_a_line(
    after: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = WebSocketServerTransport("ws://127.0.0.1:0/")
    with captured_logs() as logs, trio.fail_after(PATIENCE):
        async with trio.open_nursery() as service:
            url = await service.start(transport.serve, CrashingOnce(CRASHES["an exception"]))
            async with trio.open_nursery() as peers:
                for _ in range(200):
                    peers.start_soon(leave, url, after)
            await speaks(url)
            await until(lambda: transport.statistics().connections == 0)
            service.cancel_scope.cancel()
    assert loud(logs) == []
    assert caplog.records == []


# -- The kit over WebSocket, and whole clients and servers in both eras: cancelling, listening, coming back ---


@asynccontextmanager
async def maker() -> AsyncIterator[tuple[Any, Any]]:
    yield WebSocketServerTransport("ws://127.0.0.1:0/"), WebSocketClientTransport


async def break_off(channel: Any) -> None:
    reset(channel._stream.socket)


@pytest.mark.slow
async def test_the_kit_over_websocket() -> None:
    report = await check_transport(
        maker, break_off=break_off, senders_at_once=True, quiet=0.02, patience=60, timeout=240
    )
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
            with trio.fail_after(60):
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
            with trio.fail_after(60):
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
                await break_off(opened[-1])
            with trio.fail_after(60):
                await back.wait()
            assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
            assert len(opened) == 2
            assert site.runs == 1
            with trio.fail_after(60):
                await site.cancelled.wait()
        nursery.cancel_scope.cancel()
