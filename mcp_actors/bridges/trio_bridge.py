"""The bridge between the engine and a Trio loop of the program's own: that of an ASGI server on Trio, for one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from mcp_actors.bridges.bridged_call import BridgedCall, function_name
from mcp_actors.bridges.engine_thread import Belongings, Closer, EngineThread, engine_thread
from mcp_actors.bridges.steps import Step, StepQueue
from mcp_actors.errors import EngineStopped, LocalProtocolError, LoopClosed
from mcp_actors.supervision.containment import Containment
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import BRIDGED_FUNCTION, BRIDGED_STEP

__all__ = ["TrioBridge"]

# Seconds that a function of the program may go on once it was cancelled; then it is abandoned.
CANCEL_TIME = 5.0

T = TypeVar("T")


class TrioBridge:
    """Calls the engine from another Trio loop, and functions in that loop from the engine. See `Bridge`.

    ``TrioBridge.of_running_loop()`` is the one of the loop that runs now.
    """

    def __init__(self, token: trio.lowlevel.TrioToken, engine: EngineThread) -> None:
        self.engine = engine
        self._token = token
        self._steps = StepQueue(lambda take: token.run_sync_soon(self._take_steps))
        self._belongings = Belongings(engine, self)

    def is_closed(self) -> bool:
        """Whether the loop has ended. Legal from any thread."""
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False

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
        call = _TrioCall(self, function, args)
        belongings = self._belongings
        belongings.calls.add(call)
        try:
            if not belongings.is_watched:
                belongings.watch()
            self.engine.post(call.begin)
            await trio.lowlevel.wait_task_rescheduled(call.abort)
        except BaseException:
            call.error = None
            raise
        finally:
            belongings.calls.discard(call)
        return call.unwrap()

    def own(self, closer: Closer) -> None:
        """Has the loop own something in the engine: ``closer()`` is awaited in the engine when the loop has ended.

        Within a second after that, the last one first. Called in the loop.
        """
        self._belongings.closers[closer] = None
        if not self._belongings.is_watched:
            self._belongings.watch()

    def disown(self, closer: Closer) -> None:
        """Forgets what was given to `own`: it was closed. Legal from any thread, and for what is not owned."""
        self._belongings.closers.pop(closer, None)

    def post(self, step: Step) -> None:
        """Runs ``step`` in the loop soon, in order. Steps that are posted while the loop is busy are run together.

        Raises:
            LoopClosed: The loop has ended.
        """
        try:
            self._steps.post(step)
        except trio.RunFinishedError as error:
            raise LoopClosed("the Trio loop that this belongs to has ended") from error

    def wake(self) -> None:
        """Has the loop take its steps, even if another thread was about to wake it; see `Watchable.wake`."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._take_steps)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` in the loop, from the engine, and awaits what it returns if that is awaitable.

        The function sees the engine's context variables. Cancelled, it cancels the function there and waits until that
        has ended, `CANCEL_TIME` seconds at most.

        Raises:
            LoopClosed: The loop has ended.
            Exception: What the function raises.
        """
        run = _TrioFunction(self, partial(function, *args))
        belongings = self._belongings
        belongings.functions.add(run)
        if not belongings.is_watched:
            belongings.watch()
        try:
            self.post(run.begin)
            await run.ended.wait()
        except trio.Cancelled:
            run.is_cancelled = True
            if run.has_begun and not self.engine.is_exiting:
                await self._cancel(run, function)
            raise
        finally:
            belongings.functions.discard(run)
        return run.result.unwrap()

    def _take_steps(self) -> None:
        # What leaves it would end the program's loop.
        with Containment(BRIDGED_STEP):
            self._steps.take()

    async def _cancel(self, run: _TrioFunction, function: Callable[..., Any]) -> None:
        with trio.move_on_after(CANCEL_TIME, shield=True) as patience:
            try:
                self.post(run.cancel)
                await run.ended.wait()
            except LoopClosed:
                log.debug("a function was cancelled in a loop that has ended", loop=self)
        if patience.cancelled_caught:
            log.warning("a function goes on although it was cancelled", function=function_name(function))


class _TrioCall(BridgedCall[T]):
    """A call for which a task of the program's loop waits."""

    __slots__ = ("_loop_bridge", "_raise_cancel", "_task")

    def __init__(
        self, bridge: TrioBridge, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]
    ) -> None:
        super().__init__(bridge, function, args)
        self._loop_bridge = bridge
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._raise_cancel: Callable[[], Any] | None = None

    def abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._raise_cancel = raise_cancel
        self.cancel_soon()
        return trio.lowlevel.Abort.FAILED

    def deliver(self) -> None:
        if self._loop_bridge.engine.is_exiting:
            return
        try:
            self._loop_bridge.post(self._wake)
        except LoopClosed:
            log.debug("the result of a call was dropped: its loop has ended", loop=self._loop_bridge)

    def _wake(self) -> None:
        # The engine may have failed when the result was on its way.
        task, self._task = self._task, None
        if task is not None:
            cancelled = self._raise_cancel
            trio.lowlevel.reschedule(task, outcome.capture(cancelled) if cancelled else outcome.Value(None))


class _TrioFunction:
    """A function of the program that runs in its Trio loop for the engine."""

    result: outcome.Outcome[Any]

    def __init__(self, bridge: TrioBridge, function: Callable[[], Any]) -> None:
        self._bridge = bridge
        self._function = function
        self._context = copy_context()
        self._scope = trio.CancelScope()
        self.is_cancelled = False
        self.has_begun = False
        self.ended = trio.Event()

    def begin(self) -> None:
        if self.is_cancelled:
            return
        self.has_begun = True
        # The program's loop has no nursery of ours.
        trio.lowlevel.spawn_system_task(self._run, name=BRIDGED_FUNCTION.name, context=self._context)

    def cancel(self) -> None:
        self._scope.cancel(reason="the engine has cancelled the function")

    def loop_closed(self) -> None:
        if not self.ended.is_set():
            self.result = outcome.Error(LoopClosed("the Trio loop ended before the function did"))
            self.ended.set()

    async def _run(self) -> None:
        result: outcome.Outcome[Any] = outcome.Error(
            LoopClosed("the Trio loop ended while it ran the function")
        )
        try:
            with Containment(BRIDGED_FUNCTION), self._scope:
                try:
                    value = self._function()
                    result = outcome.Value(await value if inspect.isawaitable(value) else value)
                except Exception as error:
                    result = outcome.Error(error)
        finally:
            self.result = result
            with suppress(EngineStopped):
                self._bridge.engine.post(self.ended.set)
            del result


def _nothing() -> None:
    pass


_of_loop: trio.lowlevel.RunVar[TrioBridge | None] = trio.lowlevel.RunVar("mcp_actors bridge")
