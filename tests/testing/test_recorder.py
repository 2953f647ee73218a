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

from mcp_actors import Client, ConnectFailed, ConnectionLost, Server
from mcp_actors.abc import Frame, FrameChannel, NewAccess, NoAnswer, ServerTransport
from mcp_actors.errors import LocalProtocolError
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
from tests.actors.peers import AsksForAccess

from .media import ENDS_TO_END, ERAS, LINKS, memory, pipes

pytestmark = pytest.mark.slow

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
        await there.send(NewAccess(b""))
        for _ in range(2):
            await channel.receive()
        await there.aclose()
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                await channel.receive_many()
    text = (tmp_path / "tape").read_text()
    assert '"base64":"/wA="' in text
    recording = Recording.load(tmp_path / "tape")
    assert [event.event for event in recording.events] == [
        *("opened", "sent", "no_answer", "new_access", "ended", "closed")
    ]
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


async def test_what_is_said_of_access_counts_as_no_frame(tmp_path: Path, autojump_clock: Clock) -> None:
    recording, inner = await record(tmp_path / "tape", "modern"), MemoryTransport()
    async with served(calculator(), inner):
        report = await play_to_server(recording, AsksForAccess(inner), exact=True)
    assert report.same, str(report)


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


# -- FaultyTransport: exact under virtual time, and a binding like any other when nothing is faulty ------


@asynccontextmanager
async def line(
    faults: Faults, **options: Any
) -> AsyncIterator[tuple[FrameChannel, FrameChannel, FaultyTransport]]:
    """(the faulty client's end, the server's end, the transport)"""
    inner = MemoryTransport()
    faulty = FaultyTransport(inner, faults, **options)
    accepted, channels = trio.open_memory_channel[FrameChannel](1)

    async def handle(channel: FrameChannel) -> None:
        accepted.send_nowait(channel)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(inner.serve, handle)
        async with faulty.connect() as client:
            yield client, await channels.receive(), faulty
        nursery.cancel_scope.cancel()


def frames(count: int, size: int = 100, **fields: Any) -> list[Frame]:
    return [Frame(b"%0*d" % (size, number), **fields) for number in range(count)]


async def arrivals(channel: FrameChannel) -> tuple[list[tuple[float, int]], str]:
    """((when, which) for every frame, how it ended)"""
    got: list[tuple[float, int]] = []
    try:
        while True:
            got += [(trio.current_time(), int(frame.data)) for frame in await channel.receive_many()]
    except (trio.EndOfChannel, trio.BrokenResourceError) as ending:
        return got, type(ending).__name__


async def sent(faults: Faults, what: list[Frame], **options: Any) -> tuple[list[tuple[float, int]], str]:
    """When what arrives at the server, in seconds since it was sent, and how that ended."""
    async with line(faults, **options) as (client, server, _):
        begin = trio.current_time()
        await client.send_many(what)
        await client.aclose()
        got, ending = await arrivals(server)
        return [(round(when - begin, 9), which) for when, which in got], ending


