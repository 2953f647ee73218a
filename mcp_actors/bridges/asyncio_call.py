"""A call of a function in an asyncio loop, for which a Trio task waits: of any loop, in any Trio loop.

Programs that have no asyncio loop use the engine's own (`AsyncioThread`). It runs in a daemon thread, which is started
at first use and stopped at the interpreter's exit. A function that blocks it stops the other functions in it, and
nothing else.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

import outcome
import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import Bridge, function_name
from mcp_actors.bridges.steps import StepQueue, TrioSteps
from mcp_actors.errors import CallCancelled, LoopClosed
from mcp_actors.supervision.containment import TaskKind, is_cancelled, start, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ASYNCIO_LIFESPAN, ASYNCIO_REQUEST

__all__ = ["AsyncioCall", "AsyncioLoop", "AsyncioThread", "asyncio_loop_of", "entered_in_loop"]

# Seconds that a function has to end in its loop once it was cancelled; then it is abandoned.
CANCEL_TIME = 5.0
# Seconds that a context manager has to end once it is left; then it is cancelled.
LEAVE_TIME = 10.0
# Seconds that everything in the loop has to end when the interpreter exits.
STOP_TIME = 5.0

T = TypeVar("T")


class AsyncioLoop(Protocol):
    """A loop of the program, or of the engine."""

    loop: asyncio.AbstractEventLoop

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` in the loop soon, in order; raises `LoopClosed` if the loop is closed."""


