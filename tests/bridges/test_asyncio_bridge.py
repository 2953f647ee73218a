"""Calls between the engine and asyncio loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors.bridges import asyncio_bridge
from mcp_actors.bridges.asyncio_bridge import MOST_TURNS, AsyncioBridge, DirectFuture
from mcp_actors.bridges.engine_thread import engine_thread
from mcp_actors.bridges.faces import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from tests.bridges.watched import called_back
from tests.transports.http.raw import eventually

variable: ContextVar[str] = ContextVar("variable", default="unset")


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


def ends_its_time(bound: asyncio.Timeout) -> Callable[[], object]:
    """What a function of the engine calls once it has begun: on a busy machine some time may be over before."""
    return partial(asyncio.get_running_loop().call_soon_threadsafe, bound.reschedule, 0.0)


def test_timeout_and_task_group_of_asyncio() -> None:
    ended = []

    async def waits(begun: Callable[[], object] = lambda: None) -> None:
        begun()
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
            async with asyncio.timeout(None) as bound:
                await bridge.call(waits, ends_its_time(bound))
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
    # The thread may keep the last one until it uses another, and those before for as long as it has not come to the end
    # of what they asked of it.
    for _ in range(1000):
        ThreadBridge().call(look_at_the_loops)
        gc.collect()
        if not any(each() for each in loops[:-1]):
            break
    assert [each() for each in loops[:-1]] == [None] * 19


def test_whoever_looks_for_loops_that_were_closed_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.bridges.engine_thread.LOOK_AGAIN", 0.001)

    async def close() -> None:
        pass

    async def main() -> Any:
        bridge = AsyncioBridge.of_running_loop()
        bridge.own(close)
        await bridge.call(seen_in_the_engine)
        return weakref.ref(bridge.loop)

    async def until_looked() -> None:
        await eventually(lambda: not engine_thread().watched)

    loop = asyncio.run(main())
    for _ in range(1000):
        ThreadBridge().call(until_looked)
        gc.collect()
        if loop() is None:
            break
    assert loop() is None


# -- The future by which a call of the engine runs the task that waits for it ----------------------------


def in_python(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
    """Makes a task of the kind that asyncio has in Python, which debuggers and notebooks use."""
    return asyncio.tasks._PyTask(coroutine, loop=loop, **options)  # type: ignore[attr-defined]


async def begun(
    waits: Callable[[DirectFuture], Coroutine[Any, Any, None]], task_factory: Any
) -> tuple[DirectFuture, asyncio.Task[None]]:
    """Returns a future, and a task of the kind that ``task_factory`` makes, which waits for it."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    future = DirectFuture(loop)
    task = loop.create_task(waits(future))
    await asyncio.sleep(0)
    return future, task


