"""Calls between the engine and a Trio loop of the program's own."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors import LocalProtocolError
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.bridges.trio_bridge import TrioBridge
from mcp_actors.errors import LoopClosed
from mcp_transports.http.asgi.loops import current_bridge

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def test_the_bridge_of_whatever_runs_here() -> None:
    assert isinstance(current_bridge(), TrioBridge)
    assert current_bridge() is TrioBridge.of_running_loop()

    async def in_asyncio() -> object:
        return current_bridge()

    assert isinstance(await trio.to_thread.run_sync(lambda: asyncio.run(in_asyncio())), AsyncioBridge)
    assert isinstance(await trio.to_thread.run_sync(current_bridge), ThreadBridge)


async def test_the_engine_itself_needs_no_bridge() -> None:
    async def ask() -> None:
        current_bridge()

    with pytest.raises(LocalProtocolError, match="use 'await'"):
        await TrioBridge.of_running_loop().call(ask)


async def test_a_call_runs_in_the_engine_and_a_function_of_it_in_the_loop() -> None:
    here = threading.current_thread()
    seen = []

    async def of_the_program(number: int) -> int:
        seen.append(threading.current_thread() is here)
        await trio.lowlevel.checkpoint()
        return number + 1

    async def in_the_engine(number: int) -> int:
        seen.append(threading.current_thread() is not here)
        seen.append(variable.get() == "set")
        bridge = calling_bridge.get()
        assert bridge is not None
        return await bridge.run(of_the_program, number) + await bridge.run(lambda: 10)

    variable.set("set")
    assert await TrioBridge.of_running_loop().call(in_the_engine, 1) == 12
    assert seen == [True, True, True]


async def test_errors_cross_both_ways() -> None:
    async def fails() -> NoReturn:
        raise ValueError("of the program")

    async def in_the_engine() -> None:
        bridge = calling_bridge.get()
        assert bridge is not None
        await bridge.run(fails)

    with pytest.raises(ValueError, match="of the program"):
        await TrioBridge.of_running_loop().call(in_the_engine)


async def test_cancelling_the_task_cancels_the_call_and_its_function() -> None:
    seen = []
    begun = trio.Event()

    async def of_the_program() -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.append("function")

    async def in_the_engine() -> None:
        bridge = calling_bridge.get()
        assert bridge is not None
        try:
            await bridge.run(of_the_program)
        finally:
            seen.append("call")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TrioBridge.of_running_loop().call, in_the_engine)
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert seen == ["function", "call"]


def test_a_loop_that_has_ended() -> None:
    async def main() -> TrioBridge:
        return TrioBridge.of_running_loop()

    bridge = trio.run(main)
    with pytest.raises(LoopClosed, match="has ended"):
        bridge.post(lambda: None)
    with pytest.raises(LoopClosed, match="has ended"):
        ThreadBridge().call(bridge.run, lambda: None)


# -- Random schedules of calls, callbacks, cancellations and loops ---------------------------------------
#
# Every call ends, as it should, and leaves nothing.

# The large number is run by hand.
EXAMPLES = int(os.environ.get("MCP_ACTORS_SCHEDULES", "30"))
PATIENCE = 20  # seconds for one schedule

running: set[int] = set()
"""The numbers of the functions that run, in the engine and in the program."""


class Failed(Exception):
    """Raised by a function of the schedule."""


async def in_the_engine(number: int, turns: int, ending: str) -> int:
    running.add(number)
    try:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        if ending == "fails":
            raise Failed
        if ending == "waits":
            await trio.sleep_forever()
        if ending in ("calls back", "calls back and waits"):
            bridge = calling_bridge.get()
            assert bridge is not None
            function: Callable[..., Any] = {
                AsyncioBridge: in_asyncio, TrioBridge: in_trio, ThreadBridge: in_thread,
            }[type(bridge)]  # fmt: skip
            assert await bridge.run(function, -number, ending) == -number
        return number
    finally:
        running.discard(number)


async def in_asyncio(number: int, ending: str) -> int:
    running.add(number)
    try:
        await asyncio.sleep(3600 if ending == "calls back and waits" else 0)
        return number
    finally:
        running.discard(number)


async def in_trio(number: int, ending: str) -> int:
    running.add(number)
    try:
        await trio.sleep(3600 if ending == "calls back and waits" else 0)
        return number
    finally:
        running.discard(number)


def in_thread(number: int, ending: str) -> int:
    return number


Call = tuple[int, str, int | None]
endings = st.sampled_from(["returns", "fails", "waits", "calls back", "calls back and waits"])
calls = st.lists(
    st.tuples(st.integers(0, 3), endings, st.none() | st.integers(0, 4)), min_size=1, max_size=12
)


def ends_alone(ending: str) -> bool:
    return ending in ("returns", "fails", "calls back")


def check(number: int, call: Call, result: object) -> None:
    _, ending, cancelled = call
    if cancelled is None or isinstance(result, int | Failed):
        assert ends_alone(ending)
        assert isinstance(result, Failed) if ending == "fails" else result == number
    else:
        assert result == "cancelled"


async def asyncio_schedule(plan: list[Call]) -> None:
    bridge = AsyncioBridge.of_running_loop()

    async def make(number: int, call: Call) -> object:
        try:
            return await bridge.call(in_the_engine, number, call[0], call[1])
        except Failed as error:
            return error
        except asyncio.CancelledError:
            return "cancelled"

    async def cancel(task: asyncio.Task[object], turns: int) -> None:
        # A task that is cancelled before its first step runs nothing at all.
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        task.cancel()

    tasks = [asyncio.ensure_future(make(number, call)) for number, call in enumerate(plan, 1)]
    for task, call in zip(tasks, plan, strict=True):
        if call[2] is not None:
            await cancel(task, call[2])
        elif not ends_alone(call[1]):
            await cancel(task, 0)
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*tasks)
    for number, (call, result) in enumerate(zip(plan, results, strict=True), 1):
        check(number, call if ends_alone(call[1]) else (call[0], call[1], 0), result)


async def trio_schedule(plan: list[Call]) -> None:
    bridge = TrioBridge.of_running_loop()

    async def make(number: int, call: Call) -> None:
        result: object = "cancelled"
        turns = call[2] if ends_alone(call[1]) else call[2] or 0
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if turns is not None:
                    nursery.start_soon(cancel, scope, turns)
                try:
                    result = await bridge.call(in_the_engine, number, call[0], call[1])
                except Failed as error:
                    result = error
        check(number, (call[0], call[1], turns), result)

    async def cancel(scope: trio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for number, call in enumerate(plan, 1):
                nursery.start_soon(make, number, call)


def thread_schedule(plan: list[Call]) -> None:
    for number, call in enumerate(plan, 1):
        if ends_alone(call[1]):
            try:
                result: object = ThreadBridge().call(in_the_engine, number, call[0], call[1])
            except Failed as error:
                result = error
            check(number, (call[0], call[1], None), result)


def run(world: str, plan: list[Call]) -> None:
    if world == "asyncio":
        asyncio.run(asyncio_schedule(plan))
    elif world == "trio":
        trio.run(trio_schedule, plan)
    else:
        thread_schedule(plan)


@pytest.mark.parametrize("world", ["asyncio", "trio", "thread"])
def test_every_call_of_a_schedule_ends_and_leaves_nothing(world: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
    @given(calls)
    def schedule(plan: list[Call]) -> None:
        run(world, plan)
        assert running == set()

    with capture_logs() as logs:
        schedule()
    assert [each for each in logs if each["log_level"] != "debug"] == []


async def tasks_of_the_engine() -> int:
    return len(engine_thread().nursery.child_tasks)


def test_many_loops_and_threads_at_once() -> None:
    plan: list[Call] = [
        (1, "returns", None),
        (0, "waits", 1),
        (2, "calls back", None),
        (0, "fails", None),
    ] * 4
    failures: list[BaseException] = []

    def work(world: str) -> None:
        try:
            for _ in range(max(3, EXAMPLES // 10)):
                run(world, plan)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(world,)) for world in ("asyncio", "trio", "thread") * 2]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE * EXAMPLES)
    assert failures == []
    # Those that wait for other calls, the one that asks, and the one that looks at the loops.
    assert ThreadBridge().call(tasks_of_the_engine) <= 130


async def test_a_call_that_has_ended_is_let_go() -> None:
    class Given:
        """Something that a call was given."""

    async def take(given: Given) -> None:
        await trio.lowlevel.checkpoint()

    given = Given()
    known = weakref.ref(given)
    await TrioBridge.of_running_loop().call(take, given)
    del given
    # The engine lets its own end of the call go a moment later, in its thread.
    with trio.fail_after(10):
        while known() is not None:
            gc.collect()
            await TrioBridge.of_running_loop().call(trio.lowlevel.checkpoint)
    assert known() is None