class AsyncioCall:
    """One call of an async function in an asyncio loop, made in Trio, where a task waits for it in `result`.

    The function sees the context variables of the task that makes the call. While it runs it may have Trio do
    something for it, by `in_trio`.

    Args:
        loop: Runs it.
    """

    def __init__(self, loop: AsyncioLoop) -> None:
        self._loop = loop
        self.context = copy_context()
        """The context variables that the function begins with."""
        self._steps = TrioSteps.of_running_loop()
        self._thread: int | None = None
        self._task: asyncio.Task[outcome.Outcome[Any]] | None = None
        self._is_cancelled = False
        self._woken = trio.Event()
        self._requests: list[_TrioRequest] = []
        self._unanswered: list[_TrioRequest] = []
        self._is_over = False
        self._result: outcome.Outcome[Any] | None = None

    def __repr__(self) -> str:
        state = "ended" if self._is_over else "running" if self._thread is not None else "waiting"
        return f"<AsyncioCall {state}>"

    def time(self) -> float:
        """Returns the time of the loop, in seconds."""
        return self._loop.loop.time()

    # -- in Trio -----------------------------------------------------------------------------------------------------

    async def result(self, function: Callable[..., Awaitable[Any]], /, *args: Any, **options: Any) -> Any:
        """Runs ``function(*args, **options)``, once, and returns what it returns.

        Cancelled, it cancels the function and waits until it has ended, for `CANCEL_TIME` seconds at most.

        Raises:
            LoopClosed: The loop is closed, or the program has cancelled the function's task.
            Exception: What the function raises.
        """
        # The function's context leads back to this, which must not keep it.
        self._loop.post(partial(self._begin, partial(function, *args, **options)))
        try:
            await self._woken.wait()
            if self._result is None:
                await self._serve_requests()
        except BaseException:
            with suppress(LoopClosed):
                self._loop.post(self._cancel)
            # Behind that, so that the function is cancelled, and does not take it for an error of what it has asked.
            self._end_requests()
            await self._abandon(function)
            self._result = None
            raise
        self._end_requests()
        return self._taken_result().unwrap()

    def _taken_result(self) -> outcome.Outcome[Any]:
        """Returns the result, and forgets it: the frames of an error's traceback would keep it otherwise."""
        result, self._result = self._result, None
        assert result is not None
        if isinstance(result, outcome.Error) and isinstance(result.error, asyncio.CancelledError):
            raise LoopClosed("the program has cancelled the function's asyncio task, or the loop has ended")
        return result

    async def _serve_requests(self) -> None:
        async with trio.open_nursery() as nursery:
            while self._result is None:
                requests, self._requests = self._requests, []
                for each in requests:
                    each.begin(nursery)
                self._woken = trio.Event()
                await self._woken.wait()
            nursery.cancel_scope.cancel(reason="the function has ended")

    def _end_requests(self) -> None:
        self._is_over = True
        for each in (*self._unanswered, *self._requests):
            each.refuse()
        self._unanswered.clear()
        self._requests.clear()

    async def _abandon(self, function: Callable[..., Any]) -> None:
        with trio.move_on_after(CANCEL_TIME, shield=True) as patience:
            # Nothing ends in a loop that is stopped; it may go on later, or be closed.
            while self._result is None and self._loop.loop.is_running():
                self._woken = trio.Event()
                await self._woken.wait()
        if patience.cancelled_caught:
            log.warning("a function goes on although it was cancelled", function=function_name(function))

    def _arrived(self, request: _TrioRequest) -> None:
        if self._is_over:
            request.refuse()
        else:
            self._requests.append(request)
            self._woken.set()

    def _ended(self, result: outcome.Outcome[Any]) -> None:
        self._result = result
        self._woken.set()

    # -- in any thread -----------------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs the function."""
        return self._loop.loop

    @property
    def thread(self) -> int | None:
        """The thread of the loop, ``None`` before the function has begun."""
        return self._thread

    @property
    def is_current(self) -> bool:
        """Whether its own task, and not one that the function has started, is what the loop runs at the moment."""
        return self._task is not None and asyncio.current_task(self.loop) is self._task

    # -- in the function's loop --------------------------------------------------------------------------------------

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of the function's loop."""
        return self._thread == threading.get_ident()

    async def in_trio(self, method: Callable[[], Awaitable[T]]) -> T:
        """Awaits ``method()`` in Trio, for the function. For its loop.

        Cancelled, it cancels ``method``, and waits until that has ended.

        Raises:
            CallCancelled: The call of the function has ended.
            Exception: What ``method`` raises.
        """
        request = _TrioRequest(self._loop, method, self._unanswered)
        try:
            self._steps.post(partial(self._arrived, request))
        except LoopClosed:
            raise CallCancelled("the loop of the server has ended") from None
        try:
            await request.taken
        except asyncio.CancelledError:
            self._steps.post(request.cancel)
            await request.until_taken()
            raise
        value: T = request.pop().unwrap()
        return value

    def _begin(self, function: Callable[[], Awaitable[Any]]) -> None:
        if self._is_cancelled:
            self._report(outcome.Error(asyncio.CancelledError()))
            return
        self._thread = threading.get_ident()
        self._task = self._loop.loop.create_task(_outcome_of(function), context=self.context)
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[outcome.Outcome[Any]]) -> None:
        self._task = None
        result = outcome.capture(task.result)
        self._report(result.value if isinstance(result, outcome.Value) else result)

    def _report(self, result: outcome.Outcome[Any]) -> None:
        try:
            self._steps.post(partial(self._ended, result))
        except LoopClosed:
            log.debug("the result of a call was dropped: its loop has ended", call=self)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel("the call was cancelled")


