"""The tasks that calls run in. One of them runs every call that came with the same burst, until a call has to wait.

A task switch costs more than decoding a message, and most calls never wait for anything. So calls queue up, and one
task is woken that takes one after the other. It has seen to it before that another will come: when a call waits, that
one goes on with those behind it, while the first stays with its call until it has ended.

A call cannot tell: it has the task for itself, with a cancel scope that nobody used before it was cancelled, in a
context of its own derived from its session's. A task whose scope was cancelled ends with that call.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

import trio

from mcp_actors._actors.inbound_call import Call

__all__ = ["TaskPool"]


class TaskPool:
    """Runs calls, each in a task of ``nursery``; keeps at most ``max_idle`` tasks for calls to come."""

    def __init__(self, nursery: trio.Nursery, max_idle: int) -> None:
        self._nursery = nursery
        self._max_idle = max_idle
        self._queue: deque[Call] = deque()
        self._idle: list[trio.lowlevel.Task] = []
        # Tasks that were woken or made and have not had their turn. Whoever leaves calls in the queue when it waits or
        # ends has left somebody here, so none of them is forgotten.
        self._coming = 0
        # How many are woken next: more each time, as long as calls wait, so that many start within few turns.
        self._more = 1
        self._context = contextvars.copy_context()
        self._closed = False

    def __repr__(self) -> str:
        return f"<TaskPool {'closed' if self._closed else 'open'} idle={len(self._idle)}/{self._max_idle}>"

    def start(self, call: Call) -> None:
        """Runs ``call`` in a task of its own, soon; calls begin in this order. Never waits."""
        self._queue.append(call)
        if not self._coming:
            self._wake()

    def start_soon(self, fn: Callable[[], Awaitable[None]], name: str) -> None:
        """Runs ``fn`` beside the calls, in a task of its own."""
        self._nursery.start_soon(fn, name=name)

    def close(self) -> None:
        """Lets idle tasks end now and busy ones after their call."""
        self._closed = True
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop())
        else:
            self._nursery.start_soon(self._work, name="a call to come")
        self._coming += 1

    async def _work(self) -> None:
        self._coming -= 1
        task = trio.lowlevel.current_task()
        call: Call | None = None
        scope = trio.CancelScope()
        try:
            with scope:
                while self._queue or await self._called_again(task):
                    if not self._queue:
                        continue  # others were faster
                    call = self._take()
                    await self._run(call, scope, task)
                    if call.cut_short:
                        break
            if call is not None and call.cut_short:
                await call.finish()
        finally:
            # Also when the session is cancelled in the middle of it.
            if call is not None and call.cut_short:
                call.close()

    def _take(self) -> Call:
        call = self._queue.popleft()
        if self._queue and not self._coming:
            for _ in range(min(self._more, len(self._queue))):
                self._wake()
            self._more *= 2
        return call

    async def _called_again(self, task: trio.lowlevel.Task) -> bool:
        """Waits for calls to come, which others may have taken by now. False when this task is not needed any more."""
        self._more = 1
        if self._closed or len(self._idle) >= self._max_idle:
            return False
        self._idle.append(task)

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._coming -= 1
        return True

    async def _run(self, call: Call, scope: trio.CancelScope, task: trio.lowlevel.Task) -> None:
        task.name = call.invocation.method.name
        try:
            # What an earlier call left in its context variables is none of this one's business.
            await _awaited_in(self._context.copy(), call.run(scope), task)
        finally:
            # A call that was cut short has something left to do, outside of the scope that was cancelled.
            if not call.cut_short:
                call.close()


@coroutine
def _awaited_in(
    context: contextvars.Context, running: Coroutine[Any, Any, None], task: trio.lowlevel.Task
) -> Generator[Any, Any, None]:
    """As ``await running``, in ``context``: for its first step here, for what comes after as that of the task."""
    try:
        waits_for = context.run(running.send, None)
        task.context = context
        while True:
            try:
                received = yield waits_for
            except BaseException as error:  # Trio does not know what is waited for
                waits_for = running.throw(error)
            else:
                waits_for = running.send(received)
    except StopIteration:
        return
