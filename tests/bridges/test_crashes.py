"""The cost of a crash in each kind of task that the bridges have, held against the rows of the table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import McpError
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.held_block import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.task_kinds import BRIDGED_CALL, BRIDGED_STEP, HELD_BLOCK, LOOP_WATCH

PATIENCE = 10  # seconds
CRASHES: list[type[BaseException]] = [ValueError, SystemExit]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_step_costs_itself(crash: type[BaseException]) -> None:
    def crashes() -> NoReturn:
        raise crash("injected")

    others: list[int] = []
    engine = engine_thread()
    ThreadBridge().call(trio.lowlevel.checkpoint)
    with capture_logs() as logs:
        engine.hold(crashes)
        engine.hold(lambda: others.append(1))
        engine.wake()
        ThreadBridge().call(trio.lowlevel.checkpoint)
    assert others == [1]
    assert engine_thread() is engine
    assert [each["event"] for each in logs] == [f"{BRIDGED_STEP.name} failed"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_call_costs_itself_and_tells_its_caller(crash: type[BaseException]) -> None:
    async def crashes() -> NoReturn:
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_task().name == BRIDGED_CALL.name
        raise crash("injected")

    with capture_logs() as logs, pytest.raises(crash, match="injected"):
        ThreadBridge().call(crashes)
    ThreadBridge().call(trio.lowlevel.checkpoint)
    assert logs == []


def test_a_cancellation_that_is_not_the_callers_is_no_message_of_trio() -> None:
    kept: list[BaseException] = []

    async def keep() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept.append(error)

    async def raise_again() -> NoReturn:
        raise kept[0]

    ThreadBridge().call(keep)
    with capture_logs() as logs, pytest.raises(McpError, match="cancelled by the engine"):
        ThreadBridge().call(raise_again)
    assert [each["event"] for each in logs] == [f"{BRIDGED_CALL.name} failed"]
    ThreadBridge().call(trio.lowlevel.checkpoint)


def test_a_look_at_the_loops_that_fails_is_repeated() -> None:
    looked: Future[int] = Future()

    class Loop:
        looks = 0

        def look(self) -> bool:
            Loop.looks += 1
            if Loop.looks == 1:
                engine_thread().watched.add(self)
                raise ValueError("injected")
            looked.set_result(Loop.looks)
            return False

        def engine_ended(self) -> None:
            raise AssertionError

    ThreadBridge().call(trio.lowlevel.checkpoint)
    with capture_logs() as logs:
        engine_thread().watched.add(Loop())
        assert looked.result(PATIENCE) == 2
    assert [each["event"] for each in logs] == [f"{LOOP_WATCH.name} failed"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_block_tells_whoever_leaves_it(crash: type[BaseException]) -> None:
    names = []

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        names.append(trio.lowlevel.current_task().name)
        yield
        raise crash("injected")

    held = HeldBlock(block)
    ThreadBridge().call(held.enter)
    with pytest.raises(crash, match="injected"):
        ThreadBridge().call(held.leave)
    assert names == [HELD_BLOCK.name]


def test_a_closer_that_fails_or_never_ends_does_not_keep_the_others_from_closing() -> None:
    closed: Future[None] = Future()

    async def closes() -> None:
        closed.set_result(None)

    async def fails() -> NoReturn:
        raise ValueError("injected")

    def opens(*closers: Callable[[], Awaitable[object]]) -> None:
        async def main() -> None:
            for each in closers:
                AsyncioBridge.of_running_loop().own(each)

        asyncio.run(main())

    thread = threading.Thread(target=opens, args=(closes, fails))
    thread.start()
    thread.join(PATIENCE)
    assert closed.result(PATIENCE) is None