class _TrioRequest:
    """Something that Trio does for a function in an asyncio loop, which waits for it.

    Args:
        loop: That of the function.
        method: Is awaited in Trio.
        unanswered: Takes this if it is cancelled; the end of the function's call refuses it then.
    """

    def __init__(
        self, loop: AsyncioLoop, method: Callable[[], Awaitable[Any]], unanswered: list[_TrioRequest]
    ) -> None:
        self._loop = loop
        self._method = method
        self._unanswered = unanswered
        self._scope = trio.CancelScope()
        self._result: outcome.Outcome[Any] | None = None
        self.taken: asyncio.Future[None] = loop.loop.create_future()

    # -- in Trio -----------------------------------------------------------------------------------------------------

    def begin(self, nursery: trio.Nursery) -> None:
        """Starts its task."""
        start(nursery, ASYNCIO_REQUEST, self._run)

    def cancel(self) -> None:
        """Cancels its task."""
        self._scope.cancel(reason="the function has cancelled it")

    def refuse(self) -> None:
        """Ends the waiting of the function: its call has ended."""
        self._deliver(outcome.Error(_nobody_waits()))

    async def _run(self) -> None:
        result: outcome.Outcome[Any] = outcome.Error(_nobody_waits())
        try:
            with self._scope:
                result = outcome.Value(await self._method())
        except Exception as error:
            result = outcome.Error(error)
        except BaseException:
            if is_cancelled():
                self._unanswered.append(self)
            else:
                self.refuse()
            raise
        self._deliver(result)
        # The frames of an error's traceback have it as a local: unless they drop it, it waits for the collector.
        del result

    def _deliver(self, result: outcome.Outcome[Any]) -> None:
        try:
            self._loop.post(partial(self._take, result))
        except LoopClosed:
            log.debug(
                "the result of a call was dropped: its loop has ended", method=function_name(self._method)
            )

    # -- in the function's loop --------------------------------------------------------------------------------------

    def _take(self, result: outcome.Outcome[Any]) -> None:
        self._result = result
        if not self.taken.done():
            self.taken.set_result(None)

    async def until_taken(self) -> None:
        """Waits for the result in a task that is cancelled, and may be cancelled again meanwhile."""
        while self._result is None:
            self.taken = self._loop.loop.create_future()
            try:
                await self.taken
            except asyncio.CancelledError:
                continue

    def pop(self) -> outcome.Outcome[Any]:
        """Returns the result, and forgets it: the frames of an error's traceback would keep it otherwise."""
        result, self._result = self._result, None
        assert result is not None
        return result


async def _outcome_of(function: Callable[[], Awaitable[Any]]) -> outcome.Outcome[Any]:
    try:
        return outcome.Value(await function())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # SystemExit, too: it ends this call, and not the loop of the program.
        return outcome.Error(error)


def _nobody_waits() -> CallCancelled:
    return CallCancelled("the call has ended: nobody waits for its result any more")


@asynccontextmanager
async def entered_in_loop(
    loop: AsyncioLoop,
    manager: AbstractAsyncContextManager[T],
    *,
    kind: TaskKind = ASYNCIO_LIFESPAN,
    call: AsyncioCall | None = None,
) -> AsyncIterator[T]:
    """Enters a context manager of asyncio in its loop, and leaves it there after the block.

    What it raises is raised here, and cancels the block.

    Args:
        loop: The loop.
        manager: The context manager. A lifespan does not learn how the block has ended; one with a ``call`` does.
        kind: The kind of the task that holds it.
        call: The call in the loop, where its context variables are needed before.
    """
    held = _HeldInLoop(loop, manager, call or AsyncioCall(loop))
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        nursery.cancel_scope.cancel(reason="the context manager has failed")

    async with trio.open_nursery() as nursery:
        value: T = await start_and_wait(nursery, kind, held.run, on_crash=failed)
        try:
            yield value
        except BaseException as error:
            held.leave(None if call is None else error)
            raise
        else:
            held.leave(None)
    if failures:
        raise failures[0]


