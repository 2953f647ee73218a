"""The tasks that calls run in. One that has finished its call waits a while for the next: waking it costs half of
what a new task and a new cancel scope cost.

A call cannot tell: it has the task for itself, with a cancel scope that nobody used before it was cancelled, in a
context derived from its session's. A task whose scope was cancelled ends with that call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import outcome
import trio

from mcp_actors._actors.call import Call

__all__ = ["CallPool"]


class CallPool:
    """Runs calls, each in a task of ``nursery``; keeps at most ``max_idle`` tasks for calls to come."""

    def __init__(self, nursery: trio.Nursery, max_idle: int) -> None:
        self._nursery = nursery
        self._max_idle = max_idle
        self._idle: list[trio.lowlevel.Task] = []
        self._context = contextvars.copy_context()
        self._closed = False

    def __repr__(self) -> str:
        return f"<CallPool {'closed' if self._closed else 'open'} idle={len(self._idle)}/{self._max_idle}>"

    def start(self, call: Call) -> None:
        """Runs ``call`` in a task of its own, soon. Never waits."""
        name = call.invocation.method.name
        if not self._idle:
            self._nursery.start_soon(self._work, call, name=name)
            return
        task = self._idle.pop()
        # What an earlier call left in its context variables is none of this one's business.
        task.context = self._context.copy()
        task.name = name
        trio.lowlevel.reschedule(task, outcome.Value(call))

    def start_soon(self, fn: Callable[[], Awaitable[None]], name: str) -> None:
        """Runs ``fn`` beside the calls, in a task of its own."""
        self._nursery.start_soon(fn, name=name)

    def close(self) -> None:
        """Lets idle tasks end now and busy ones after their call."""
        self._closed = True
        while self._idle:
            trio.lowlevel.reschedule(self._idle.pop(), outcome.Value(None))

    async def _work(self, call: Call) -> None:
        following: Call | None = call
        scope = trio.CancelScope()
        try:
            with scope:
                while following is not None:
                    call = following
                    await self._run(call, scope)
                    if scope.cancel_called or self._closed or len(self._idle) >= self._max_idle:
                        break
                    following = await self._next()
            if scope.cancel_called:
                await call.finish()
        finally:
            # Also when the session is cancelled in the middle of it.
            if scope.cancel_called:
                call.close()

    async def _run(self, call: Call, scope: trio.CancelScope) -> None:
        try:
            await call.run(scope)
        finally:
            # A cancelled call has something left to do, outside of the scope that was cancelled.
            if not scope.cancel_called:
                call.close()

    async def _next(self) -> Call | None:
        task = trio.lowlevel.current_task()
        self._idle.append(task)

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        following: Call | None = await trio.lowlevel.wait_task_rescheduled(abort)
        return following
