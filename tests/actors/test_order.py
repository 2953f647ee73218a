"""What arrives in order is told in order: progress before the answer, logs before the result."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Limits, Progress, Server
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.testing import ScriptedPeer, connected_pair
from mcp_transports.memory import memory_channel_pair

from .peers import (
    LEGACY,
    TEXT,
    Serves,
    arrived,
    call,
    met,
    modern_call,
    notification,
    progressed,
    reply,
    settled,
)

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
MANY = 10_000


@pytest.fixture
def counter() -> Server:
    server = Server("counter")

    @server.tool
    async def count(to: int, ctx: Context) -> str:
        for number in range(1, to + 1):
            await ctx.progress(number, to, f"number {number}")
        return "counted"

    return server


@ERAS
async def test_10000_reports_are_told_in_wire_order_before_the_call_returns(
    counter: Server, era: str
) -> None:
    told: list[Progress] = []
    async with connected_pair(counter, era=era) as client:
        await client.call_tool("count", {"to": MANY}, on_progress=told.append)
        assert told == [Progress(number, MANY, f"number {number}") for number in range(1, MANY + 1)]


@ERAS
async def test_async_callbacks_run_one_after_the_other_and_all_of_them(counter: Server, era: str) -> None:
    told: list[float] = []
    running = 0

    async def slow(progress: Progress) -> None:
        nonlocal running
        assert running == 0
        running += 1
        await trio.sleep(0.01)
        running -= 1
        told.append(progress.progress)

    async with connected_pair(counter, era=era) as client:
        await client.call_tool("count", {"to": 1000}, on_progress=slow)
        assert told == list(range(1, 1001))


async def test_an_answer_in_the_same_read_does_not_overtake() -> None:
    told: list[float] = []
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            token = asked["params"]["_meta"]["progressToken"]
            for number in range(100):
                await peer.send(progressed(token, number))
            await peer.send(reply(asked, TEXT))
            # What comes after the answer is nobody's business any more.
            await peer.send(progressed(token, 1000))

        await client.call_tool("any", on_progress=lambda progress: told.append(progress.progress))
        assert told == list(range(100))
        await settled()
        assert client.tree().pending == ()


async def test_concurrent_calls_get_their_own_reports_only(counter: Server) -> None:
    told: dict[int, list[float]] = {}

    async def count(client: Client, to: int) -> None:
        reports = told[to] = []
        await client.call_tool("count", {"to": to}, on_progress=lambda p: reports.append(p.progress))
        assert reports == list(range(1, to + 1))

    async with connected_pair(counter) as client, trio.open_nursery() as nursery:
        for to in range(50, 150):
            nursery.start_soon(count, client, to)
    assert len(told) == 100


@ERAS
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callback_that_raises_ends_its_call_and_no_other(
    counter: Server, era: str, asynchronous: bool
) -> None:
    async def raise_later(progress: Progress) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("from the callback")

    def raise_now(progress: Progress) -> None:
        raise KeyError("from the callback")

    callback: Any = raise_later if asynchronous else raise_now
    async with connected_pair(counter, era=era) as client:
        with pytest.raises(KeyError, match="from the callback"):
            await client.call_tool("count", {"to": MANY}, on_progress=callback)
        await settled()
        assert client.tree().pending == ()
        told: list[Progress] = []
        await client.call_tool("count", {"to": 3}, on_progress=told.append)
        assert len(told) == 3


async def test_the_peer_is_told_when_a_callback_raised() -> None:
    async with met() as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def report() -> None:
            asked = await peer.receive()
            await peer.send(progressed(asked["params"]["_meta"]["progressToken"], 1))

        def fail(progress: Progress) -> None:
            raise KeyError("from the callback")

        with pytest.raises(KeyError):
            await client.call_tool("any", on_progress=fail)
        [told] = await arrived(peer, within=1000)
        assert told["method"] == "notifications/cancelled"


async def test_a_flood_of_reports_is_bounded_by_dropping_the_oldest() -> None:
    told: list[float] = []

    async def slow(progress: Progress) -> None:
        await trio.sleep(1)
        told.append(progress.progress)

    async with met(limits=Limits(progress_queue=10)) as (client, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer() -> None:
            asked = await peer.receive()
            token = asked["params"]["_meta"]["progressToken"]
            await peer.send(progressed(token, 1))
            await settled()
            for number in range(2, 100):
                await peer.send(progressed(token, number))
            await settled()
            [pending] = client.tree().pending
            assert pending.progress_waiting == 10
            await peer.send(reply(asked, TEXT))

        await client.call_tool("any", on_progress=slow)
        assert told == [1, *range(90, 100)]


@ERAS
async def test_reports_that_do_not_grow_are_not_sent(era: str) -> None:
    server = Server("jumpy")

    @server.tool
    async def jump(ctx: Context) -> None:
        for number in (1, 1, 0.5, 2, -1, 3):
            await ctx.progress(number)

    told: list[float] = []
    async with connected_pair(server, era=era) as client:
        await client.call_tool("jump", on_progress=lambda progress: told.append(progress.progress))
    assert told == [1, 2, 3]


# -- logs ------------------------------------------------------------------------------------------------------------


@ERAS
async def test_the_logs_of_a_call_are_told_before_its_result(era: str) -> None:
    server = Server("talks")

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(1000):
            await ctx.log("warning", number)

    told: list[Any] = []
    async with connected_pair(
        server, era=era, on_log=lambda level, data, logger: told.append(data)
    ) as client:
        await client.call_tool("talk")
        assert told == list(range(1000))


async def test_async_log_handlers_are_awaited_in_order_and_survive_a_failure() -> None:
    told: list[Any] = []

    async def on_log(level: Any, data: Any, logger: str | None) -> None:
        await trio.sleep(10 - data)
        if data == 5:
            raise KeyError("from the handler")
        told.append(data)

    async with met(on_log=on_log) as (_, peer):
        for number in range(10):
            await peer.send(notification("notifications/message", level="info", data=number))
        await trio.sleep(100)
        assert told == [0, 1, 2, 3, 4, 6, 7, 8, 9]


# -- the outbox ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [0, 1, 256])
@pytest.mark.parametrize("outbox", [1, 2, 16])
async def test_a_full_outbox_changes_no_order(buffer: int, outbox: int) -> None:
    """Calls that report at once, over a channel that takes frames directly as well as through the writer."""

    server = Server("floods", limits=Limits(outbox=outbox))

    @server.tool
    async def count(to: int, ctx: Context) -> None:
        for number in range(1, to + 1):
            await ctx.progress(number)

    ours, theirs = memory_channel_pair(buffer)
    peer = ScriptedPeer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, Serves(ours))
        await peer.initialize(LEGACY)
        for id in range(20):
            await peer.send(call(id, "count", token=id, to=50))
        seen: dict[int, list[float]] = {id: [] for id in range(20)}
        answered = 0
        while answered < 20:
            for message in await arrived(peer):
                if "result" in message:
                    answered += 1
                    assert seen[message["id"]] == list(range(1, 51))
                else:
                    seen[message["params"]["progressToken"]].append(message["params"]["progress"])
        nursery.cancel_scope.cancel()


class Burst(FrameChannel):
    """Brings all its frames at once, then nothing; keeps what is sent."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.sent: list[int] = []

    async def receive(self) -> Frame:
        raise AssertionError("frames are received as a burst")

    async def receive_many(self) -> list[Frame]:
        await trio.lowlevel.checkpoint()
        if not self.frames:
            await trio.sleep_forever()
        frames, self.frames = self.frames, []
        return frames

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(json.loads(value.data)["id"])

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_the_first_answers_of_a_burst_leave_before_the_last_requests_are_looked_at(
    nursery: trio.Nursery,
) -> None:
    server, seen = Server("s"), []
    channel = Burst([Frame(json.dumps(modern_call(number, "look")).encode()) for number in range(100)])

    @server.tool(inline=True)
    def look() -> None:
        seen.append(len(channel.sent))

    await nursery.start(server.serve, Serves(channel))
    await settled()
    assert (seen[0], 0 < seen[-1] < 100) == (0, True)
    assert channel.sent == list(range(100))
    nursery.cancel_scope.cancel()