class _HeldInLoop:
    """A context manager of asyncio that one task of its loop enters and leaves, for a Trio task that waits for it."""

    def __init__(
        self, loop: AsyncioLoop, manager: AbstractAsyncContextManager[Any], call: AsyncioCall
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._call = call
        self._error: BaseException | None = None
        self._scope = trio.CancelScope()
        self._task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
        self._is_left = asyncio.Event()

    async def run(self, *, task_status: trio.TaskStatus[Any]) -> None:
        """Holds it from the value that it gives until `leave`, in Trio."""
        self._task_status = task_status
        with self._scope:
            await self._call.result(self._hold)
        if self._scope.cancelled_caught:
            log.warning("a context manager was cancelled, because it did not end", seconds=LEAVE_TIME)

    def leave(self, error: BaseException | None) -> None:
        """Has it left soon, and learn what has ended the block."""
        cancelled = isinstance(error, trio.Cancelled)
        self._error = asyncio.CancelledError("the call was cancelled") if cancelled else error
        self._scope.deadline = trio.current_time() + LEAVE_TIME
        try:
            self._loop.post(self._is_left.set)
        except LoopClosed:
            self._scope.cancel(reason="the loop is closed")

    async def _hold(self) -> None:
        try:
            async with self._manager as value:
                await self._call.in_trio(partial(self._entered, value))
                await self._is_left.wait()
                if self._error is not None:
                    raise self._error
        except BaseException as error:
            # What has ended the block leaves it there.
            if error is not self._error:
                raise
        finally:
            self._error = None

    async def _entered(self, value: Any) -> None:
        # Where the start was cancelled, Trio lets nobody have the task: behind a shield it would never end.
        await trio.lowlevel.checkpoint_if_cancelled()
        # From here on it ends by `leave` alone: calls that were cancelled still need what it has opened.
        self._scope.shield = True
        self._task_status.started(value)


# -- the engine's own loop -------------------------------------------------------------------------------------------

Step = Callable[[], object]


class AsyncioThread:
    """An asyncio loop in a daemon thread. Nothing but the end of the program ends it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.is_forked = False
        """Whether this process is a child of the one that has the thread."""
        self._steps = StepQueue(lambda *_: self.loop.call_soon_threadsafe(self._steps.take))
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="mcp-actors-asyncio", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "forked" if self.is_forked else "ended" if self.loop.is_closed() else "running"
        return f"<AsyncioThread {state}>"

    def post(self, step: Step) -> None:
        """Runs ``step``, which must not raise, in the loop soon. Legal from any thread.

        Raises:
            LoopClosed: The program ends, or this process is a fork of the one that has the loop.
        """
        if self.is_forked:
            raise LoopClosed("the asyncio loop belongs to the process that forked this one")
        try:
            self._steps.post(step)
        except RuntimeError:
            raise LoopClosed("the program ends, and the asyncio loop has stopped") from None

    def stop(self) -> None:
        """Cancels every task of the loop, and waits until it has ended, `STOP_TIME` seconds at most."""
        try:
            self.post(self._stop)
        except LoopClosed:
            return
        self._thread.join(STOP_TIME)

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        while not self._is_stopping:
            try:
                # A function may stop the loop, or raise SystemExit in a task of its own: others go on.
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue
        tasks = asyncio.all_tasks(loop)
        for each in tasks:
            each.cancel()
        loop.run_until_complete(_ended(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _stop(self) -> None:
        self._is_stopping = True
        self.loop.stop()


async def _ended(tasks: set[asyncio.Task[object]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_TIME)


def asyncio_loop_of(bridge: Bridge | None) -> AsyncioLoop:
    """Returns the loop for functions that need asyncio: that of the program, if it came over such a bridge, or ours."""
    return bridge if isinstance(bridge, AsyncioBridge) else _asyncio_thread()


_lock = threading.Lock()

_current: AsyncioThread | None = None


def _asyncio_thread() -> AsyncioThread:
    global _current
    thread = _current
    if thread is None:
        with _lock:
            thread = _current
            if thread is None:
                thread = _current = AsyncioThread()
                atexit.register(thread.stop)
    return thread


def _forget_after_fork() -> None:
    # The thread is in the parent alone, and the lock may be held by another thread of it.
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        atexit.unregister(_current.stop)
        _current.is_forked = True
        _current = None


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
