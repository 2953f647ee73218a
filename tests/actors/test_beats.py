"""While a call that was made with a progress token says nothing, the engine reports for it: on every binding."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing
import trio

from mcp_actors import CallTimeout, Client, Context, Limits, Server
from mcp_actors._actors.beats import FIRST, Beats
from mcp_actors.abc import Frame
from mcp_actors.client import Progress
from mcp_actors.testing import connected_pair, raw_client
from tests.messages import call, modern_request

from .peers import arrived, legacy_client

BEAT = 15.0
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def silent_server(beat: float = BEAT) -> Server:
    server = Server("silent", limits=Limits(beat=beat))

    @server.tool
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return "awake"

    @server.tool
    async def report(before: list[float], seconds: float, after: list[float], ctx: Context) -> str:
        for progress in before:
            await ctx.progress(progress, 10, "of ten")
        await trio.sleep(seconds)
        for progress in after:
            await ctx.progress(progress)
        return "reported"

    return server


@asynccontextmanager
async def served(beat: float = BEAT, era: str = "auto") -> AsyncIterator[tuple[Client, list[Progress]]]:
    async with connected_pair(silent_server(beat), era=era) as client:
        yield client, []


def increasing(told: list[Progress]) -> bool:
    return all(a.progress < b.progress for a, b in pairwise(told))


# -- what the client sees ------------------------------------------------------------------------------------


@ERAS
async def test_a_silent_call_is_reported_for_and_outlives_the_idle_clock(era: str) -> None:
    async with served(era=era) as (client, told):
        result = await client.call_tool("sleep", {"seconds": 200}, on_progress=told.append)
        assert result.content[0].text == "awake"
    assert len(told) == 200 // BEAT
    assert told[0].progress > 0
    assert told[-1].progress < 1e-6
    assert increasing(told)
    assert {(each.total, each.message) for each in told} == {(None, None)}


@ERAS
async def test_a_call_without_on_progress_outlives_the_idle_clock_too(era: str) -> None:
    async with served(era=era) as (client, _):
        assert (await client.call_tool("sleep", {"seconds": 200})).content[0].text == "awake"


@ERAS
async def test_the_cap_still_ends_a_tool_that_looks_dead(era: str) -> None:
    async with served(era=era) as (client, _):
        began = trio.current_time()
        with pytest.raises(CallTimeout) as caught:
            await client.call_tool("sleep", {"seconds": 10_000})
        assert (caught.value.clock, trio.current_time() - began) == ("cap", 300)


@ERAS
async def test_switched_off_the_idle_clock_ends_a_silent_call(era: str) -> None:
    async with served(0, era) as (client, told):
        with pytest.raises(CallTimeout) as caught:
            await client.call_tool("sleep", {"seconds": 200}, on_progress=told.append)
        assert (caught.value.clock, told) == ("idle", [])


@ERAS
@pytest.mark.parametrize("seconds", [14.9, 16.0, 31.0, 149.0])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [0, 1]),
        ([], [1e-12, 1e-11]),
        ([], [-3, -2, 5]),
        ([1, 2], [3, 4]),
        ([1], [1.0000000000000002, 1.0000000000000004, 2]),
        ([0.1], [0.2]),
        ([2.0**53], [2.0**53 + 2, 2.0**53 + 4]),
        ([1e30], [2e30]),
    ],
)
async def test_every_report_of_the_tool_arrives_and_is_larger_than_what_came_before(
    era: str, before: list[float], after: list[float], seconds: float
) -> None:
    async with served(era=era) as (client, told):
        arguments = {"before": before, "seconds": seconds, "after": after}
        await client.call_tool("report", arguments, on_progress=told.append)
    assert increasing(told)
    assert len(told) == len(before) + int(seconds // BEAT) + len(after)
    # A beat repeats the total that was told last, and no message.
    beats = told[len(before) : len(told) - len(after)]
    assert {(each.total, each.message) for each in beats} <= {(10 if before else None, None)}
    if seconds < BEAT:
        assert [each.progress for each in told] == [*before, *after]


async def test_a_tool_that_reports_is_left_alone() -> None:
    server = silent_server()

    @server.tool
    async def diligent(ctx: Context) -> None:
        for number in range(20):
            await ctx.progress(number)
            await trio.sleep(BEAT - 0.1)

    told: list[Progress] = []
    async with connected_pair(server) as client:
        await client.call_tool("diligent", on_progress=told.append)
    assert [each.progress for each in told] == list(range(20))


async def test_a_report_that_is_no_more_than_the_last_one_is_still_not_sent() -> None:
    async with served() as (client, told):
        arguments = {"before": [3, 3, 2], "seconds": 1, "after": [3, 4]}
        await client.call_tool("report", arguments, on_progress=told.append)
    assert [each.progress for each in told] == [3, 4]


async def test_an_integer_that_no_float_has_is_exceeded_too() -> None:
    sent = Sent()
    reports = Beats(BEAT).watch(sent, "token")
    await reports.report(2**53 + 1, None, None)
    reports.beat()
    assert json.loads(sent.frames[1].data)["params"]["progress"] > 2**53 + 1


@pytest.mark.parametrize("largest", [sys.float_info.max, 10**400])
async def test_where_no_number_is_larger_no_beat_is_sent(largest: float) -> None:
    sent = Sent()
    beats = Beats(BEAT)
    reports = beats.watch(sent, "token")
    await reports.report(largest, None, None)
    reports.beat()
    assert len(sent.frames) == 1


# -- who gets none -------------------------------------------------------------------------------------------


async def test_without_a_token_nothing_is_sent() -> None:
    async with legacy_client(silent_server()) as peer:
        await peer.send(call(1, "sleep", seconds=100))
        await trio.sleep(99)
        (answer,) = await arrived(peer, within=10)
        assert answer["result"]["content"][0]["text"] == "awake"


async def test_nothing_is_sent_after_a_cancellation_or_an_answer() -> None:
    server = silent_server()

    @server.tool
    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        return "too late"

    async with legacy_client(server) as peer:
        await peer.send(call(1, "stubborn", token="t"))
        await trio.sleep(BEAT + 1)
        (beat,) = await arrived(peer, within=0.1)
        assert beat["params"] == {"progressToken": "t", "progress": FIRST}
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await peer.send(cancelled)
        assert await arrived(peer, within=1000) == []


def running_tasks() -> set[str]:
    names, waiting = set(), [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        assert task is not None
        names.add(task.name)
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return names


@pytest.mark.parametrize("calls", [10, 1000])
async def test_one_task_serves_all_calls_and_keeps_none_that_has_ended(calls: int) -> None:
    server = silent_server()
    told: list[Progress] = []
    async with connected_pair(server) as client:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                await client.call_tool("sleep", {"seconds": 31}, on_progress=told.append)

            for _ in range(calls):
                nursery.start_soon(call)
            await trio.sleep(20)
            assert len(told) == calls
            names = [each for each in running_tasks() if each.startswith("beats")]
            assert names == ["beats"]
        (handler,) = server._runtime._handlers
        assert repr(handler.responder.beats) == f"<Beats of 0 calls, every {BEAT:g} s>"
    assert len(told) == 2 * calls


# -- a beat and its outlet -----------------------------------------------------------------------------------


class Sent:
    """A call and its outlet, which a test lets take frames or not."""

    def __init__(self) -> None:
        self.id: Any = 1
        self.state = "running"
        self.started = trio.current_time()
        self.longest = 10_000
        self.frames: list[Frame] = []
        self.outlet: Any = self
        self.on_send: Callable[[], bool] = lambda: True
        self.room = trio.Event()

    def send_nowait(self, frame: Frame) -> bool:
        taken = self.on_send()
        if taken:
            self.frames.append(frame)
        return taken

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        if not self.on_send():
            await self.room.wait()
        self.frames.append(Frame(b"", method=method))


async def test_a_beat_never_overtakes_a_report_that_waits(nursery: trio.Nursery) -> None:
    sent = Sent()
    beats = Beats(BEAT)
    nursery.start_soon(beats.run)
    reports = beats.watch(sent, "token")
    sent.on_send = lambda: False
    nursery.start_soon(reports.report, 5, None, None)
    await trio.sleep(1)
    sent.on_send = lambda: True
    await trio.sleep(BEAT * 3)
    assert sent.frames == []
    sent.room.set()
    await trio.sleep(BEAT)
    assert len(sent.frames) == 2
    assert b"5.00000000000000" in sent.frames[1].data


async def test_a_client_that_does_not_read_gets_no_beat_and_costs_nothing(nursery: trio.Nursery) -> None:
    sent = Sent()
    beats = Beats(BEAT)
    nursery.start_soon(beats.run)
    beats.watch(sent, "token")
    sent.on_send = lambda: False
    await trio.sleep(BEAT * 3 + 1)
    sent.on_send = lambda: True
    await trio.sleep(BEAT)
    assert [frame.about for frame in sent.frames] == [1]


@pytest.mark.parametrize(
    ("error", "logged"),
    [(trio.BrokenResourceError(), 0), (ValueError("a defect"), 1)],
    ids=["gone", "defect"],
)
async def test_a_beat_that_fails_costs_that_call_its_beats_alone(
    nursery: trio.Nursery,
    error: Exception,
    logged: int,
) -> None:
    """A client that is gone, and a defect of an outlet."""
    failing, sound = Sent(), Sent()

    def fail() -> bool:
        raise error

    failing.on_send = fail
    beats = Beats(BEAT)
    nursery.start_soon(beats.run)
    beats.watch(failing, "a")
    beats.watch(sound, "b")
    with structlog.testing.capture_logs() as logs:
        await trio.sleep(BEAT * 3 + 1)
    structlog.reset_defaults()
    assert len(sound.frames) == 3
    assert repr(beats) == "<Beats of 1 calls, every 15 s>"
    assert len([each for each in logs if each["log_level"] == "error"]) == logged


async def test_a_subscription_gets_no_beats() -> None:
    listen = modern_request(
        1, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, token="t"
    )
    async with raw_client(silent_server()) as peer:
        await peer.send(listen)
        (acknowledged,) = await arrived(peer, within=1000)
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
