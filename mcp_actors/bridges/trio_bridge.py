"""The bridge between the engine and a Trio loop of the program's own: that of an ASGI server on Trio, for one."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.engine_thread import EngineThread, engine_thread
from mcp_actors.errors import LocalProtocolError, LoopClosed
from mcp_actors.logging import log
from mcp_actors.supervision import Containment
from mcp_actors.task_kinds import BRIDGED_FUNCTION, BRIDGED_STEP

__all__ = ["TrioBridge"]

# Seconds that a function of the program may go on once it was cancelled; then nobody waits for it any more.
CANCEL_TIME = 5.0

T = TypeVar("T")
Step = Callable[[], object]


class TrioBridge:
    """Calls the engine from another Trio loop, and functions in that loop from the engine. See `Bridge`.

    ``TrioBridge.of_running_loop()`` is the one of the loop that runs now.
    """

    def __init__(self, token: trio.lowlevel.TrioToken, engine: EngineThread) -> None:
        self.engine = engine
        self._token = token
        self._steps: deque[Step] = deque()
        self._is_woken = False

    @classmethod
    def of_running_loop(cls) -> TrioBridge:
        """Returns the bridge of the Trio loop that runs in this thread.

        Raises:
            RuntimeError: No Trio loop runs here.
            LocalProtocolError: It is the engine's own.
            EngineStopped: The interpreter exits.
        """
        bridge = _of_loop.get(None)
        if bridge is None or bridge.engine.has_ended:
            engine = engine_thread()
            if engine.is_current:
                raise LocalProtocolError("this runs in the engine itself, which needs no bridge: use 'await'")
            bridge = cls(trio.lowlevel.current_trio_token(), engine)
            _of_loop.set(bridge)
        return bridge

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` in the engine.

        Cancelled, it cancels the call there, and waits until it has ended.

        Raises:
            EngineStopped: The interpreter exits.
            Exception: What ``function`` raises.
        """
        task = trio.lowlevel.current_task()
        cancelled: list[Callable[[], Any]] = []

        def take(result: outcome.Outcome[T]) -> None:
            trio.lowlevel.reschedule(task, outcome.capture(cancelled.pop()) if cancelled else result)

        def deliver(result: outcome.Outcome[T]) -> None:
            try:
                self.post(partial(take, result))
            except LoopClosed:
                log.debug("nobody is left to take a result", loop=self)

        call = BridgedCall(self.engine, self, function, args, deliver)

        def abort(raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            cancelled.append(raise_cancel)
            self.engine.post(call.cancel)
            return trio.lowlevel.Abort.FAILED

        self.engine.post(call.begin)
        value: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return value

    def post(self, step: Step) -> None:
        """Runs ``step`` in the loop soon, in order. Steps that are posted while the loop is busy are run together.

        Raises:
            LoopClosed: The loop has ended.
        """
        self._steps.append(step)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._token.run_sync_soon(self._take_steps)
            except trio.RunFinishedError as error:
                raise LoopClosed("the Trio loop that this belongs to has ended") from error

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` in the loop, from the engine, and awaits what it returns if that is awaitable.

        The function sees the engine's context variables. Cancelled, it cancels the function there and waits until that
        has ended, `CANCEL_TIME` seconds at most.

        Raises:
            LoopClosed: The loop has ended.
            Exception: What the function raises.
        """
        run = _TrioRun(self, partial(function, *args))
        self.post(partial(copy_context().run, run.begin))
        try:
            await run.ended.wait()
        except trio.Cancelled:
            with trio.move_on_after(CANCEL_TIME, shield=True) as patience:
                try:
                    self.post(run.cancel)
                    await run.ended.wait()
                except LoopClosed:
                    log.debug("a function was cancelled in a loop that has ended", loop=self)
            if patience.cancelled_caught:
                log.warning("a function goes on although it was cancelled", function=repr(function)[:80])
            raise
        return run.result.unwrap()

    def _take_steps(self) -> None:
        self._is_woken = False
        steps = self._steps
        for _ in range(len(steps)):
            with Containment(BRIDGED_STEP):
                steps.popleft()()


class _TrioRun:
    """A function of the program that runs in its Trio loop for the engine."""

    result: outcome.Outcome[Any]

    def __init__(self, bridge: TrioBridge, function: Callable[[], Any]) -> None:
        self._bridge = bridge
        self._function = function
        self._scope = trio.CancelScope()
        self.ended = trio.Event()

    def begin(self) -> None:
        # The program's loop has no nursery of ours.
        trio.lowlevel.spawn_system_task(self._run, name=BRIDGED_FUNCTION.name, context=copy_context())

    def cancel(self) -> None:
        self._scope.cancel(reason="the engine has cancelled the function")

    async def _run(self) -> None:
        self.result = outcome.Error(LoopClosed("the loop ended while it ran the function"))
        try:
            with Containment(BRIDGED_FUNCTION), self._scope:
                try:
                    value = self._function()
                    self.result = outcome.Value(await value if inspect.isawaitable(value) else value)
                except Exception as error:
                    self.result = outcome.Error(error)
        finally:
            self._bridge.engine.post(self.ended.set)


_of_loop: trio.lowlevel.RunVar[TrioBridge | None] = trio.lowlevel.RunVar("mcp_actors bridge")
