"""The future by which a call of the engine runs the task that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from mcp_actors.bridges.asyncio_bridge import DirectFuture

variable: ContextVar[str] = ContextVar("variable", default="unset")


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
