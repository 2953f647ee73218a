"""The watchdog: what blocks an event loop is named by its call, its caller and its line, wherever it is looked for."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import CallTimeout, Client, Server
from mcp_actors._server import watchdog
from mcp_actors.supervision import containment
from mcp_actors.supervision.blockages import Blockage, BlockageLog, blockage_log
from mcp_actors.telemetry import Metrics
from tests.telemetry.served import loopback, operator, serving

# Seconds that a function blocks its loop for at most, if nothing notices it.
PATIENCE = 20.0
# Seconds after which a call is late that waits for one that blocks the loop, which has the clock jump over them.
LATE = 20.0
HERE = Path(__file__).name
SOURCE = Path(__file__).read_text(encoding="utf-8")


class Blocker:
    """Blocks whatever runs it until a watchdog has taken note of that."""

    def __init__(self) -> None:
        self.gives_up_at = time.monotonic() + PATIENCE
        self.before = blockage_log.recent[:1]

    @property
    def is_noticed(self) -> bool:
        return [each.at for each in blockage_log.recent[:1]] != [each.at for each in self.before]

    def block(self) -> str:
        while not self.is_noticed and time.monotonic() < self.gives_up_at:
            pass
        return "noticed" if self.is_noticed else "not noticed"


def server_that_blocks(**options: Any) -> Server:
    # A machine that is busy may be in the steps before a function for as long as it takes to look once.
    server = Server("blocking", **{"watchdog": 0.25, **options})

    @server.tool
    async def awaited() -> str:
        return Blocker().block()

    @server.tool
    async def awaited_for_long() -> str:
        said, clock = Blocker().block(), trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(LATE)
        return said

    @server.tool(inline=True)
    def inline() -> str:
        return Blocker().block()

    @server.tool(loop="asyncio")
    async def in_asyncio() -> str:
        return Blocker().block()

    @server.tool
    async def in_a_task_of_its_own() -> str:
        said: list[str] = []

        async def below() -> None:
            said.append(Blocker().block())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(below)
        return said[0]

    @server.tool
    async def after_a_while() -> str:
        await trio.lowlevel.checkpoint()
        return Blocker().block()

    @server.tool
    async def patient() -> str:
        await trio.sleep_forever()
        return ""

    @server.tool(timeout=LATE)
    async def limited() -> str:
        await trio.sleep_forever()
        return ""

    return server


@pytest.fixture(autouse=True)
def _only_own_blockages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blockage of another test explains nothing here."""
    fresh = BlockageLog()
    for member in ("_recent", "counts", "seconds"):
        monkeypatch.setattr(blockage_log, member, getattr(fresh, member))


async def until_over(tool: str) -> Blockage:
    """Returns the blockage by a tool, when it is known to be over, and counted."""
    with trio.fail_after(PATIENCE):
        while not blockage_log.seconds.get(tool):
            await trio.lowlevel.checkpoint()
    (found,) = [each for each in blockage_log.recent if each.target == tool]
    return found