@pytest.fixture(params=[None, in_python], ids=["tasks in C", "tasks in Python"])
def task_factory(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_it_runs_the_task_at_once_in_the_task_s_context(task_factory: Any) -> None:
    seen: list[object] = []

    async def waits(future: DirectFuture) -> None:
        variable.set("of the task")
        # From CPython 3.14 on this is None in a task in Python, which only its own function knows.
        own = asyncio.current_task()
        await future
        seen.append((variable.get(), asyncio.current_task() is own))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future, task = await begun(waits, task_factory)
        left = loop.create_future()

        def callback() -> None:
            future.run_waiter()
            left.set_result(list(seen))

        loop.call_soon(callback)
        assert await left == [("of the task", True)]
        await task
        # Nothing is left to wait for.
        await future

    asyncio.run(main())


@pytest.mark.parametrize("first", ["result", "cancellation"])
def test_a_cancellation_and_a_result_end_the_waiting_once(task_factory: Any, first: str) -> None:
    ended: list[tuple[object, ...]] = []

    async def waits(future: DirectFuture) -> None:
        try:
            await future
            ended.append(())
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            ended.append(error.args)
            await asyncio.sleep(0)
            raise

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future, task = await begun(waits, task_factory)
        steps = [lambda: future.run_waiter(), lambda: task.cancel("enough")]
        for step in steps if first == "result" else reversed(steps):
            loop.call_soon(step)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ([(), ("enough",)] if first == "result" else [("enough",)])


def test_a_task_that_ends_the_program_does_so_from_there() -> None:
    async def waits(future: DirectFuture) -> None:
        await future
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future = DirectFuture(loop)
        task = loop.create_task(waits(future))
        await asyncio.sleep(0)
        loop.call_soon(future.run_waiter)
        await task

    with pytest.raises(SystemExit, match="3"):
        asyncio.run(main())


# -- Steps that tasks of an asyncio loop post at about the same time, and how often the engine is woken for them ---


class Engine:
    """An engine that takes steps without running them."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.wakes: list[list[Any]] = []

    def hold(self, step: Callable[[], object]) -> None:
        self.held.append(step())

    def wake(self) -> None:
        self.wakes.append(self.held)
        self.held = []


def bridge_and_engine() -> tuple[AsyncioBridge, Engine]:
    engine: Any = Engine()
    return AsyncioBridge(asyncio.get_running_loop(), engine), engine


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_steps_of_one_turn_and_of_the_next_ones_wake_the_engine_once() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()

        async def post(number: int, turn: int) -> None:
            await turns(turn)
            bridge.post_together(lambda: number)

        async with asyncio.TaskGroup() as tasks:
            for number, turn in enumerate((0, 0, 0, 1, 2, 3)):
                tasks.create_task(post(number, turn))
        await turns(3)
        assert engine.wakes == [[0, 1, 2, 3, 4, 5]]

    asyncio.run(run())


def test_a_step_alone_waits_for_no_other() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()
        for number in range(3):
            bridge.post_together(lambda number=number: number)
            await turns(1)
        assert engine.wakes == [[0], [1], [2]]

    asyncio.run(run())


def test_a_loop_that_has_steps_in_every_turn_wakes_the_engine_now_and_then() -> None:
    async def run() -> None:
        bridge, engine = bridge_and_engine()
        for number in range(10 * MOST_TURNS):
            bridge.post_together(lambda number=number: number)
            bridge.post_together(lambda number=number: number)
            await turns(1)
        await turns(3)
        assert max(len(each) for each in engine.wakes) <= 2 * (MOST_TURNS + 2)
        assert [step for wake in engine.wakes for step in wake] == [
            number for number in range(10 * MOST_TURNS) for _ in range(2)
        ]

    asyncio.run(run())


# -- Blocks of the engine that a program enters and leaves by calls from elsewhere -----------------------


class Block:
    """A block with a cancel scope of its own; notes what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        with trio.CancelScope():
            self.seen.append("entered")
            yield "value"
            self.seen.append("left")


def test_a_block_is_entered_and_left_by_two_calls_of_a_thread() -> None:
    inner = Block()
    block = HeldBlock(inner.open)
    assert repr(block) == "<HeldBlock not entered>"
    assert ThreadBridge().call(block.enter) == "value"
    assert (inner.seen, repr(block)) == (["entered"], "<HeldBlock inside>")
    for _ in range(2):
        ThreadBridge().call(block.leave)
        assert (inner.seen, repr(block)) == (["entered", "left"], "<HeldBlock ended>")


def test_what_entering_raises_is_raised_by_enter() -> None:
    @asynccontextmanager
    async def refuses() -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    with pytest.raises(ValueError, match="no"):
        ThreadBridge().call(HeldBlock(refuses).enter)


def test_what_ends_a_block_from_inside_is_raised_where_it_is_left() -> None:
    failing = trio.Event()

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        with trio.CancelScope() as scope:
            yield scope.cancel
        raise ValueError("ended from inside")

    held = HeldBlock(block)
    cancel = ThreadBridge().call(held.enter)

    async def end() -> None:
        cancel()  # type: ignore[func-returns-value,misc]
        failing.set()

    ThreadBridge().call(end)
    with pytest.raises(ValueError, match="ended from inside"):
        ThreadBridge().call(held.leave)


def test_a_block_whose_entering_is_cancelled_is_left_again() -> None:
    seen = []

    @asynccontextmanager
    async def never_ready(begun: Callable[[], object]) -> AsyncIterator[None]:
        begun()
        try:
            await trio.sleep_forever()
            yield
        finally:
            seen.append("ended")

    async def main() -> None:
        bridge = AsyncioBridge.of_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as bound:
                await bridge.call(HeldBlock(partial(never_ready, ends_its_time(bound))).enter)

    asyncio.run(main())
    assert seen == ["ended"]
