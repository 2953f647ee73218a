"""The bridge between the engine and one asyncio loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

import outcome
import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.engine_thread import EngineThread, engine_thread
from mcp_actors.errors import LoopClosed
from mcp_actors.logging import log

__all__ = ["AsyncioBridge"]

# Seconds that a function of the program may go on once it was cancelled; then nobody waits for it any more.
CANCEL_TIME = 5.0

T = TypeVar("T")
Step = Callable[[], object]


class AsyncioBridge:
    """Calls the engine from an asyncio loop, and functions in that loop from the engine. See `Bridge`.

    ``AsyncioBridge.of_running_loop()`` is the one of the loop that runs now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EngineThread) -> None:
        self.loop = loop
        self.engine = engine
        self._steps: deque[Step] = deque()
        self._is_woken = False

    def __repr__(self) -> str:
        return f"<AsyncioBridge {'closed' if self.loop.is_closed() else 'open'}>"

    @classmethod
    def of_running_loop(cls) -> AsyncioBridge:
        """Returns the bridge of the loop that runs in this thread.

        Raises:
            RuntimeError: No asyncio loop runs here.
            EngineStopped: The interpreter exits.
        """
        loop = asyncio.get_running_loop()
        bridge: AsyncioBridge | None = getattr(_of_thread, "bridge", None)
        if bridge is None or bridge.loop is not loop or bridge.engine.has_ended:
            bridge = _of_thread.bridge = cls(loop, engine_thread())
        return bridge

    # -- from the loop to the engine ---------------------------------------------------------------------------------

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` in the engine.

        Cancelled, it cancels the call there, and waits until it has ended.

        Raises:
            EngineStopped: The interpreter exits.
            Exception: What ``function`` raises.
        """
        result = _Result[T](self.loop)

        def deliver(each: outcome.Outcome[T]) -> None:
            try:
                self.post(partial(result.take, each))
            except LoopClosed:
                log.debug("nobody is left to take a result", loop=self)

        call = BridgedCall(self.engine, self, function, args, deliver)
        self.engine.post(call.begin)
        try:
            await result.future
        except asyncio.CancelledError:
            self.engine.post(call.cancel)
            await result.until_taken()
            raise
        return result.pop().unwrap()

    # -- from the engine to the loop ---------------------------------------------------------------------------------

    def post(self, step: Step) -> None:
        """Runs ``step`` in the loop soon, in order. Steps that are posted while the loop is busy are run together.

        Raises:
            LoopClosed: The loop is closed.
        """
        self._steps.append(step)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._take_steps)
            except RuntimeError as error:
                raise LoopClosed("the asyncio loop that this belongs to is closed") from error

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` in the loop, from the engine, and awaits what it returns if that is awaitable.

        The function sees the engine's context variables. Cancelled, it cancels the function there and waits until that
        has ended, `CANCEL_TIME` seconds at most.

        Raises:
            LoopClosed: The loop is closed.
            Exception: What the function raises.
        """
        run = _LoopRun(self, partial(function, *args), copy_context())
        self.post(run.begin)
        try:
            await run.ended.wait()
        except trio.Cancelled:
            with trio.move_on_after(CANCEL_TIME, shield=True) as patience:
                try:
                    self.post(run.cancel)
                    await run.ended.wait()
                except LoopClosed:
                    log.debug("a function was cancelled in a loop that is closed", loop=self)
            if patience.cancelled_caught:
                log.warning("a function goes on although it was cancelled", function=repr(function)[:80])
            raise
        return run.result.unwrap()

    def _take_steps(self) -> None:
        self._is_woken = False
        steps = self._steps
        for _ in range(len(steps)):
            steps.popleft()()


class _LoopRun:
    """A function of the program that runs in its loop for the engine."""

    result: outcome.Outcome[Any]

    def __init__(self, bridge: AsyncioBridge, function: Callable[[], Any], context: Context) -> None:
        self._bridge = bridge
        self._function = function
        self._context = context
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self.ended = trio.Event()

    def begin(self) -> None:
        if self._is_cancelled:
            self._end(outcome.Error(asyncio.CancelledError()))
            return
        try:
            value = self._context.run(self._function)
        except BaseException as error:
            self._end(outcome.Error(error))
            return
        if inspect.isawaitable(value):
            self._task = self._bridge.loop.create_task(_awaited(value), context=self._context)
            self._task.add_done_callback(self._task_ended)
        else:
            self._end(outcome.Value(value))

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._end(outcome.capture(task.result))

    def _end(self, result: outcome.Outcome[Any]) -> None:
        self.result = result
        self._bridge.engine.post(self.ended.set)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _Result(Generic[T]):
    """The result of a call, for which a task of the loop waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._result: outcome.Outcome[T] | None = None
        self.future: asyncio.Future[None] = loop.create_future()

    def take(self, result: outcome.Outcome[T]) -> None:
        self._result = result
        if not self.future.done():
            self.future.set_result(None)

    async def until_taken(self) -> None:
        """Waits for it in a task that is cancelled, and may be cancelled again meanwhile."""
        while self._result is None:
            self.future = self._loop.create_future()
            try:
                await self.future
            except asyncio.CancelledError:
                continue

    def pop(self) -> outcome.Outcome[T]:
        """Returns the result, and forgets it: the frames of an error's traceback would keep it otherwise."""
        result, self._result = self._result, None
        assert result is not None
        return result


_of_thread = threading.local()
