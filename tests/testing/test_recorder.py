"""Sessions written down and played back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, ConnectFailed, Server
from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.errors import ConnectionLost, LocalProtocolError
from mcp_actors.testing import (
    Faults,
    FaultyTransport,
    PlaybackReport,
    RecordedServer,
    Recording,
    RecordingTransport,
    check_transport,
    play_to_server,
)
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.memory import MemoryTransport, memory_channel_pair

from .media import ENDS_TO_END, LINKS, memory

Clock = trio.testing.MockClock


def calculator(greeting: str = "hello") -> Server:
    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        await trio.sleep(0.25)
        return a + b

    @server.tool
    async def greet(name: str) -> str:
        return f"{greeting} {name}"

    return server


@asynccontextmanager
async def served(server: Server, transport: Any) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        yield
        nursery.cancel_scope.cancel()


async def session(client: Client) -> None:
    await client.call_tool("add", {"a": 1, "b": 2})
    await client.call_tool("greet", {"name": "Zoë"})


async def record(path: Path, era: str, side: str = "client") -> Recording:
    inner = MemoryTransport()
    recorded = RecordingTransport(inner, path)
    server_side, client_side = (inner, recorded) if side == "client" else (recorded, inner)
    async with served(calculator(), server_side), Client(client_side, era=era) as client:
        await session(client)
    return Recording.load(path)


async def test_a_recorded_transport_is_a_binding(tmp_path: Path, autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        async with memory() as (transport, _):
            recorded = RecordingTransport(transport, tmp_path / "tape")
            yield recorded, lambda where: recorded

    report = await check_transport(maker)
    assert len(report.passed) == LINKS + 2 * ENDS_TO_END


async def test_what_is_written(tmp_path: Path, autojump_clock: Clock) -> None:
    await record(tmp_path / "tape", "legacy")
    lines = [json.loads(line) for line in (tmp_path / "tape").read_text("utf-8").splitlines()]
    assert lines[0] == {"recording": 1}
    assert lines[1] == {"t": 0.0, "connection": 1, "event": "opened", "side": "client"}
    assert [line["event"] for line in lines[2:]] == [
        "sent", "received", "sent", "sent", "received", "sent", "received", "closed",
    ]  # fmt: skip
    assert [line["t"] for line in lines[2:]] == [0, 0, 0, 0, 0.25, 0.25, 0.25, 0.25]
    call = lines[5]
    assert (call["method"], call["request"]) == ("tools/call", json.loads(call["text"])["id"])
    assert '"Zoë"' in (tmp_path / "tape").read_text("utf-8").replace("\\", "")


async def test_both_sides_record_the_same_session(tmp_path: Path, autojump_clock: Clock) -> None:
    far = await record(tmp_path / "server", "modern", "server")
    near = await record(tmp_path / "client", "modern", "client")
    assert far.events[0].side == "server"
    assert [(who, frame.data) for who, frame in far.script()] == [
        (who, frame.data) for who, frame in near.script()
    ]


async def test_bytes_that_are_no_text_endings_and_no_answers(tmp_path: Path) -> None:
    here, there = memory_channel_pair()
    recorder = RecordingTransport(MemoryTransport(), tmp_path / "tape")
    async with recorder.recorded(here, "client") as channel:
        channel.send_nowait(Frame(b"\xff\x00", request=7, metadata={"mcp-method": "x"}, last=True))
        await there.send(NoAnswer(b"", about=7, reason=ConnectionLost("gone")))
        await channel.receive()
        await there.aclose()
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                await channel.receive_many()
    text = (tmp_path / "tape").read_text()
    assert '"base64":"/wA="' in text
    recording = Recording.load(tmp_path / "tape")
    assert [event.event for event in recording.events] == ["opened", "sent", "no_answer", "ended", "closed"]
    assert recording.events[1].frame == Frame(b"\xff\x00", request=7, metadata={"mcp-method": "x"}, last=True)


async def test_many_connections_and_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    transport = RecordingTransport(MemoryTransport(), path)
    async with served(calculator(), transport):
        for _ in range(2):
            async with Client(transport, era="legacy"):
                pass
    recording = Recording.load(path)
    # Each connection is seen from both its ends here.
    assert recording.connections == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="no connection 5"):
        recording.script(5)
    with path.open("a") as file:
        file.write('{"t":1,"connection":9,"ev')
    assert Recording.load(path) == recording
    for wrong in ("", "hello\n", '{"recording":2}\n'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="no recording"):
            Recording.load(path)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("side", ["client", "server"])
async def test_played_to_the_same_server(era: str, side: str, tmp_path: Path, autojump_clock: Clock) -> None:
    recording = await record(tmp_path / "tape", era, side)
    report = await play_to_server(recording, calculator(), exact=True)
    assert report.same, str(report)
    assert str(report) == "no difference in 3 frames"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_recorded_and_played_over_http(era: str, tmp_path: Path) -> None:
    server, serving = calculator(), HttpServerTransport("http://127.0.0.1:0/mcp")
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, serving)
        async with Client(
            RecordingTransport(HttpClientTransport(where), tmp_path / "tape"), era=era
        ) as client:
            await session(client)
        recording = Recording.load(tmp_path / "tape")
        over_http = await play_to_server(recording, HttpClientTransport(where), exact=True)
        in_memory = await play_to_server(recording, calculator(), exact=True)
        nursery.cancel_scope.cancel()
    assert over_http.same, str(over_http)
    assert in_memory.same, str(in_memory)
    assert len(over_http.received) == 3


async def test_played_to_another_server(tmp_path: Path, autojump_clock: Clock) -> None:
    recording = await record(tmp_path / "tape", "legacy")
    inner = MemoryTransport()
    async with served(calculator("goodbye"), inner):
        report = await play_to_server(recording, inner)
    assert not report.same
    assert len(report.missing) == len(report.unexpected) == 1
    assert re.search("missing: .*hello Zoë.*\nunexpected: .*goodbye Zoë", str(report))
    report = await play_to_server(
        recording, calculator("goodbye"), normal=lambda data: data.replace(b"goodbye", b"hello")
    )
    assert report.same


async def test_played_to_a_client(tmp_path: Path, autojump_clock: Clock) -> None:
    recorded = RecordedServer(await record(tmp_path / "tape", "modern"), exact=True)
    async with Client(recorded, era="modern") as client:
        begin = trio.current_time()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        assert trio.current_time() == begin
        await client.call_tool("greet", {"name": "Zoë"})
    assert [report.same for report in recorded.reports] == [True]
    with pytest.raises(ConnectFailed, match="1 connections"):
        async with Client(recorded):
            pass


async def test_a_client_that_does_something_else(tmp_path: Path, autojump_clock: Clock) -> None:
    recorded = RecordedServer(await record(tmp_path / "tape", "legacy"))
    async with Client(recorded, era="legacy") as client:
        await client.call_tool("add", {"a": 5, "b": 5})
    (report,) = recorded.reports
    assert [b"Zo" in data for data in report.missing] == [False, True]
    assert [b'"a":5' in data for data in report.unexpected] == [True]


async def answers(recording: Recording, sent: list[bytes], **options: Any) -> PlaybackReport:
    """The recording played to a server that sends these frames and ends."""
    transport = MemoryTransport()

    async def handle(channel: FrameChannel) -> None:
        await channel.receive()
        await channel.send_many([Frame(data) for data in sent])
        if not options.get("silent"):
            return
        await trio.sleep_forever()

    options_of_player = {name: value for name, value in options.items() if name != "silent"}
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, handle)
        report = await play_to_server(recording, transport, **options_of_player)
        nursery.cancel_scope.cancel()
    return report


async def three_answers(path: Path) -> Recording:
    here, there = memory_channel_pair()
    async with RecordingTransport(MemoryTransport(), path).recorded(here, "client") as channel:
        await channel.send(Frame(b'{"question":1}'))
        await there.send_many([Frame(b'{"a":1,"b":2}'), Frame(b'{"c":3}'), Frame(b"no JSON")])
        await channel.receive_many()
    return Recording.load(path)


async def test_the_two_forms(tmp_path: Path, autojump_clock: Clock) -> None:
    recording = await three_answers(tmp_path / "tape")
    other_order = [b'{"c":3}', b"no JSON", b'{"b": 2, "a": 1}']
    assert (await answers(recording, other_order)).same
    exact = await answers(recording, other_order, exact=True)
    assert exact.missing == (b'{"a":1,"b":2}',)
    assert exact.unexpected == (b'{"b": 2, "a": 1}',)
    assert exact.misplaced == (0, 1, 2)
    twice = await answers(recording, [*other_order, b'{"c":3}'])
    assert twice.unexpected == (b'{"c":3}',)


async def test_waiting_is_bounded(tmp_path: Path, autojump_clock: Clock) -> None:
    recording = await three_answers(tmp_path / "tape")
    report = await answers(recording, [b'{"c":3}'], silent=True, patience=7, quiet=1)
    assert trio.current_time() == pytest.approx(8)
    assert report.missing == (b'{"a":1,"b":2}', b"no JSON")


async def test_what_could_not_be_sent(tmp_path: Path, autojump_clock: Clock) -> None:
    here, there = memory_channel_pair()
    async with RecordingTransport(MemoryTransport(), tmp_path / "tape").recorded(here, "client") as channel:
        await channel.send(Frame(b'{"question":1}'))
        await there.send(Frame(b'{"answer":1}'))
        await channel.receive()
        await channel.send_many([Frame(b"2"), Frame(b"3")])
    report = await answers(Recording.load(tmp_path / "tape"), [])
    assert (report.unsent, report.missing) == (2, (b'{"answer":1}',))
    assert "not sent:   2 frames" in str(report)


async def test_recorded_through_faults(tmp_path: Path, autojump_clock: Clock) -> None:
    inner = MemoryTransport()
    recorder = RecordingTransport(FaultyTransport(inner, Faults(latency=0.5)), tmp_path / "tape")
    async with served(calculator(), inner), Client(recorder, era="legacy") as client:
        await client.ping()
    times = [event.time for event in Recording.load(tmp_path / "tape").events]
    # The handshake is one round trip, the ping another; leaving waits for nothing that is under way.
    assert times[:6] == [0, 0, 1, 1, 1, 2]


async def test_wrong_sides(tmp_path: Path) -> None:
    class OnlyServes:
        async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None: ...

    class OnlyConnects:
        def connect(self) -> Any: ...

    with pytest.raises(LocalProtocolError, match="served, not connected"):
        async with RecordingTransport(OnlyServes(), tmp_path / "x").connect():
            pass
    with pytest.raises(LocalProtocolError, match="connected to, not served"):
        await RecordingTransport(OnlyConnects(), tmp_path / "x").serve(None)  # type: ignore[arg-type]
