"""Functions that run in an asyncio loop (``loop="asyncio"``), and their context.

A module of its own, since it imports asyncio: most servers have no such function.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from mcp_actors._server.context import Context, SyncContext
from mcp_actors._server.invoke import asyncio_calls, current
from mcp_actors._server.once import Effect, boxed, is_awaitable
from mcp_actors._server.scope import ServerScope
from mcp_actors.bridges.asyncio_call import AsyncioCall, asyncio_loop_of, entered_in_loop
from mcp_actors.supervision.containment import one_error
from mcp_actors.supervision.task_kinds import DEPENDENCY

__all__ = [
    "AsyncioContext",
    "entered_in_asyncio",
    "in_asyncio",
    "method_in_asyncio",
    "middleware_in_asyncio",
]

T = TypeVar("T")


class AsyncioContext(SyncContext, kw_only=True):
    """The `Context` of a function in an asyncio loop: there its methods are awaited, in any other thread they wait.

    So ``await ctx.progress(1)`` is for the function and the tasks that it starts, and ``ctx.progress(1)`` for what it
    calls by `asyncio.to_thread`.
    """

    _asyncio: AsyncioCall

    @property
    def deadline(self) -> float:
        """When the caller gives up, in the time of the asyncio loop; in other threads as `SyncContext.deadline`."""
        return self._deadline_by(self._asyncio.time if self._asyncio.is_here else time.monotonic)

    def _wait(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if not self._asyncio.is_here:
            return super()._wait(method, *args, **options)
        awaited: Any = self._asyncio.in_trio(partial(method, *args, **options))
        return awaited  # type: ignore[no-any-return]

    def _once(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], retry_errors: bool
    ) -> Any:
        if not self._asyncio.is_here:
            return super()._once(name, function, arguments, retry_errors)
        return self._once_here(name, function, arguments, retry_errors)

    async def _once_here(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], retry_errors: bool
    ) -> Any:
        effect: Effect = await self._asyncio.in_trio(partial(self._effect, name, function))
        if effect.is_over:
            return effect.recall()
        try:
            try:
                if effect.is_async:
                    value = await function(*arguments)
                else:
                    run = partial(self._scope.threads.run, self, partial(boxed, function, *arguments))
                    value = (await self._asyncio.in_trio(run))[0]
                    if is_awaitable(value):
                        value = await value
            except Exception as error:
                await self._asyncio.in_trio(partial(effect.raised, error, retry_errors))
                raise
            return await self._asyncio.in_trio(partial(effect.returned, value))
        finally:
            # A task that was cancelled can wait for Trio no more, and what it has done is not known.
            effect.lost()


def in_asyncio(
    call: Callable[..., Awaitable[Any]], injected_name: str | None
) -> Callable[[Any, dict[str, Any]], Awaitable[Any]]:
    """Returns what awaits ``call`` in the asyncio loop of a `serve`; see `mcp_actors._server.invoke`."""

    async def run(ctx: Context, arguments: dict[str, Any]) -> Any:
        running = AsyncioCall(asyncio_loop_of(ctx._scope.bridge))
        handed = AsyncioContext.of(ctx, False, _asyncio=running)
        running.context.run(current.set, handed)
        if injected_name is not None:
            arguments[injected_name] = handed
        asyncio_calls[running] = ctx
        try:
            return await running.result(call, **arguments)
        finally:
            del asyncio_calls[running]
            handed.end()
            running.context.run(current.set, None)  # a cycle would have to wait for the garbage collector

    return run


def method_in_asyncio(
    function: Callable[[dict[str, Any], Context], Awaitable[Any]],
) -> Callable[[dict[str, Any], Context], Awaitable[Any]]:
    """Returns what awaits the function of a method of the user's own in the asyncio loop."""

    async def run(params: dict[str, Any], ctx: Context) -> Any:
        running = AsyncioCall(asyncio_loop_of(ctx._scope.bridge))
        handed = AsyncioContext.of(ctx, False, _asyncio=running)
        running.context.run(current.set, handed)
        asyncio_calls[running] = ctx
        try:
            return await running.result(function, params, handed)
        finally:
            del asyncio_calls[running]
            handed.end()
            running.context.run(current.set, None)  # as above

    return run


def middleware_in_asyncio(
    function: Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """Returns what awaits middleware in the asyncio loop; what is inside of it runs in the engine as ever."""

    async def run(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        running = AsyncioCall(asyncio_loop_of(ctx._scope.bridge))
        handed = AsyncioContext.of(ctx, False, _asyncio=running)
        asyncio_calls[running] = ctx
        try:
            return await running.result(function, handed, partial(running.in_trio, call_next))
        finally:
            del asyncio_calls[running]
            handed.end()

    return run


@asynccontextmanager
async def entered_in_asyncio(
    scope: ServerScope, ctx: Context | None, make: Callable[[Any], AbstractAsyncContextManager[T]]
) -> AsyncIterator[T]:
    """Enters what ``make`` makes of the context in the asyncio loop of a `serve`, and leaves it there after the block.

    It learns how the block has ended.
    """
    loop = asyncio_loop_of(scope.bridge)
    running = AsyncioCall(loop)
    handed = None if ctx is None else AsyncioContext.of(ctx, False, _asyncio=running)
    running.context.run(current.set, handed)
    try:
        with one_error():
            async with entered_in_loop(loop, make(handed), kind=DEPENDENCY, call=running) as value:
                yield value
    finally:
        if handed is not None:
            handed.end()
        running.context.run(current.set, None)  # as above
