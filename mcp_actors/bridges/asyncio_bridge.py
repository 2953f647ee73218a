"""The bridge between the engine and one asyncio loop.

`AsyncioBridge` takes calls from the loop to the engine, whose results arrive through a `DirectFuture`, and calls
functions in the loop for the engine, each a `LoopFunction`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import trio

from mcp_actors.bridges.bridged_call import BridgedCall, function_name
from mcp_actors.bridges.engine_thread import Belongings, Closer, EngineThread, engine_thread
from mcp_actors.bridges.steps import Step, StepQueue
from mcp_actors.errors import EngineStopped, LoopClosed
from mcp_actors.errors.protocol import see_page
from mcp_actors.supervision.logging import log

__all__ = ["AsyncioBridge", "DirectFuture", "LoopFunction"]

# Seconds that a function of the program may go on once it was cancelled; then it is abandoned.
CANCEL_TIME = 5.0
# Turns of the loop for which requests wait for others to come: a busy loop has some in each.
MOST_TURNS = 8
NEVER_ENDED = "the asyncio loop was closed, or stopped its tasks, before the function ended"

T = TypeVar("T")


class AsyncioBridge:
    """Calls the engine from an asyncio loop, and functions in that loop from the engine. See `Bridge`.

    ``AsyncioBridge.of_running_loop()`` is the one of the loop that runs now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EngineThread) -> None:
        self.loop = loop
        self.engine = engine
        self._steps = StepQueue(self._wake)
        # Whether calls are held that are to be made in one burst.
        self._is_collecting = False
        # Whether requests are gathered, those of this turn of the loop, and how many turns more may be waited.
        self._is_gathering = False
        self._gathered = self._turns_left = 0
        self._belongings = Belongings(engine, self)
        self._shutdown: AsyncGenerator[None, None] | None = None

    def __repr__(self) -> str:
        return f"<AsyncioBridge {'closed' if self.is_closed() else 'open'}>"

    @classmethod
    def of_running_loop(cls) -> AsyncioBridge:
        """Returns the bridge of the loop that runs in this thread.

        Raises:
            RuntimeError: No asyncio loop runs here.
            EngineStopped: The interpreter exits.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "mcp_actors.asyncio needs a running asyncio loop: on Trio use mcp_actors itself, without a loop "
                f"mcp_actors.sync; {see_page('asyncio')}"
            ) from None
        bridge: AsyncioBridge | None = getattr(_of_thread, "bridge", None)
        if bridge is None or bridge.loop is not loop or bridge.engine.has_ended:
            bridge = _of_thread.bridge = cls(loop, engine_thread())
        return bridge

    def is_closed(self) -> bool:
        """Whether the loop is closed. Legal from any thread."""
        return self.loop.is_closed()

    # -- from the loop to the engine ---------------------------------------------------------------------------------

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` in the engine.

        Cancelled, it cancels the call there, and waits until it has ended.

        Raises:
            EngineStopped: The interpreter exits, the engine has failed, or this process is a fork. In a daemon thread
                it waits for the end of the process instead when the interpreter exits.
            Exception: What ``function`` raises.
        """
        call = _AsyncioCall(self, function, args)
        belongings = self._belongings
        belongings.calls.add(call)
        try:
            if not belongings.is_watched:
                belongings.watch()
            if self._is_collecting:
                self.engine.hold(call.begin)
            else:
                self.engine.post(call.begin)
            await call.future
        except EngineStopped:
            if self.engine.leaves_thread_waiting():
                await call.until_ended()
            raise
        except asyncio.CancelledError:
            call.cancel_soon()
            await call.until_ended()
            call.error = None
            raise
        except BaseException:
            # An interrupt, or the loop is gone and this is not awaited any more.
            call.cancel_soon()
            raise
        finally:
            belongings.calls.discard(call)
        return call.unwrap()

    def post_together(self, step: Step) -> None:
        """Runs ``step`` in the engine soon, together with those of all tasks that have something to do now.

        For many short requests: the engine is woken when a turn of the loop has brought none, or after `MOST_TURNS`, so
        that the two threads do not hand the interpreter's lock to and fro for each. Called in the loop.

        Raises:
            EngineStopped: As `EngineThread.post`.
        """
        self.engine.hold(step)
        self._gathered += 1
        if not self._is_gathering:
            self._is_gathering = self._is_collecting = True
            self._turns_left = MOST_TURNS
            self.loop.call_soon(self._end_gathering)

    def own(self, closer: Closer) -> None:
        """Has the loop own something in the engine: ``closer()`` is awaited in the engine when the loop is closed.

        In order, by ``loop.shutdown_asyncgens()``, which ``asyncio.run`` calls, the last one first; else within a
        second after it was closed. Called in the loop.
        """
        belongings = self._belongings
        belongings.closers[closer] = None
        if not belongings.is_watched:
            belongings.watch()
        if self._shutdown is None:
            self._shutdown = self._until_shutdown()
            # The loop learns of a generator when it is begun, and ends it when the loop shuts down.
            with suppress(StopIteration):
                self._shutdown.__anext__().__await__().send(None)

    def disown(self, closer: Closer) -> None:
        """Forgets what was given to `own`: it was closed. Legal from any thread, and for what is not owned."""
        self._belongings.closers.pop(closer, None)

    # -- from the engine to the loop ---------------------------------------------------------------------------------

    def post(self, step: Step) -> None:
        """Runs ``step`` in the loop soon, in order. Steps that are posted while the loop is busy are run together.

        Raises:
            LoopClosed: The loop is closed.
        """
        try:
            if not self.loop.is_closed():
                self._steps.post(step)
                return
        except RuntimeError:
            # It was closed meanwhile.
            pass
        raise LoopClosed("the asyncio loop that this belongs to is closed")

    def notify(self, callback: Callable[..., object], *args: Any) -> None:
        """Calls a function of the program in the loop soon, unless the loop is closed.

        The loop reports what it raises, as it does for any callback.
        """
        try:
            self.post(partial(self.loop.call_soon, callback, *args))
        except LoopClosed:
            log.debug("the loop was closed before a callback ran", callback=function_name(callback))

    def wake(self) -> None:
        """Has the loop take its steps, even if another thread was about to wake it; see `Watchable.wake`."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._take_steps)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` in the loop, from the engine, and awaits what it returns if that is awaitable.

        The function sees the engine's context variables: those of the caller, where a call brought them. Cancelled, it
        cancels the function there and waits until that has ended, `CANCEL_TIME` seconds at most, and not at all for
        one that has not begun, in a loop that does not run, or when the interpreter exits.

        Raises:
            LoopClosed: The loop is closed, or ends the function; or the function ends the program.
            Exception: What the function raises.
        """
        run = LoopFunction(self.loop, self.engine.post, partial(function, *args) if args else function)
        belongings = self._belongings
        belongings.functions.add(run)
        if not belongings.is_watched:
            belongings.watch()
        try:
            self.post(run.begin)
            await run.ended.wait()
        except trio.Cancelled:
            run.forget()
            if run.has_begun and self.loop.is_running() and not self.engine.is_exiting:
                await self._cancel(run, function)
            raise
        finally:
            belongings.functions.discard(run)
        return run.unwrap()

    def _take_steps(self) -> None:
        # A burst of results runs the tasks that wait for them, whose next calls are made in one burst as well.
        self._is_collecting = True
        try:
            self._steps.take()
        finally:
            if not self._is_gathering:
                self._is_collecting = False
                self.engine.wake()

    def _end_gathering(self) -> None:
        # One request alone is not to wait.
        if self._gathered > (self._turns_left == MOST_TURNS) and self._turns_left > 0:
            self._gathered = 0
            self._turns_left -= 1
            self.loop.call_soon(self._end_gathering)
            return
        self._is_gathering = self._is_collecting = False
        self._gathered = 0
        self.engine.wake()

    def _wake(self, take: Step) -> None:
        if not self.engine.is_current:
            self.loop.call_soon_threadsafe(self._take_steps)
        elif self.loop.is_closed():
            raise RuntimeError("the loop is closed")
        else:
            self.engine.wake_ups.add(partial(self.loop.call_soon_threadsafe, self._take_steps))

    async def _cancel(self, run: LoopFunction, function: Callable[..., Any]) -> None:
        with trio.move_on_after(CANCEL_TIME, shield=True) as patience:
            try:
                self.post(run.cancel)
                await run.ended.wait()
            except LoopClosed:
                log.debug("a function was cancelled in a loop that is closed", loop=self)
        if patience.cancelled_caught:
            log.warning("a function goes on although it was cancelled", function=function_name(function))

    # -- the end of the loop -----------------------------------------------------------------------------------------

    async def _until_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._shutdown = None
            _of_thread.bridge = None
            # What ends this block leaves the rest to the engine, which closes it when the loop is closed.
            while self._belongings.closers:
                try:
                    await self.call(self._belongings.next_closer())
                except Exception as error:
                    log.debug("what a loop has left could not be closed in order", exc_info=error)


