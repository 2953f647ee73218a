"""The cost of a crash in each kind of task that the bridges have, held against the rows of the table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import CallCancelled, McpError
from mcp_actors.bridges import engine_thread as thread_module
from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.asyncio_call import AsyncioCall, asyncio_loop_of
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.faces import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.bridges.trio_bridge import TrioBridge
from mcp_actors.errors import LoopClosed
from mcp_actors.supervision.task_kinds import (
    ASGI_WATCH,
    ASYNCIO_REQUEST,
    BRIDGED_CALL,
    BRIDGED_FUNCTION,
    BRIDGED_STEP,
    HELD_BLOCK,
    LOOP_WATCH,
)
from mcp_transports.http.asgi.loops import current_side

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


@pytest.mark.parametrize("how", ["asyncio.run", "only closed"])
@pytest.mark.parametrize("end", [*CRASHES, None])
def test_a_closer_that_fails_or_never_ends_does_not_keep_the_others_from_closing(
    end: type[BaseException] | None, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_module, "CLOSE_TIME", 0.01)
    closed: Future[None] = Future()

    async def closes() -> None:
        closed.set_result(None)

    async def fails() -> None:
        if end is None and how == "only closed":
            await trio.sleep_forever()
        elif end is not None:
            raise end("injected")

    async def opens() -> None:
        AsyncioBridge.of_running_loop().own(closes)
        AsyncioBridge.of_running_loop().own(fails)

    def lives() -> None:
        if how == "asyncio.run":
            with suppress(SystemExit):
                asyncio.run(opens())
        else:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(opens())
            loop.close()

    thread = threading.Thread(target=lives)
    thread.start()
    thread.join(PATIENCE)
    assert closed.result(PATIENCE) is None


@pytest.mark.parametrize("crash", CRASHES)
def test_a_request_of_a_function_in_asyncio_tells_the_function(crash: type[BaseException]) -> None:
    async def crashes() -> NoReturn:
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_task().name == ASYNCIO_REQUEST.name
        raise crash("injected")

    async def asks() -> type[BaseException] | None:
        running = AsyncioCall(asyncio_loop_of(None))

        async def function() -> type[BaseException] | None:
            try:
                await running.in_trio(crashes)
            except Exception as error:
                return type(error)
            return None

        told: type[BaseException] | None = await running.result(function)
        return told

    with capture_logs() as logs:
        told = ThreadBridge().call(asks)
    # What is no `Exception` would end the program's loop: it is logged, and the function learns that its call is lost.
    contained = crash is SystemExit
    assert told is (CallCancelled if contained else crash)
    assert [each["event"] for each in logs] == [f"{ASYNCIO_REQUEST.name} failed"] * contained


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_function_in_a_trio_loop_tells_the_engine(crash: type[BaseException]) -> None:
    async def crashes() -> NoReturn:
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_task().name == BRIDGED_FUNCTION.name
        raise crash("injected")

    async def in_the_engine() -> None:
        bridge = calling_bridge.get()
        assert bridge is not None
        await bridge.run(crashes)

    contained = crash is SystemExit
    with capture_logs() as logs, pytest.raises(LoopClosed if contained else crash):
        await TrioBridge.of_running_loop().call(in_the_engine)
    assert [each["event"] for each in logs] == [f"{BRIDGED_FUNCTION.name} failed"] * contained


@pytest.mark.parametrize("crash", CRASHES)
async def test_a_watch_that_fails_ends_what_it_watches(crash: type[BaseException]) -> None:
    async def crashes() -> NoReturn:
        await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_task().name == ASGI_WATCH.name
        raise crash("injected")

    ended = False
    with capture_logs() as logs, trio.fail_after(PATIENCE):
        async with current_side().beside(crashes):
            try:
                await trio.sleep_forever()
            finally:
                ended = True
    assert ended
    assert [each["event"] for each in logs] == [f"{ASGI_WATCH.name} failed"]
