"""Calls between the engine and asyncio loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors.bridges import asyncio_bridge
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.thread_bridge import ThreadBridge

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def called_back(function: Any, *args: Any) -> Any:
    bridge = calling_bridge.get()
    assert bridge is not None
    return await bridge.run(function, *args)


async def seen_in_the_engine() -> str:
    await trio.lowlevel.checkpoint()
    return variable.get()


def test_the_context_of_the_caller_is_seen_in_the_engine_and_by_its_functions() -> None:
    def plain() -> str:
        return variable.get()

    async def asynchronous() -> str:
        await asyncio.sleep(0)
        return variable.get()

    async def sets() -> None:
        variable.set("of the engine")

    async def one(value: str) -> list[str]:
        variable.set(value)
        bridge = AsyncioBridge.of_running_loop()
        await bridge.call(sets)
        return [
            await bridge.call(seen_in_the_engine),
            await bridge.call(called_back, plain),
            await bridge.call(called_back, asynchronous),
        ]

    async def main() -> None:
        values = [str(number) for number in range(8)]
        # One task of the engine runs calls of all of them.
        assert await asyncio.gather(*map(one, values)) == [[value] * 3 for value in values]
        assert await AsyncioBridge.of_running_loop().call(seen_in_the_engine) == "unset"

    asyncio.run(main())


def test_the_context_of_a_thread_is_seen_as_well() -> None:
    token = variable.set("of the thread")
    try:
        assert ThreadBridge().call(seen_in_the_engine) == "of the thread"
    finally:
        variable.reset(token)
    assert ThreadBridge().call(seen_in_the_engine) == "unset"


def test_timeout_and_task_group_of_asyncio() -> None:
    ended = []

    async def waits() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("waits")

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("of the engine")

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await bridge.call(waits)
        assert ended == ["waits"]

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(bridge.call(waits))
                group.create_task(bridge.call(fails))

        with pytest.raises(ExceptionGroup) as caught:
            await together()
        assert [str(each) for each in caught.value.exceptions] == ["of the engine"]
        assert ended == ["waits", "waits"]

    asyncio.run(main())


def test_a_task_that_is_cancelled_again_and_again_still_waits_for_the_end_of_its_call() -> None:
    async def ends_slowly(go: trio.Event, ended: list[str]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(10, shield=True):
                await go.wait()
            ended.append("ended")

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()
        go = trio.Event()
        ended: list[str] = []
        task = asyncio.ensure_future(bridge.call(ends_slowly, go, ended))
        for _ in range(3):
            await bridge.call(trio.lowlevel.checkpoint)
            task.cancel()
        assert not task.done()
        bridge.engine.post(go.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["ended"]

    asyncio.run(main())


def test_a_function_that_goes_on_although_it_was_cancelled_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio_bridge, "CANCEL_TIME", 0.01)

    async def main() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            begun.set()
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue

        task = asyncio.ensure_future(AsyncioBridge.of_running_loop().call(called_back, stubborn))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    with capture_logs() as logs:
        asyncio.run(main())
    assert [each["event"] for each in logs] == ["a function goes on although it was cancelled"]


def test_a_function_that_blocks_its_loop_holds_up_nobody_else() -> None:
    blocked, go = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go.wait(10)

    async def main() -> None:
        await AsyncioBridge.of_running_loop().call(called_back, block)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    blocked.wait(10)
    assert ThreadBridge().call(seen_in_the_engine) == "unset"
    go.set()
    thread.join(10)
    assert not thread.is_alive()


async def look_at_the_loops() -> None:
    watched = engine_thread().watched
    for each in list(watched):
        watched.discard(each)
        if each.look():
            watched.add(each)


def test_loops_that_come_and_go_leave_nothing() -> None:
    loops = []

    async def close() -> None:
        pass

    async def main(owns: bool) -> None:
        bridge = AsyncioBridge.of_running_loop()
        loops.append(weakref.ref(bridge.loop))
        if owns:
            bridge.own(close)
        await asyncio.gather(*(bridge.call(seen_in_the_engine) for _ in range(3)))
        await bridge.call(called_back, asyncio.sleep, 0)

    for number in range(20):
        asyncio.run(main(number % 2 == 0))
    ThreadBridge().call(look_at_the_loops)
    gc.collect()
    # The thread may keep the last one until it uses another.
    assert [each() for each in loops[:-1]] == [None] * 19
