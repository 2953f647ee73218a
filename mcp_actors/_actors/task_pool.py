"""The tasks in which inbound calls run. One task runs all calls of a burst, one after the other, until one has to wait.

Switching tasks costs more than decoding a message, and most calls never wait. So calls are queued, and one worker is
woken that takes one after the other. If a call waits while more calls are queued, its worker has another one scheduled,
which goes on with the queue, and stays with its call.

A call cannot tell that it shares a task: it has the task for itself, inside a cancel scope that was not cancelled
before, in a context of its own that is derived from its session's. A worker whose scope was cancelled ends with that
call. So does one in which a function has left a cancel scope or a nursery open: the next call would run inside of it.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import Any

import trio

from mcp_actors._actors import eager
from mcp_actors._actors.inbound_call import BegunCoroutine, InboundCall
from mcp_actors.supervision.containment import INNERMOST_SCOPE, Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CALL_WORKER

__all__ = ["TaskPool", "abandon_nurseries", "run_call"]

_IDLE = CALL_WORKER.name


class TaskPool:
    """Runs calls, each in a task of ``nursery``; keeps at most ``max_idle`` tasks for calls to come."""

    def __init__(self, nursery: trio.Nursery, max_idle: int) -> None:
        self._nursery = nursery
        self._max_idle = max_idle
        # An empty deque has 0.7 KiB, which a session that is never called can do without.
        self._queue: deque[InboundCall] | None = None
        self._idle: list[trio.lowlevel.Task] = []
        # Workers that were woken or started and have not run yet. A worker that waits or ends while calls are queued
        # schedules another one, so no call is forgotten.
        self._scheduled = 0
        # How many workers are woken next: more each time, as long as calls wait, so that many start within few turns.
        self._more = 1
        self._context = contextvars.copy_context()
        self._closed = False
        self.read_at = 0.0
        """The time at which the messages were read whose calls begin now."""
        self.is_eager = True
        """Whether no more calls are expected in this turn: then a call begins best in the turn of its reader."""
        # Whether the last call that began had to wait. If so, the next one hardly shares its worker.
        self._last_waited = False

    def __repr__(self) -> str:
        return f"<TaskPool {'closed' if self._closed else 'open'} idle={len(self._idle)}/{self._max_idle}>"

    @property
    def has_queue(self) -> bool:
        """Whether a call is to be begun that has not begun."""
        return bool(self._queue)

    def start(self, call: InboundCall) -> None:
        """Runs ``call`` soon, in a task of its own; calls begin in this order. Never waits."""
        if self._queue is None:
            self._queue = deque()
        self._queue.append(call)
        if not self._scheduled and not (
            self._idle and (self.is_eager or self._last_waited) and self._stepped()
        ):
            self._wake()

    def _stepped(self) -> bool:
        """Has an idle worker begin the call in this turn; returns false if it may not."""
        worker = self._idle.pop()
        self._scheduled += 1
        if eager.step is not None and eager.step(worker):
            return True
        self._scheduled -= 1
        self._idle.append(worker)
        return False

    def close(self) -> None:
        """Lets idle workers end now and busy ones after their call."""
        self._closed = True
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop())
        else:
            self._nursery.start_soon(self._work, name=_IDLE)
        self._scheduled += 1

    async def _work(self) -> None:
        self._scheduled -= 1
        with Containment(CALL_WORKER):
            call = await self._run_calls()
            if call is not None:
                try:
                    await call.finish()
                finally:
                    call.close()

    async def _run_calls(self) -> InboundCall | None:
        """Runs calls until one was cut short, which is returned, or no worker is needed any more."""
        task = trio.lowlevel.current_task()
        scope = trio.CancelScope()
        call: InboundCall | None = None
        retired = False
        try:
            with scope:
                innermost = getattr(task, INNERMOST_SCOPE, None)
                while self._queue or await self._wait_for_calls(task):
                    if not self._queue:
                        continue  # other workers were faster
                    call = self._queue.popleft()
                    try:
                        rest = self._begin(call, scope, task)
                        cut_short = rest if rest.__class__ is bool else await rest
                    finally:
                        retired = getattr(task, INNERMOST_SCOPE, None) is not innermost
                        if retired:
                            abandon_nurseries(task, 0)
                    if retired or cut_short:
                        break
                    call = None  # an idle worker must not keep what the peer sent
        except BaseException as error:
            if not (retired and isinstance(error, RuntimeError)):
                if call is not None:
                    call.fail(error)
                raise
            # Trio raises it where a scope is closed round one that is still open.
            log.error(
                "a function has left a cancel scope or a nursery open; its task ends",
                method=None if call is None else call.invocation.method.name,
                error=str(error).partition("\n")[0],
            )
        finally:
            self._hand_on()
        return call if call is not None and call.cut_short else None

    def _begin(self, call: InboundCall, scope: trio.CancelScope, task: trio.lowlevel.Task) -> Any:
        """Begins a call. Returns its rest, to be awaited, or what that would return: whether it was cut short.

        Trio applies ``task.context`` at the next step of a task. The first step of a call happens without one, in the
        same turn as what the worker did before, so it is made in the context by hand.
        """
        context = self._context.copy()
        rest: Any = call.begin(context, scope)
        self._last_waited = False
        if rest is None:
            return False
        if not call.waits:
            try:
                rest = BegunCoroutine(rest, context.run(rest.send, None))
            except StopIteration as done:
                return done.value
        self._last_waited = True
        self._hand_on()
        # Only a call that waits can be seen by anybody.
        task.context = context
        task.name = f"{_IDLE} {call.invocation.method.name}"
        return rest

    def _hand_on(self) -> None:
        """Has other workers go on with the queue, because the one that runs cannot."""
        if self._queue and not self._scheduled:
            for _ in range(min(self._more, len(self._queue))):
                self._wake()
            self._more *= 2

    async def _wait_for_calls(self, task: trio.lowlevel.Task) -> bool:
        """Waits until calls are queued, which other workers may have taken by then.

        Returns false when this worker is not needed any more.
        """
        self._more = 1
        if self._closed or len(self._idle) >= self._max_idle:
            return False
        self._idle.append(task)
        # What a call has set in its context must not reach another one.
        task.context, task.name = self._context, _IDLE

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._scheduled -= 1
        return True


async def run_call(call: InboundCall) -> None:
    """Runs one call in the task that awaits this. Cancelled, its handler is, and nothing more is sent."""
    scope = trio.CancelScope()
    task = trio.lowlevel.current_task()
    nurseries = len(task.child_nurseries)
    try:
        with Containment(CALL_WORKER, call.fail):
            with scope:
                try:
                    await call.run(scope)
                finally:
                    abandon_nurseries(task, nurseries)
        if call.cut_short:
            await call.finish()
    finally:
        call.close()


def abandon_nurseries(task: trio.lowlevel.Task, expected: int) -> None:
    """Cancels the nurseries that a function has left open behind the ``expected`` ones, and has the task forget them.

    Trio has no public name for the latter. A task that exits with an open nursery would fail in a way that no task can
    contain, and take its session along.
    """
    if len(task.child_nurseries) > expected:
        for nursery in task.child_nurseries[expected:]:
            nursery.cancel_scope.cancel(
                reason="the call that opened this nursery has ended without closing it"
            )
        del getattr(task, "_child_nurseries", [])[expected:]