@pytest.mark.parametrize("side", ["client", "server"])
async def test_without_faults_it_is_a_binding(side: str, autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        async with memory() as (transport, _):
            faulty = FaultyTransport(transport)
            yield (transport, lambda where: faulty) if side == "client" else (faulty, lambda where: transport)

    report = await check_transport(maker, senders_at_once=True)
    assert len(report.passed) == LINKS + 1 + 2 * ENDS_TO_END


async def test_over_pipes_it_is_a_binding_under_the_real_clock() -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        async with pipes() as (transport, _):
            faulty = FaultyTransport(transport)
            yield faulty, lambda where: faulty

    report = await check_transport(maker, quiet=0.02, eras=ERAS)
    assert len(report.passed) == LINKS + len(ERAS) * ENDS_TO_END


async def test_a_slow_line_is_a_binding(autojump_clock: Clock) -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        async with memory() as (transport, _):
            faulty = FaultyTransport(transport, Faults(latency=0.2, jitter=0.1, bandwidth=1e9), seed=7)
            yield transport, lambda where: faulty

    report = await check_transport(maker, quiet=5, patience=300, timeout=3000, eras=ERAS)
    assert len(report.passed) == LINKS + len(ERAS) * ENDS_TO_END


async def test_latency(autojump_clock: Clock) -> None:
    got, ending = await sent(Faults(latency=0.2), frames(3))
    assert got == [(0.2, 0), (0.2, 1), (0.2, 2)]
    assert ending == "EndOfChannel"


async def test_latency_both_ways(autojump_clock: Clock) -> None:
    async with line(Faults(latency=0.2), back=Faults(latency=0.05)) as (client, server, _):
        await client.send(Frame(b"question"))
        await server.receive()
        assert trio.current_time() == pytest.approx(0.2)
        await server.send(Frame(b"answer"))
        await client.receive()
        assert trio.current_time() == pytest.approx(0.25)


async def test_bandwidth(autojump_clock: Clock) -> None:
    got, _ = await sent(Faults(bandwidth=1000, latency=1), frames(4))
    assert got == [(1.1, 0), (1.2, 1), (1.3, 2), (1.4, 3)]


async def test_bandwidth_makes_a_sender_wait(autojump_clock: Clock) -> None:
    async with line(Faults(bandwidth=1024)) as (client, server, _):
        await client.send_many(frames(4, 64 * 1024))
        assert trio.current_time() == 0
        await client.send(Frame(b"1"))
        assert trio.current_time() == pytest.approx(64)
        assert len(await server.receive_many()) == 1


async def test_jitter_keeps_the_order_and_is_the_same_each_time(autojump_clock: Clock) -> None:
    faults = Faults(latency=0.1, jitter=0.1)
    first, _ = await sent(faults, frames(20), seed=3)
    assert [which for _, which in first] == list(range(20))
    assert all(0.1 <= when <= 0.2 for when, _ in first)
    assert len({when for when, _ in first}) > 3
    assert (await sent(faults, frames(20), seed=3))[0] == first
    assert (await sent(faults, frames(20), seed=4))[0] != first


async def test_stalls(autojump_clock: Clock) -> None:
    got, _ = await sent(Faults(stall=1, stall_seconds=2), frames(3))
    assert got == [(2, 0), (4, 1), (6, 2)]


async def test_lost_at_a_frame(autojump_clock: Clock) -> None:
    async with line(Faults(latency=0.2, lose_at_frame=3), back=Faults()) as (client, server, faulty):
        await client.send_many(frames(5))
        got, ending = await arrivals(server)
        assert (got, ending) == ([(0.2, 0), (0.2, 1)], "EndOfChannel")
        with pytest.raises(trio.BrokenResourceError, match="lost"):
            await client.receive()
        with pytest.raises(trio.BrokenResourceError, match="lost"):
            await client.send(Frame(b"x"))
        tally = faulty.statistics()
        assert (tally.connections, tally.frames, tally.bytes, tally.lost) == (1, 3, 300, 1)


async def test_lost_at_a_byte_with_a_torn_frame(autojump_clock: Clock) -> None:
    async with line(Faults(lose_at_byte=251, truncate=True)) as (client, server, faulty):
        await client.send_many(frames(5))
        data = [(await server.receive()).data for _ in range(3)]
        assert [len(each) for each in data] == [100, 100, 50]
        assert data[2] == frames(3)[2].data[:50]
        with pytest.raises(trio.EndOfChannel):
            await server.receive()
        assert faulty.statistics().truncated == 1


async def test_what_comes_back_can_be_lost(autojump_clock: Clock) -> None:
    async with line(Faults(), back=Faults(lose_at_frame=2, latency=1)) as (client, server, _):
        await server.send_many(frames(3))
        assert [which for _, which in (await arrivals(client))[0]] == [0]
        assert trio.current_time() == 1
        with pytest.raises(trio.EndOfChannel):
            await server.receive()


async def test_loss_by_chance_is_the_same_each_time(autojump_clock: Clock) -> None:
    first, ending = await sent(Faults(loss=0.02), frames(200, 10), seed=11)
    assert 0 < len(first) < 200
    assert ending == "EndOfChannel"
    assert (await sent(Faults(loss=0.02), frames(200, 10), seed=11))[0] == first


async def test_the_inner_channel_can_be_broken_off(autojump_clock: Clock) -> None:
    broken: list[FrameChannel] = []

    async def break_off(inner: FrameChannel) -> None:
        broken.append(inner)

    async with line(Faults(lose_at_frame=1), break_off=break_off) as (client, server, _):
        await client.send(Frame(b"x"))
        assert (await arrivals(server))[1] == "EndOfChannel"
    assert len(broken) == 1


async def test_leaving_is_bounded_when_the_peer_reads_nothing(autojump_clock: Clock) -> None:
    async with line(Faults(latency=2)) as (client, _, _):
        with trio.move_on_after(10):
            while True:
                await client.send_many(frames(50))
        assert trio.current_time() == 10
        await client.aclose()
        assert trio.current_time() == 10
    # What was sent last arrives after two seconds at the most, and one more is waited for somebody to take it.
    assert 11 <= trio.current_time() <= 13


async def test_a_cancelled_block_waits_for_nothing(autojump_clock: Clock) -> None:
    with trio.move_on_after(1):
        async with line(Faults(latency=60)) as (client, _, _):
            await client.send(Frame(b"x"))
            await client.receive()
    assert trio.current_time() == 1


async def test_what_the_block_raises_is_not_wrapped(autojump_clock: Clock) -> None:
    async def handle(channel: FrameChannel) -> None:
        await trio.sleep_forever()

    inner = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(inner.serve, handle)
        with pytest.raises(KeyError, match="mine"):
            async with FaultyTransport(inner).connect():
                raise KeyError("mine")
        nursery.cancel_scope.cancel()


async def test_frames_of_an_odd_kind_are_refused(autojump_clock: Clock) -> None:
    async with line(Faults()) as (client, _, _):
        for wrong in (b"", b"a\nb"):
            with pytest.raises(LocalProtocolError):
                await client.send(Frame(wrong))


async def test_duplicates(autojump_clock: Clock) -> None:
    got, _ = await sent(Faults(duplicate=1), frames(3))
    assert [which for _, which in got] == [0, 0, 1, 1, 2, 2]


async def test_reordering_between_exchanges_only(autojump_clock: Clock) -> None:
    what = [Frame(b"%d" % number, about=number % 4) for number in range(60)]
    what.insert(30, Frame(b"1000"))
    got, _ = await sent(Faults(reorder=0.3), what, seed=5)
    order = [which for _, which in got]
    assert sorted(order) == sorted([*range(60), 1000])
    assert order != [int(frame.data) for frame in what]
    for exchange in range(4):
        own = [which for which in order if which < 1000 and which % 4 == exchange]
        assert own == sorted(own)
    # What belongs to no request is overtaken by nobody.
    barrier = order.index(1000)
    assert max(order[:barrier]) < 30 <= min(order[barrier + 1 :])


async def test_frames_about_nothing_are_not_reordered(autojump_clock: Clock) -> None:
    got, _ = await sent(Faults(reorder=1), frames(50))
    assert [which for _, which in got] == list(range(50))


async def test_a_client_on_a_lossy_line(autojump_clock: Clock) -> None:
    server, inner = Server("far"), MemoryTransport()

    @server.tool
    async def echo(text: str) -> str:
        return text

    faulty = FaultyTransport(inner, Faults(latency=0.2), back=Faults(latency=0.2, lose_at_frame=4))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, inner)
        async with Client(faulty, era="modern") as client:
            begin = trio.current_time()
            await client.call_tool("echo", {"text": "a"})
            assert trio.current_time() - begin == pytest.approx(0.4)
            await client.call_tool("echo", {"text": "b"})
            with pytest.raises(ConnectionLost):
                await client.call_tool("echo", {"text": "c"})
        nursery.cancel_scope.cancel()
    assert faulty.statistics().lost == 1


async def test_wrong_sides_and_figures() -> None:
    class OnlyServes:
        async def serve(self, handler: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None: ...

    class OnlyConnects:
        def connect(self) -> Any: ...

    assert isinstance(OnlyServes(), ServerTransport)
    with pytest.raises(LocalProtocolError, match="served, not connected"):
        async with FaultyTransport(OnlyServes()).connect():
            pass
    with pytest.raises(LocalProtocolError, match="connected to, not served"):
        await FaultyTransport(OnlyConnects()).serve(None)  # type: ignore[arg-type]
    for wrong in (
        {"loss": 1.5},
        {"latency": -1},
        {"bandwidth": 0},
        {"lose_at_frame": 0},
        {"jitter": float("inf")},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Faults(**wrong)  # type: ignore[arg-type]