class _AsyncioCall(BridgedCall[T]):
    """A call for which a task of the loop waits."""

    __slots__ = ("_has_ended", "_loop_bridge", "future")

    def __init__(
        self, bridge: AsyncioBridge, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]
    ) -> None:
        super().__init__(bridge, function, args)
        self._loop_bridge = bridge
        self._has_ended = False
        self.future = DirectFuture(bridge.loop)

    def deliver(self) -> None:
        if self._loop_bridge.engine.is_exiting:
            return
        try:
            self._loop_bridge.post(self._wake)
        except LoopClosed:
            log.debug("the result of a call was dropped: its loop has ended", loop=self._loop_bridge)

    async def until_ended(self) -> None:
        """Waits for it in a task that is cancelled, and may be cancelled again meanwhile."""
        engine = self._loop_bridge.engine
        while not (self._has_ended or engine.has_crashed or engine.is_forked):
            self.future = DirectFuture(self._loop_bridge.loop)
            with suppress(asyncio.CancelledError):
                await self.future

    def _wake(self) -> None:
        self._has_ended = True
        self.future.run_waiter()


_of_thread = threading.local()


class DirectFuture:
    """An awaitable for one task, once: future-like, as ``asyncio.isfuture`` says in Python's documentation.

    An `asyncio.Future` has the loop run its task later, which takes one more turn of the loop, and two handles.

    Args:
        loop: The loop of the task.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancellation", "_is_done", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The task looks here for the loop.
        self._loop = loop
        self._asyncio_future_blocking = False
        self._is_done = False
        self._cancellation: asyncio.CancelledError | None = None
        self._waiter: tuple[Callable[[Any], object], Context] | None = None

    def __repr__(self) -> str:
        return f"<DirectFuture {'done' if self._is_done else 'pending'}>"

    def run_waiter(self) -> None:
        """Runs the task that waits, until it waits again. Called by a callback of the loop, never by a task."""
        if not self._is_done:
            self._is_done = True
            self._run()

    # -- for the task ------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Takes what runs the task, which begins to wait."""
        self._waiter = callback, context

    def cancel(self, msg: Any = None) -> bool:
        """Ends the waiting, as the task is cancelled; returns whether it waited."""
        if self._is_done:
            return False
        self._is_done = True
        self._cancellation = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._loop.call_soon(self._run)
        return True

    def result(self) -> None:
        """Raises ``CancelledError`` in the task if it was cancelled."""
        cancellation, self._cancellation = self._cancellation, None
        try:
            if cancellation is not None:
                raise cancellation
        finally:
            # The frames of its traceback would keep it.
            del cancellation

    def _run(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            callback, context = waiter
            context.run(callback, self)


class LoopFunction:
    """One run of such a function. ``begin`` and ``cancel`` are steps of the loop; all else happens in the engine.

    Args:
        loop: Runs it.
        to_engine: Posts a step to the engine.
        function: Is called without arguments; awaited if what it returns is awaitable.
    """

    __slots__ = ("_context", "_error", "_function", "_is_cancelled", "_loop", "_task", "_to_engine", "_value", "ended",
                 "has_begun")  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, to_engine: Callable[[Step], None], function: Callable[[], Any]
    ) -> None:
        self._loop = loop
        self._to_engine = to_engine
        self._function = function
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self.has_begun = False
        self.ended = trio.Event()

    def begin(self) -> None:
        """Calls the function, unless it was cancelled before."""
        if self._is_cancelled:
            return
        self.has_begun = True
        try:
            self._value = self._context.run(self._function)
            if inspect.isawaitable(self._value):
                self._task = self._loop.create_task(_awaited(self._value), context=self._context)
                self._value = None
                self._task.add_done_callback(self._task_ended)
                return
        except Exception as error:
            self._error = error
        except BaseException:
            # An interrupt and SystemExit belong to the program, and leave its loop.
            self._error = LoopClosed(NEVER_ENDED)
            self._end()
            raise
        self._end()

    def cancel(self) -> None:
        """Cancels the function; it may go on all the same."""
        if self._task is not None:
            self._task.cancel()

    def forget(self) -> None:
        """Keeps a function from beginning that has not."""
        self._is_cancelled = True

    def loop_closed(self) -> None:
        """Ends the waiting for it: it will never end."""
        if not self.ended.is_set():
            self._error = LoopClosed(NEVER_ENDED)
            self.ended.set()

    def unwrap(self) -> Any:
        """Returns what the function has returned, or raises what it has raised."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            # The frames of its traceback would keep it.
            del error

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._error = LoopClosed(NEVER_ENDED)
        else:
            error = task.exception()
            if error is None:
                self._value = task.result()
            else:
                self._error = error if isinstance(error, Exception) else LoopClosed(NEVER_ENDED)
        self._task = None
        self._end()

    def _end(self) -> None:
        try:
            self._to_engine(self.ended.set)
        except EngineStopped:
            log.debug("the result of a function was dropped: the engine has ended")


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