async def lines_of(tool: str, logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    """Returns both lines of the log on the blockage by a tool, of which the thread writes the last one at its end."""
    with trio.fail_after(PATIENCE):
        while (
            len(found := [each for each in logs if "loop" in each["event"] and each.get("tool") == tool]) < 2
        ):
            await trio.lowlevel.checkpoint()
    return found


@pytest.mark.parametrize("tool", ["awaited", "inline", "in_a_task_of_its_own", "after_a_while"])
async def test_a_function_on_the_event_loop_that_does_not_await_is_named(tool: str) -> None:
    with capture_logs() as logs:
        async with Client(server_that_blocks(), era="legacy") as client:
            assert (await client.call_tool(tool)).text == "noticed"
            found = await until_over(tool)
            begun, over = await lines_of(tool, logs)
    assert (found.loop, found.method, found.target, found.session) == (
        "trio",
        "tools/call",
        tool,
        "blocking#1",
    )
    assert re.fullmatch(rf"{HERE}:\d+", found.place)
    assert found.line in SOURCE
    assert found.is_over
    assert (begun["event"], over["event"]) == ("the event loop is blocked", "the event loop goes on")
    assert (begun["tool"], begun["session"], begun["at"]) == (tool, "blocking#1", found.place)
    assert over["seconds"] >= begun["seconds"] >= 0.05


async def test_a_function_is_named_where_the_system_has_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_alarm", watchdog._Alarm)
    async with Client(server_that_blocks()) as client:
        assert (await client.call_tool("awaited")).text == "noticed"
        assert (await until_over("awaited")).place.startswith(HERE)


def rewound(make: Any, woken: threading.Event) -> tuple[Any, threading.Thread]:
    """Returns an alarm that was wound up again before it was to go off, and the thread that waits for it."""
    while True:
        alarm = make()

        def wait(alarm: Any = alarm) -> None:
            while alarm.wait():
                alarm.wind(time.perf_counter() + 2 * PATIENCE)
                woken.set()

        soon = time.perf_counter() + 0.2
        alarm.wind(soon)
        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(1_000):
            alarm.wind(time.perf_counter() + PATIENCE)
        if time.perf_counter() < soon:
            return alarm, thread
        # This machine has taken so long that it may have gone off rightly.
        alarm.end()
        thread.join(PATIENCE)
        woken.clear()


@pytest.mark.parametrize("make", [watchdog._alarm, watchdog._Alarm], ids=["of the system", "of all systems"])
def test_an_alarm_that_is_wound_up_again_and_again_does_not_go_off(make: Any) -> None:
    woken = threading.Event()
    alarm, thread = rewound(make, woken)
    assert not woken.wait(0.5)
    if make is watchdog._alarm:  # the other one goes off no earlier than it was to
        alarm.wind(time.perf_counter())
        assert woken.wait(PATIENCE)
    alarm.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    alarm.wind(time.perf_counter())  # after its end


async def test_a_function_that_blocks_its_asyncio_loop_is_named_and_blocks_nobody_on_trio() -> None:
    with capture_logs() as logs:
        async with Client(server_that_blocks()) as client:
            assert (await client.call_tool("in_asyncio")).text == "noticed"
            found = await until_over("in_asyncio")
            lines = await lines_of("in_asyncio", logs)
    assert (found.loop, found.target, found.place.partition(":")[0]) == ("asyncio", "in_asyncio", HERE)
    assert [each["event"] for each in lines] == [
        "the asyncio loop is blocked",
        "the asyncio loop goes on",
    ]


async def test_a_worker_thread_that_never_ends_blocks_no_loop() -> None:
    server, looked = Server("threads", watchdog=0.02), threading.Event()
    ends = threading.Event()

    @server.tool
    def spin() -> str:
        looked.set()
        while not ends.is_set():
            pass
        return "ended"

    async with Client(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "spin")
        await trio.to_thread.run_sync(looked.wait)
        # The loop goes round while the thread spins, and is looked at meanwhile.
        for _ in range(5_000):
            await trio.lowlevel.checkpoint()
        ends.set()
    assert [
        each.line for each in blockage_log.recent if each.line in ("while not ends.is_set():", "pass")
    ] == []


def watchdogs() -> int:
    return [each.name for each in threading.enumerate()].count("mcp-actors-watchdog")


async def until_no_watchdogs() -> None:
    """Waits for the ends of the threads, also of those that other tests have left behind."""
    with trio.fail_after(PATIENCE):
        while watchdogs():
            await trio.lowlevel.checkpoint()


async def test_one_thread_looks_at_a_loop_with_several_servers_and_none_without() -> None:
    await until_no_watchdogs()
    async with Client(server_that_blocks(watchdog=None)):
        assert watchdogs() == 0
    async with Client(server_that_blocks()), Client(server_that_blocks()):
        assert watchdogs() == 1
    await until_no_watchdogs()


async def test_a_thread_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = threading.Thread.start, 0

    def start_unless_first(thread: threading.Thread) -> None:
        nonlocal failed
        if thread.name == "mcp-actors-watchdog" and not failed:
            failed += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_first)
    monkeypatch.setattr(containment, "RESTART_PAUSE", 0.01)
    await until_no_watchdogs()
    gc.collect()
    open_before = len(os.listdir("/proc/self/fd"))
    with capture_logs():
        async with Client(server_that_blocks()) as client:
            with trio.fail_after(PATIENCE):
                while not watchdogs():
                    await trio.lowlevel.checkpoint()
            assert (await client.call_tool("awaited")).text == "noticed"
    await until_no_watchdogs()
    assert failed == 1
    assert len(os.listdir("/proc/self/fd")) == open_before


