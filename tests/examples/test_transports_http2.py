"""HTTP/2 over pipes: what a client and a server see of each other, and what a peer that misbehaves gets."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from mcp_actors import Client, ConnectFailed, ConnectionLost, Context, Overloaded, Server, types
from mcp_actors.abc import Frame, FrameChannel, NoAnswer, ServerHandler
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError
from mcp_actors.examples.transports import http2
from mcp_actors.examples.transports.broker import BrokerClient, BrokerWorker, open_broker
from mcp_actors.examples.transports.http2 import Http2StdioClient, client_channel, serve_streams
from mcp_actors.testing import check_transport
from tests.messages import MODERN, modern_meta

META = modern_meta()


class Pipes:
    """Both transports at once: what `serve` was given serves every connection that is opened here."""

    def __init__(self) -> None:
        self.handler: ServerHandler | None = None
        self.tasks: trio.Nursery | None = None

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as self.tasks:
            self.handler = handler
            task_status.started("pipes")
            await handler.stopping.wait()

    def open(self) -> tuple[trio.testing.MemoryReceiveStream, trio.testing.MemorySendStream]:
        assert self.handler is not None
        assert self.tasks is not None
        there, there_end = trio.testing.memory_stream_one_way_pair()
        back, back_end = trio.testing.memory_stream_one_way_pair()
        self.tasks.start_soon(serve_streams, self.handler, there_end, back)
        return back_end, there

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with client_channel(*self.open()) as channel:
            yield channel


@attrs.define
class Kitchen:
    """A server, and what it has seen."""

    server: Server
    pipes: Pipes = attrs.Factory(Pipes)
    started: int = 0
    cancelled: int = 0
    ended: int = 0
    sent: int = 0
    changed: trio.lowlevel.ParkingLot = attrs.Factory(trio.lowlevel.ParkingLot)

    async def until(self, **counts: int) -> None:
        with trio.fail_after(20):
            while any(getattr(self, name) < count for name, count in counts.items()):
                await self.changed.park()

    def note(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.changed.unpark_all()


@pytest.fixture
async def kitchen(nursery: trio.Nursery) -> Kitchen:
    server = Server("kitchen")
    kitchen = Kitchen(server)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def wait() -> None:
        kitchen.note("started")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            kitchen.note("cancelled")
            raise
        finally:
            kitchen.note("ended")

    @server.tool
    async def pour(amount: int, ctx: Context) -> str:
        for n in range(amount):
            await ctx.progress(n + 1, amount, "x" * 1000)
            kitchen.note("sent")
        return "poured"

    @server.tool
    def large(size: int) -> str:
        return "x" * size

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return (answer.content or {}).get("name", "nobody")

    await nursery.start(server.serve, kitchen.pipes)
    return kitchen


# -- a client of ours -------------------------------------------------------------------------------------------------


async def test_calls_answers_progress_and_questions(kitchen: Kitchen) -> None:
    async def name(params: Any) -> types.ElicitResult:
        return types.ElicitResult("accept", {"name": "Ada"})

    async with Client(kitchen.pipes, elicitation=name) as client:
        assert client.era == "modern"
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        assert (await client.call_tool("ask")).text == "Ada"
        seen: list[float] = []
        await client.call_tool("pour", {"amount": 500}, on_progress=lambda p: seen.append(p.progress))
        assert seen == list(range(1, 501))


async def test_more_calls_than_streams_each_get_their_answer(kitchen: Kitchen) -> None:
    answers: dict[int, str] = {}
    async with Client(kitchen.pipes) as client:

        async def call(n: int) -> None:
            answers[n] = (await client.call_tool("add", {"a": n, "b": n})).text

        async with trio.open_nursery() as calls:
            for n in range(3 * http2.MAX_STREAMS):
                calls.start_soon(call, n)
    assert answers == {n: str(2 * n) for n in range(3 * http2.MAX_STREAMS)}


async def test_a_cancelled_call_is_cancelled_there_and_no_other(kitchen: Kitchen) -> None:
    async with Client(kitchen.pipes) as client, trio.open_nursery() as calls:
        calls.start_soon(client.call_tool, "wait")
        await kitchen.until(started=1)
        with trio.CancelScope() as scope:
            calls.start_soon(client.call_tool, "wait")
            async with trio.open_nursery() as inner:
                inner.start_soon(client.call_tool, "wait")
                await kitchen.until(started=3)
                scope.cancel()
        await kitchen.until(ended=1)
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"
        assert kitchen.cancelled == 1
        calls.cancel_scope.cancel()


async def test_changes_are_heard(kitchen: Kitchen) -> None:
    async with Client(kitchen.pipes) as client, client.listen(tools=True) as heard:
        kitchen.server.remove_tool("large")
        assert (await heard.__anext__()).kind == "tools"


async def test_a_large_answer_passes_through_small_windows(kitchen: Kitchen) -> None:
    async with Client(kitchen.pipes) as client:
        assert len((await client.call_tool("large", {"size": 2_000_000})).text) == 2_000_000


async def test_messages_and_headers_over_the_limit_fail_alone(kitchen: Kitchen) -> None:
    async with Client(kitchen.pipes) as client:
        with pytest.raises(LocalProtocolError, match="a message of"):
            await client.call_tool("add", {"a": "x" * http2.MAX_MESSAGE, "b": 1})
        with pytest.raises(LocalProtocolError, match="headers"):
            await client.call_tool("y" * 70_000)
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"


async def test_a_stop_lets_calls_end_and_grants_no_more(kitchen: Kitchen) -> None:
    async with Client(kitchen.pipes) as client, trio.open_nursery() as calls:
        answers: list[str] = []

        async def pour() -> None:
            answers.append((await client.call_tool("pour", {"amount": 50})).text)

        calls.start_soon(pour)
        await kitchen.until(sent=1)
        kitchen.server.stop()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ConnectionLost):
            await client.call_tool("add", {"a": 1, "b": 1})
    assert answers == ["poured"]


# -- a peer that is not ours ------------------------------------------------------------------------------------------


class RawPeer:
    """`h2` by hand, over one of two streams."""

    def __init__(self, reading: Any, writing: Any, *, client: bool = True) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.reading, self.writing = reading, writing
        self.seen: list[Any] = []

    async def flush(self, more: bytes = b"") -> None:
        await self.writing.send_all(self.h2.data_to_send() + more)

    async def until(self, kind: type[Any]) -> Any:
        with trio.fail_after(20):
            while True:
                for event in self.seen:
                    if isinstance(event, kind):
                        self.seen.remove(event)
                        return event
                with suppress(trio.BrokenResourceError):
                    await self.writing.send_all(self.h2.data_to_send())
                data = await self.reading.receive_some()
                if not data:
                    raise trio.EndOfChannel
                self.seen += self.h2.receive_data(data)

    def ask(self, tool: str, body: bytes | None = None, **arguments: Any) -> int:
        params = {"_meta": {**META, "progressToken": 1}, "name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = [
            *[(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/mcp")],
            *[("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", tool)],
        ]
        id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(id, headers)
        self.h2.send_data(id, json.dumps(message).encode() if body is None else body, end_stream=True)
        return id

    async def answer(self) -> Any:
        return json.loads((await self.until(events.DataReceived)).data)


@pytest.fixture
def raw(kitchen: Kitchen) -> RawPeer:
    return RawPeer(*kitchen.pipes.open())


async def test_a_flood_of_resets_is_bounded(kitchen: Kitchen, raw: RawPeer) -> None:
    await raw.until(events.RemoteSettingsChanged)
    for _ in range(1000):
        raw.h2.reset_stream(raw.ask("wait"), ErrorCodes.CANCEL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raw.flush)
        assert kitchen.started - kitchen.ended <= 2 * http2.MAX_STREAMS
    raw.ask("add", a=2, b=3)
    await raw.flush()
    assert (await raw.answer())["result"]["structuredContent"] == 5
    assert kitchen.started == kitchen.ended


async def test_nobody_is_run_beyond_the_streams(kitchen: Kitchen, raw: RawPeer) -> None:
    for _ in range(http2.MAX_STREAMS + 1):
        raw.ask("wait")
    await raw.flush()
    ended = await raw.until(events.ConnectionTerminated)
    assert ended.error_code != ErrorCodes.NO_ERROR
    assert kitchen.started <= http2.MAX_STREAMS
    assert kitchen.ended == kitchen.started


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"\x00\x40\x01\x00\x00\x00\x00\x00\x01" + bytes(16385), id="a frame over the limit"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00\x00\x00\x00", id="data on no stream"),
    ],
)
async def test_what_breaks_http2_ends_the_connection(kitchen: Kitchen, raw: RawPeer, junk: bytes) -> None:
    raw.ask("wait")
    await raw.flush()
    await kitchen.until(started=1)
    await raw.flush(junk)
    ended = await raw.until(events.ConnectionTerminated)
    assert ended.error_code != ErrorCodes.NO_ERROR
    await kitchen.until(cancelled=1)


async def test_what_is_no_http2_at_all_ends_the_connection(kitchen: Kitchen, raw: RawPeer) -> None:
    await raw.writing.send_all(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    with pytest.raises(trio.EndOfChannel):
        await raw.until(events.ConnectionTerminated)


async def test_a_list_of_headers_over_the_limit_ends_the_connection(kitchen: Kitchen, raw: RawPeer) -> None:
    await raw.until(events.RemoteSettingsChanged)
    headers = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/")]
    raw.h2.send_headers(1, headers + [(f"x-{n}", "y" * 1000) for n in range(80)])
    await raw.flush()
    ended = await raw.until(events.ConnectionTerminated)
    assert ended.error_code == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_body_over_the_limit_is_broken_off_alone(
    kitchen: Kitchen, raw: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_MESSAGE", 1000)
    raw.ask("add", b"x" * 2000)
    await raw.flush()
    assert (await raw.until(events.StreamReset)).error_code == ErrorCodes.ENHANCE_YOUR_CALM
    raw.ask("add", a=2, b=3)
    await raw.flush()
    assert (await raw.answer())["result"]["structuredContent"] == 5


async def test_what_is_no_message_is_refused(kitchen: Kitchen, raw: RawPeer) -> None:
    raw.ask("add", b"{")
    await raw.flush()
    response = await raw.until(events.ResponseReceived)
    assert dict(response.headers)[":status"] == "400"
    assert (await raw.answer())["error"]["code"] == -32700


async def test_a_slow_reader_holds_up_its_own_handler_only(kitchen: Kitchen, raw: RawPeer) -> None:
    raw.ask("pour", amount=1000)
    raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 5000})
    await raw.flush()
    await raw.until(events.ResponseReceived)
    await trio.testing.wait_all_tasks_blocked()
    assert kitchen.sent < 200
    raw.ask("add", a=2, b=3)
    await raw.flush()
    while not any(isinstance(event, events.StreamEnded) for event in raw.seen):
        raw.seen += raw.h2.receive_data(await raw.reading.receive_some())
    assert kitchen.sent < 200


async def test_a_client_that_is_gone_takes_its_calls_with_it(kitchen: Kitchen, raw: RawPeer) -> None:
    for _ in range(3):
        raw.ask("wait")
    await raw.flush()
    await kitchen.until(started=3)
    await raw.writing.aclose()
    await kitchen.until(cancelled=3)
    assert kitchen.cancelled == 3


# -- a server that is not ours ----------------------------------------------------------------------------------------


@asynccontextmanager
async def channel_and_raw_server() -> AsyncIterator[tuple[FrameChannel, RawPeer]]:
    there, there_end = trio.testing.memory_stream_one_way_pair()
    back, back_end = trio.testing.memory_stream_one_way_pair()
    server = RawPeer(there_end, back, client=False)
    await server.flush()
    async with client_channel(back_end, there) as channel:
        yield channel, server


async def asked(channel: FrameChannel, server: RawPeer) -> int:
    await channel.send(Frame(b"{}", request=7, method="tools/call", metadata={"mcp-method": "tools/call"}))
    received = await server.until(events.RequestReceived)
    assert ("mcp-method", "tools/call") in received.headers
    id: int = received.stream_id
    return id


@pytest.mark.parametrize(
    ("code", "reason"),
    [(ErrorCodes.INTERNAL_ERROR, ConnectionLost), (ErrorCodes.REFUSED_STREAM, Overloaded)],
)
async def test_an_exchange_that_is_broken_off_has_no_answer(code: ErrorCodes, reason: type[Any]) -> None:
    async with channel_and_raw_server() as (channel, server):
        server.h2.reset_stream(await asked(channel, server), code)
        await server.flush()
        frame = await channel.receive()
        assert isinstance(frame, NoAnswer)
        assert frame.about == 7
        assert isinstance(frame.reason, reason)


async def test_an_exchange_that_ends_too_early_has_no_answer() -> None:
    async with channel_and_raw_server() as (channel, server):
        id = await asked(channel, server)
        server.h2.send_headers(id, [(":status", "202")], end_stream=True)
        await server.flush()
        frame = await channel.receive()
        assert isinstance(frame, NoAnswer)
        assert isinstance(frame.reason, RemoteProtocolError)


async def test_a_last_message_needs_no_newline() -> None:
    async with channel_and_raw_server() as (channel, server):
        id = await asked(channel, server)
        server.h2.send_headers(id, [(":status", "200")])
        server.h2.send_data(id, b'{"a":1}\n\n{"b"', end_stream=False)
        server.h2.send_data(id, b":2}", end_stream=True)
        await server.flush()
        assert [(await channel.receive()).data for _ in range(2)] == [b'{"a":1}', b'{"b":2}']


async def test_a_cancelled_request_resets_its_stream() -> None:
    async with channel_and_raw_server() as (channel, server):
        await asked(channel, server)
        await channel.send(Frame(b"{}", cancels=7))
        assert (await server.until(events.StreamReset)).error_code == ErrorCodes.CANCEL


async def test_no_more_streams_are_opened_than_granted() -> None:
    async with channel_and_raw_server() as (channel, server):
        server.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        await server.flush()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.receive)
            first = await asked(channel, server)
            await trio.testing.wait_all_tasks_blocked()
            await channel.send(Frame(b"{}", request=8, method="ping"))
            await channel.send(Frame(b"{}", request=9, method="ping"))
            await channel.send(Frame(b"{}", cancels=8))
            await trio.testing.wait_all_tasks_blocked()
            server.h2.send_headers(first, [(":status", "202")], end_stream=True)
            await server.flush()
            second = await server.until(events.RequestReceived)
            assert second.stream_id == first + 2


# -- a real child -----------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, trio
from mcp_actors import Server

server = Server("child")

@server.tool
def add(a: int, b: int) -> int:
    print("this is no HTTP/2")
    return a + b

@server.tool
async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    program = tmp_path / "child.py"
    program.write_text(PROGRAM)
    return f"h2stdio:{sys.executable} -m mcp_actors.examples.transports.http2 {program}"


async def test_a_child_serves_until_it_is_killed_in_a_call(command: str) -> None:
    async with Client(command) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(ConnectionLost) as caught:
            await client.call_tool("die")
        assert caught.value.exit_code == -9


def test_without_a_program_it_says_what_it_wants() -> None:
    command = [sys.executable, "-m", "mcp_actors.examples.transports.http2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "name the program of a server" in done.stderr


@pytest.mark.parametrize("child", [["true"], ["echo", "hello"], ["/no/such/program"]])
async def test_a_program_that_does_not_speak_http2(child: list[str]) -> None:
    with pytest.raises(ConnectFailed):
        async with Http2StdioClient(child).connect():
            raise AssertionError("it connected")


# -- The two worked transports keep the contract, as the kit has it --------------------------------------

NAMES = itertools.count()


@asynccontextmanager
async def broker() -> AsyncIterator[Any]:
    name = f"kit{next(NAMES)}"
    # A worker that has ended says nothing; its lease does, sooner than the kit's patience ends.
    async with open_broker(name, lease=1):
        yield BrokerWorker(name), lambda where: BrokerClient(where.partition(":")[2])


class HttpSseChannels:
    """HTTP/2 as over a child's streams, without the child; one connection after the other may be opened."""

    def __init__(self) -> None:
        self._tasks: trio.Nursery | None = None
        self._handler: ServerHandler | None = None

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as self._tasks:
            self._handler = handler
            task_status.started("pipes")
            await trio.sleep_forever()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        assert self._tasks is not None
        assert self._handler is not None
        back, back_end = trio.testing.memory_stream_one_way_pair()
        there, there_end = trio.testing.memory_stream_one_way_pair()
        self._tasks.start_soon(serve_streams, self._handler, there_end, back)
        async with client_channel(back_end, there) as channel:
            yield channel


@asynccontextmanager
async def pipes() -> AsyncIterator[Any]:
    transport = HttpSseChannels()
    yield transport, lambda where: transport


async def test_a_broker_keeps_the_contract(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_transport(broker, exchange=True, eras=["modern"], quiet=0.02)
    assert report.passed


@pytest.mark.slow
async def test_http2_keeps_the_contract() -> None:
    report = await check_transport(pipes, exchange=True, eras=["modern"], quiet=0.02)
    assert report.passed
