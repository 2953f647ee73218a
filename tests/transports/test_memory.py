"""The binding inside one process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import Client
from mcp_actors.abc import ClientTransport, Frame, FrameChannel, ServerTransport
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports.memory import MemoryTransport, from_url, memory_channel_pair

from .crashes import CRASHES, CrashingOnce, captured_logs

pytestmark = pytest.mark.slow


async def echo(channel: FrameChannel) -> None:
    try:
        while True:
            await channel.send_many(await channel.receive_many())
    except (trio.EndOfChannel, trio.BrokenResourceError):
        pass


async def test_receive_many_takes_all_that_is_there() -> None:
    here, there = memory_channel_pair(max_buffer=3)

    await here.send_many([Frame(b"1"), Frame(b"2")])
    here.send_nowait(Frame(b"3"))
    with pytest.raises(trio.WouldBlock):
        here.send_nowait(Frame(b"4"))
    assert "3 to receive" in repr(there)

    assert [frame.data for frame in await there.receive_many()] == [b"1", b"2", b"3"]
    await here.send(Frame(b"5"))
    assert (await there.receive()).data == b"5"


async def test_a_full_buffer_makes_the_sender_wait_in_order(autojump_clock: trio.testing.MockClock) -> None:
    here, there = memory_channel_pair(max_buffer=2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.send_many, [Frame(b"%d" % number) for number in range(9)])
        received: list[bytes] = []
        while len(received) < 9:
            await trio.sleep(10)
            assert int(repr(there).split(": ")[1].split()[0]) <= 2
            received += [frame.data for frame in await there.receive_many()]

    assert received == [b"%d" % number for number in range(9)]


async def test_close_ends_the_other_side_after_what_was_sent() -> None:
    here, there = memory_channel_pair()
    await here.send(Frame(b"last words"))
    await there.send(Frame(b"unread"))
    await here.aclose()
    await here.aclose()

    with pytest.raises(trio.BrokenResourceError):
        await there.send(Frame(b"x"))
    with pytest.raises(trio.BrokenResourceError):
        there.send_nowait(Frame(b"x"))
    assert [frame.data for frame in await there.receive_many()] == [b"last words"]
    with pytest.raises(trio.EndOfChannel):
        await there.receive_many()
    with pytest.raises(trio.EndOfChannel):
        await there.receive()
    for attempt in (here.receive, here.receive_many):
        with pytest.raises(trio.ClosedResourceError):
            await attempt()
    with pytest.raises(trio.ClosedResourceError):
        await here.send(Frame(b"x"))


async def test_close_wakes_who_waits_on_either_side() -> None:
    here, there = memory_channel_pair(max_buffer=1)
    there.send_nowait(Frame(b"full"))
    endings: list[str] = []

    async def watch(name: str, channel: FrameChannel, *sent: Frame) -> None:
        try:
            await (channel.send_many(sent) if sent else channel.receive_many())
        except (trio.ClosedResourceError, trio.BrokenResourceError, trio.EndOfChannel) as error:
            endings.append(f"{name} {type(error).__name__}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, "their send", there, Frame(b"waits"))
        nursery.start_soon(watch, "their receive", there)
        await trio.testing.wait_all_tasks_blocked()
        await here.aclose()

    assert sorted(endings) == ["their receive EndOfChannel", "their send BrokenResourceError"]


class OfTrio:
    """What the direction from ``here`` to ``there`` has to do, by a memory channel of Trio."""

    def __init__(self, size: int) -> None:
        self.sending, self.receiving = trio.open_memory_channel[Frame](size)

    def parts(self) -> tuple[Any, Any, Callable[[], object], Callable[[], object]]:
        return self.sending.send, self.receiving.receive, self.sending.close, self.receiving.close


class Ours:
    def __init__(self, size: int) -> None:
        self.here, self.there = memory_channel_pair(size)

    def parts(self) -> tuple[Any, Any, Callable[[], object], Callable[[], object]]:
        return self.here.send, self.there.receive, self.here.aclose, self.there.aclose


# Most steps send or receive, or little would wait.
STEPS = st.lists(
    st.sampled_from(
        [
            *[("send", 0), ("receive", 0)] * 4,
            *[("cancel", number) for number in range(4)],
            *[("close the sender", 0), ("close the receiver", 0)],
        ]
    ),
    min_size=3,
    max_size=12,
)


async def happenings(made: OfTrio | Ours, steps: list[tuple[str, int]]) -> list[str]:
    """What happens to each task that sends or receives, in each step."""
    send, receive, end, close = made.parts()
    seen: list[str] = []
    scopes: list[trio.CancelScope] = []

    async def act(number: int, sends: bool) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            try:
                got = await (send(Frame(b"%d" % number)) if sends else receive())
                seen.append(f"{number} got {got and got.data}")
            except (trio.ClosedResourceError, trio.BrokenResourceError, trio.EndOfChannel) as error:
                seen.append(f"{number} {type(error).__name__}")
        if scope.cancelled_caught:
            seen.append(f"{number} cancelled")

    async with trio.open_nursery() as nursery:
        for number, (step, which) in enumerate(steps):
            if step == "cancel":
                for scope in scopes[which : which + 1]:
                    scope.cancel()
            elif step.startswith("close"):
                outcome = end() if step == "close the sender" else close()
                if isinstance(outcome, Awaitable):
                    await outcome
            else:
                nursery.start_soon(act, number, step == "send")
            await trio.testing.wait_all_tasks_blocked()
            # Those that are woken in one step may run in any order.
            done, seen[:] = sorted(seen), []
            steps[number] = (f"{step}: {done}", which)
        nursery.cancel_scope.cancel()
    return [step for step, _ in steps]


@settings(max_examples=150, deadline=None)
@given(size=st.integers(0, 2), steps=STEPS)
def test_a_direction_does_what_a_memory_channel_of_trio_does(size: int, steps: list[tuple[str, int]]) -> None:
    assert trio.run(happenings, Ours(size), [*steps]) == trio.run(happenings, OfTrio(size), [*steps])


def test_a_buffer_has_room_for_nothing_or_more() -> None:
    with pytest.raises(ValueError, match="max_buffer"):
        memory_channel_pair(-1)


async def test_one_serves_many_connect(autojump_clock: trio.testing.MockClock) -> None:
    transport = MemoryTransport("busy")
    assert isinstance(transport, ServerTransport)
    assert isinstance(transport, ClientTransport)

    async def talk(number: int) -> None:
        async with transport.connect() as channel:
            assert channel.peer.startswith("memory:busy#")
            await channel.send(Frame(b"%d" % number))
            assert (await channel.receive()).data == b"%d" % number

    async with trio.open_nursery() as nursery:
        assert await nursery.start(transport.serve, echo) == "memory:busy"
        async with trio.open_nursery() as clients:
            for number in range(50):
                clients.start_soon(talk, number)
        await trio.testing.wait_all_tasks_blocked()
        assert repr(transport) == "<MemoryTransport memory:busy: 0 connections>"
        nursery.cancel_scope.cancel()

    assert repr(transport) == "<MemoryTransport memory:busy: not served>"


async def test_a_server_that_stops_ends_its_connections() -> None:
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, echo)
        async with transport.connect() as channel:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), pytest.raises(trio.EndOfChannel):
                await channel.receive()

    with pytest.raises(ConnectFailed, match="nobody serves memory:"):
        async with transport.connect():
            pass


async def test_a_second_server_is_refused() -> None:
    transport = MemoryTransport("one")
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, echo)
        with pytest.raises(LocalProtocolError, match="memory:one is served already"):
            await transport.serve(echo)
        nursery.cancel_scope.cancel()


async def test_what_the_block_raises_is_not_wrapped() -> None:
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.serve, echo)
        with pytest.raises(KeyError, match="mine"):
            async with transport.connect():
                raise KeyError("mine")
        nursery.cancel_scope.cancel()


def test_equal_names_meet_while_somebody_holds_them() -> None:
    first = from_url("memory:meet", max_buffer=5)

    assert from_url("memory:meet") is first
    assert from_url("memory:other") is not first
    assert from_url("memory:") is not from_url("memory:")

    first.mark = True  # type: ignore[attr-defined]
    del first
    gc.collect()
    assert not hasattr(from_url("memory:meet"), "mark")


class Reader:
    """Waits in `receive_many` for ever and lets frames be delivered past it; ``refusing`` as long as told."""

    def __init__(self, channel: FrameChannel) -> None:
        self.channel = channel
        self.delivered: list[bytes] = []
        self.received: list[bytes] = []
        self.refusing = False
        channel.deliver_to(self.take)

    def take(self, frame: Frame) -> bool:
        if not self.refusing:
            self.delivered.append(frame.data)
        return not self.refusing

    async def run(self) -> None:
        while True:
            self.received += [frame.data for frame in await self.channel.receive_many()]


async def test_a_frame_is_delivered_in_the_senders_turn_while_the_reader_waits(nursery: trio.Nursery) -> None:
    here, there = memory_channel_pair()
    reader = Reader(there)
    assert not here.write_now(Frame(b"nobody waits yet"))
    nursery.start_soon(reader.run)
    await trio.testing.wait_all_tasks_blocked()

    assert here.write_now(Frame(b"1"))
    assert reader.delivered == [b"1"]
    nursery.cancel_scope.cancel()


async def test_nothing_is_delivered_after_the_end() -> None:
    here, there = memory_channel_pair()
    reader = Reader(there)

    async def run() -> None:
        with pytest.raises(trio.EndOfChannel):
            await reader.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        await here.aclose()
        assert not here.write_now(Frame(b"after the end"))
    assert reader.delivered == []


async def test_nothing_is_delivered_past_what_waits_in_the_buffer(nursery: trio.Nursery) -> None:
    here, there = memory_channel_pair()
    reader = Reader(there)
    nursery.start_soon(reader.run)
    await trio.testing.wait_all_tasks_blocked()

    here.send_nowait(Frame(b"1"))
    assert not here.write_now(Frame(b"2"))
    here.send_nowait(Frame(b"2"))
    await trio.testing.wait_all_tasks_blocked()
    assert (reader.received, reader.delivered) == ([b"1", b"2"], [])

    assert here.write_now(Frame(b"3"))
    await here.send(Frame(b"4"))
    await trio.testing.wait_all_tasks_blocked()
    assert (reader.received, reader.delivered) == ([b"1", b"2", b"4"], [b"3"])
    nursery.cancel_scope.cancel()


async def test_a_reader_that_refuses_gets_it_all_from_the_buffer(nursery: trio.Nursery) -> None:
    here, there = memory_channel_pair()
    reader = Reader(there)
    reader.refusing = True
    nursery.start_soon(reader.run)
    await trio.testing.wait_all_tasks_blocked()

    assert not here.write_now(Frame(b"1"))
    reader.refusing = False
    # It is for the reader to look at first what was refused.
    assert not here.write_now(Frame(b"2"))
    await here.send_many([Frame(b"1"), Frame(b"2")])
    await trio.testing.wait_all_tasks_blocked()
    assert (reader.received, reader.delivered) == ([b"1", b"2"], [])
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
async def test_a_handler_that_crashes_costs_its_own_connection(
    crash: Callable[[], Awaitable[None]], nursery: trio.Nursery
) -> None:
    transport = MemoryTransport("crashing")
    with captured_logs() as logs:
        await nursery.start(transport.serve, CrashingOnce(crash))
        async with transport.connect() as sibling, transport.connect() as victim:
            await victim.send(Frame(b'"crash"'))
            with pytest.raises(trio.EndOfChannel):
                await victim.receive()
            await sibling.send(Frame(b"{}"))
            assert (await sibling.receive()).data == b"{}"
        async with transport.connect() as late:
            await late.send(Frame(b"1"))
            assert (await late.receive()).data == b"1"
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["memory connection failed"]
    nursery.cancel_scope.cancel()


# -- Calls that were cancelled leave nothing behind in their server, with Python's collector switched off ---

# Calls that are kept hold 125 MiB together, which is twice as much as is allowed.
CALLS = int(os.environ.get("MCP_KEPT_CALLS", "510"))
PAYLOAD = "x" * 256 * 1024
MEBIBYTE = 1024 * 1024
ALLOWED = 60 * MEBIBYTE

SERVER = """
import gc, os, sys
import trio
from mcp_actors import Server