async def run_out_of_time(**options: Any) -> tuple[str, str]:
    """Returns what a call is told whose time is over while another call blocks the loop, and what the log says."""
    said: list[str] = []
    with capture_logs() as logs:
        server = server_that_blocks(**options)
        async with Client(server, timeout=10 * LATE) as client, trio.open_nursery() as nursery:

            async def wait() -> None:
                said.append((await client.call_tool("limited")).text)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await client.call_tool("awaited_for_long")
    (line,) = [each for each in logs if each["event"] == "a tool ran out of its time"]
    return said[0], line["blocked"]


@pytest.fixture
def hasty() -> MockClock:
    """A clock that goes as that of the machine does, and jumps where a function says so."""
    return MockClock(rate=1.0)


async def test_a_call_that_ran_out_of_time_meanwhile_says_what_blocked_it(hasty: MockClock) -> None:
    said, logged = await run_out_of_time()
    assert said.startswith(
        "limited: stopped, because it may take no longer than 20 s; tool 'awaited_for_long' of session "
    )
    assert re.search(rf"held the event loop for [\d.]+ s at {HERE}:\d+ ", said)
    assert "tool 'awaited_for_long'" in logged


async def test_a_client_that_may_not_know_the_reasons_learns_only_for_how_long(hasty: MockClock) -> None:
    said, logged = await run_out_of_time(mask_errors=True)
    assert re.search(r"; the event loop was blocked for [\d.]+ s$", said)
    assert "tool 'awaited_for_long'" in logged


async def test_a_client_in_the_same_loop_says_what_kept_it_from_its_answer(hasty: MockClock) -> None:
    caught: list[CallTimeout] = []
    async with Client(server_that_blocks(), timeout=10 * LATE) as client, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(CallTimeout) as error:
                await client.call_tool("patient", cap=LATE)
            caught.append(error.value)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("awaited_for_long")
    assert "tool 'awaited_for_long'" in caught[0].blocked
    assert str(caught[0]).endswith(caught[0].blocked)


async def test_the_live_view_and_metrics_have_the_blockage() -> None:
    server = server_that_blocks(telemetry=(metrics := Metrics()))
    async with (
        serving(server, "http://127.0.0.1:0/mcp", loopback()) as (url, where),
        operator(where) as person,
        Client(url) as client,
    ):
        await client.call_tool("awaited")
        await until_over("awaited")
        snapshot = await person.snapshot()
        (row,) = [each for each in snapshot["nodes"][0]["blockages"] if each["target"] == "awaited"]
        troubles = [each["text"] for each in snapshot["troubles"]]
        page = metrics.text()
    assert (row["target"], row["is_over"], row["place"].partition(":")[0]) == ("awaited", True, HERE)
    assert any(re.search(r"held the event loop for", each) for each in troubles)
    assert 'mcp_actors_loop_blocked_total{target="awaited"} 1' in page
    (seconds,) = re.findall(r'mcp_actors_loop_blocked_seconds_total{target="awaited"} ([\d.]+)', page)
    assert float(seconds) >= 0.05


def test_names_by_which_blockages_are_counted_are_bounded() -> None:
    found = BlockageLog()
    for number in range(300):
        first = Blockage(
            loop="trio",
            method="tools/call",
            target=f"tool {number}",
            session=None,
            principal=None,
            place="",
            line="",
            waiting=0,
            at=0.0,
        )
        found.begin(first, time.perf_counter(), 1).end(time.perf_counter())
        found.add_time(first)
    assert len(found.counts) == len(found.seconds) == 201
    assert found.counts["other"] == 100
    assert len(found.recent) == 20


@pytest.mark.parametrize("wrong", [0, 0.001, "soon", True])
def test_a_time_that_cannot_be_watched_for_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="watchdog"):
        Server("wrong", watchdog=wrong)


async def test_no_call_is_named_where_many_keep_the_loop_busy_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, seen, looks = Server("busy", watchdog=0.5), watchdog.Watchdog.seen, 0

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return seen(*arguments)

    monkeypatch.setattr(watchdog.Watchdog, "seen", counted)

    @server.tool(inline=True)
    def short(number: int) -> int:
        # Each look sees another call, however fast the machine is.
        before, ends = looks, time.monotonic() + PATIENCE
        while looks == before and time.monotonic() < ends and not blockage_log.recent:
            pass
        return number

    async with Client(server) as client, trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(client.call_tool, "short", {"number": number})
    assert [each.name for each in blockage_log.recent] == ["the program"]
