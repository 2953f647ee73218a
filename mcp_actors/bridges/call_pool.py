"""The tasks in which the engine runs the calls of programs.

A task of its own for each call would cost more than all else that a bridge does. So a task that has ended its call is
kept for another one. A call cannot tell: it runs in the context of its caller, inside a cancel scope that was not
cancelled before. A task whose call was cancelled, or has left a cancel scope open, ends.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import trio

from mcp_actors._actors.task_pool import INNERMOST_SCOPE
from mcp_actors.bridges.bridged_call import BridgedCall, calling_bridge
from mcp_actors.errors import McpError
from mcp_actors.supervision import is_cancelled, start
from mcp_actors.task_kinds import BRIDGED_CALL

__all__ = ["CallPool"]

# Tasks that wait for calls to come: as many as calls are in flight in a busy program.
MAX_IDLE = 128


class CallPool:
    """Runs calls, each in a task of ``nursery``. For steps of the engine."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._context = copy_context()
        self._idle: list[_Worker] = []

    def __repr__(self) -> str:
        return f"<CallPool idle={len(self._idle)}>"

    def start(self, call: BridgedCall[Any]) -> None:
        """Runs ``call`` soon; raises ``RuntimeError`` when the nursery takes nothing any more."""
        if self._idle:
            worker = self._idle.pop()
            worker.call = call
            call.scope = worker.scope
            worker.task.context = call.context
            trio.lowlevel.reschedule(worker.task)
        else:
            worker = _Worker(self, call)
            call.scope = worker.scope
            call.context.run(start, self._nursery, BRIDGED_CALL, worker.work)

    async def wait_for_call(self, worker: _Worker) -> bool:
        """Waits until ``worker`` has another call; returns false if there are enough others."""
        if len(self._idle) >= MAX_IDLE:
            return False
        self._idle.append(worker)
        # What the caller has in its context is nobody's any more.
        worker.task.context = self._context

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle.remove(worker)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return True


class _Worker:
    """A task that runs one call after the other."""

    __slots__ = ("_pool", "call", "scope", "task")

    task: trio.lowlevel.Task

    def __init__(self, pool: CallPool, call: BridgedCall[Any]) -> None:
        self._pool = pool
        self.call: BridgedCall[Any] | None = call
        self.scope = trio.CancelScope()

    async def work(self) -> None:
        task = self.task = trio.lowlevel.current_task()
        scope = self.scope
        with scope:
            innermost = getattr(task, INNERMOST_SCOPE, None)
            while True:
                await self._run_call()
                if scope.cancel_called or getattr(task, INNERMOST_SCOPE, None) is not innermost:
                    return
                if not await self._pool.wait_for_call(self):
                    return

    async def _run_call(self) -> None:
        call, self.call = self.call, None
        assert call is not None
        calling_bridge.set(call.bridge)
        try:
            call.value = await call.function(*call.args)
            call.has_value = True
        except trio.Cancelled:
            if not is_cancelled():
                # One that was kept and raised again means nothing here, and even less to the caller.
                call.error = McpError("the call was cancelled by the engine, and not by its caller")
            raise
        except BaseException as error:
            # It belongs to the caller, whatever it is.
            call.error = error
        finally:
            call.scope = None
            call.deliver()