server = Server("kept")

@server.tool
async def hangs(payload: str) -> str:
    await trio.sleep_forever()
    return ""

@server.tool
async def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def main() -> None:
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, sys.argv[1])
        print(where, flush=True)

if __name__ == "__main__":
    gc.collect()
    gc.disable()
    if len(sys.argv) == 1:
        server.run()
    else:
        trio.run(main)
"""

BINDINGS = [
    ("stdio", "legacy"),
    ("stdio", "modern"),
    ("http://127.0.0.1:0/mcp", "legacy"),
    ("http://127.0.0.1:0/mcp", "modern"),
    ("ws://127.0.0.1:0/ws", "legacy"),
    ("tcp://127.0.0.1:0", "modern"),
]


@contextmanager
def served(program: Path, url: str) -> Iterator[str]:
    if url == "stdio":
        yield f"stdio:{sys.executable} {program}"
        return
    with subprocess.Popen([sys.executable, str(program), url], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.terminate()


async def in_flight_at_once(client: Client, count: int) -> None:
    """Makes calls and leaves them when they have arrived, which an answer to a later call shows."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(client.call_tool, "hangs", {"payload": PAYLOAD})
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("resident")
        nursery.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.parametrize(("url", "era"), BINDINGS, ids=lambda value: value.partition(":")[0])
async def test_cancelled_calls_keep_nothing(tmp_path: Path, url: str, era: str) -> None:
    program = tmp_path / "kept.py"
    program.write_text(SERVER)
    with served(program, url) as target:
        async with Client(target, era=era) as client:
            await in_flight_at_once(client, 30)
            before = int((await client.call_tool("resident")).content[0].text)
            for _ in range(CALLS // 30):
                await in_flight_at_once(client, 30)
            after = int((await client.call_tool("resident")).content[0].text)
    assert after - before < ALLOWED
