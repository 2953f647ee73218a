"""The thread in which the engine runs for programs that do not run on Trio: one for the whole process.

It is started at first use, and stopped at the interpreter's exit. It knows nothing of asyncio: a loop that is
blocked, closed or gone costs the engine nothing, and a program may have as many loops as it likes, one after the
other or at the same time. What belongs to a loop (`Belongings`) ends with it: calls in flight, functions that run
there, clients and servers.

A task of its own for each call would cost more than all else that a bridge does. So a task that has ended its call is
kept for another one (`CallPool`). A call cannot notice this: it runs in the context of its caller, inside a cancel
scope that was not cancelled before. A task whose call was cancelled, or has left a cancel scope open, ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Protocol

import trio

from mcp_actors.bridges.bridged_call import BridgedCall, calling_bridge
from mcp_actors.bridges.steps import Step, StepQueue, WakeUps
from mcp_actors.errors import EngineStopped, LoopClosed, McpError
from mcp_actors.supervision.containment import INNERMOST_SCOPE, Containment, is_cancelled, start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import BRIDGED_CALL, BRIDGED_STEP, LOOP_END, LOOP_WATCH

__all__ = [
    "Belongings",
    "CallPool",
    "Closer",
    "Ending",
    "EngineThread",
    "Watchable",
    "WatchedLoop",
    "engine_thread",
]

# Seconds that everything in the engine has to end when the interpreter exits.
STOP_TIME = 5.0
# Seconds between two looks at whether the loops of the program are still there.
LOOK_AGAIN = 0.5
# Seconds that each client or server of a closed loop has to close; then it is cancelled.
CLOSE_TIME = 5.0
# Tasks that wait for calls to come: as many as calls are in flight in a busy program.
MAX_IDLE = 128


class WatchedLoop(Protocol):
    """Everything that belongs to a loop of the program, which may be closed without a word."""

    def look(self) -> bool:
        """Called in the engine, again and again: ends it if its loop is closed. Returns whether to look again."""

    def engine_ended(self) -> None:
        """Called when the engine has crashed, in its thread, or in the child after a fork."""


class EngineThread:
    """A Trio loop in a daemon thread. `engine_thread` returns the one of this process."""

    nursery: trio.Nursery
    """Where calls run, and what they leave behind: clients and servers. For steps, which run in the engine's thread."""

    def __init__(self) -> None:
        self.is_forked = False
        """Whether this process is a child of the one that has the thread."""
        self.is_exiting = False
        """Whether the interpreter exits."""
        self.has_crashed = False
        """Whether it has ended by a failure."""
        self.watched: set[WatchedLoop] = set()
        """What is looked at again and again. Any thread may add to it; only the engine takes from it."""
        self._has_ended = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._steps = StepQueue(self._wake)
        self.wake_ups = WakeUps()
        """For steps and tasks of the engine: wakes loops of the program when the engine has nothing else to do."""
        self._calls: CallPool
        self._thread = threading.Thread(target=self._run, name="mcp-actors", daemon=True)

    def __repr__(self) -> str:
        state = "forked" if self.is_forked else "ended" if self._has_ended else "running"
        return f"<EngineThread {state}>"

    @classmethod
    def of_this_run(cls) -> EngineThread:
        """Returns the engine that runs in this thread; raises ``LookupError`` in any other Trio loop."""
        return _of_run.get()

    @property
    def is_current(self) -> bool:
        """Whether the caller is in the engine's thread."""
        return threading.current_thread() is self._thread

    @property
    def has_ended(self) -> bool:
        """Whether nothing that is posted will ever run."""
        return self._has_ended or self.is_forked or self.has_crashed

    def stopped(self) -> EngineStopped:
        """Returns the error that says why it has ended, or is about to."""
        if not (self.is_exiting or self.is_forked):
            # Nothing else ends it. A caller that learns of this may begin another one at once.
            self.has_crashed = True
        return EngineStopped(self.is_forked, self.has_crashed)

    def must_run(self) -> None:
        """Raises `EngineStopped` if the engine has ended: what was made in it is of no use with another one."""
        if self.has_ended:
            raise self.stopped()

    def leaves_thread_waiting(self) -> bool:
        """Whether the calling thread is never to learn that the engine has stopped: a daemon thread at the exit.

        Such a thread is abandoned then by the interpreter. If it woke up, and wrote what it has caught to a stderr that
        is being closed, it would end the interpreter by a fatal error.
        """
        return self.is_exiting and not self.is_forked and threading.current_thread().daemon

    def post(self, step: Step) -> None:
        """Runs ``step`` in the engine's loop soon; steps run in the order of their posting. Legal from any thread.

        Steps that are posted while the engine is busy are run together, for the price of one wake-up.

        Raises:
            EngineStopped: The interpreter exits, the engine has failed, or this process is a fork of the one that has
                the engine.
        """
        if self.has_ended:
            raise self.stopped()
        try:
            self._steps.post(step)
        except trio.RunFinishedError:
            raise self.stopped() from None

    def hold(self, step: Step) -> None:
        """As `post`, for a caller that holds several steps and calls `wake` behind them, soon and in any case.

        Raises:
            EngineStopped: As `post`.
        """
        if self.has_ended:
            raise self.stopped()
        self._steps.hold(step)

    def wake(self) -> None:
        """Has the engine run the steps that are held; does nothing if it has ended."""
        with suppress(trio.RunFinishedError):
            self._steps.wake()

    def start_call(self, call: BridgedCall[Any]) -> None:
        """Runs ``call`` soon, in a task of its own; a step. Raises ``RuntimeError`` if no task is started any more."""
        self._calls.start(call)

    def start(self) -> None:
        """Starts the thread, once. What is posted meanwhile runs when it has begun."""
        self._thread.start()

    def stop(self) -> None:
        """Cancels everything in the engine, and waits until it has ended, `STOP_TIME` seconds at most.

        For the exit of the interpreter, when results are not waited for any more.
        """
        self.end_soon()
        if not self.has_ended:
            self._thread.join(STOP_TIME)

    def end_soon(self) -> None:
        """Cancels everything in the engine, as `stop` does, and waits for nothing."""
        self.is_exiting = True
        with suppress(EngineStopped):
            self.post(lambda: self.nursery.cancel_scope.cancel(reason="the program ends"))

    def _wake(self, take: Step) -> None:
        # Before the loop has begun it cannot be woken; it takes the steps as soon as it begins.
        if self._token is not None:
            self._token.run_sync_soon(self._take_steps)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self.has_crashed = True
            log.error("the engine thread failed: what it ran is lost", exc_info=error)
        finally:
            self._has_ended = True
            self.wake_ups.flush()
        if self.has_crashed:
            for each in list(self.watched):
                each.engine_ended()

    async def _live(self) -> None:
        _of_run.set(self)
        trio.lowlevel.add_instrument(self.wake_ups)
        async with trio.open_nursery() as self.nursery:
            self._calls = CallPool(self.nursery)
            start_again(self.nursery, LOOP_WATCH, self._watch_loops)
            self._token = trio.lowlevel.current_trio_token()
            self._take_steps()
            await trio.sleep_forever()

    def _take_steps(self) -> None:
        with Containment(BRIDGED_STEP):
            self._steps.take()

    async def _watch_loops(self) -> None:
        while True:
            await trio.sleep(LOOK_AGAIN)
            # A loop that was stopped may hold some.
            self._take_steps()
            self._look_at_loops()

    def _look_at_loops(self) -> None:
        # A function of its own: a task that sleeps would keep the last of them in a variable.
        for each in list(self.watched):
            # What is added from here on, or while it looks, stays.
            self.watched.discard(each)
            if each.look():
                self.watched.add(each)


_of_run: trio.lowlevel.RunVar[EngineThread] = trio.lowlevel.RunVar("mcp_actors engine")

# A handler of signals may call in the middle of whatever the main thread does here.
_lock = threading.RLock()

_current: EngineThread | None = None


def engine_thread() -> EngineThread:
    """Returns the engine of this process, started if there is none yet, or the last one has failed.

    Legal from any thread.

    Raises:
        EngineStopped: The interpreter exits.
    """
    engine = _current
    if engine is not None and not (engine.has_crashed or engine.is_forked):
        return engine
    return _new_engine()


def _new_engine() -> EngineThread:
    global _current
    with _lock:
        engine = _current
        if engine is not None and not engine.has_crashed:
            return engine
        if not threading.main_thread().is_alive():
            # A thread that is started now would never be stopped.
            raise EngineStopped(False)
        engine = EngineThread()
        # Whatever interrupts the start, an engine without an owner does not stay behind.
        atexit.register(engine.stop)
        try:
            engine.start()
        except BaseException:
            engine.end_soon()
            raise
        known = _current
        if known is None or known.has_crashed:
            _current = known = engine
    if known is not engine:
        # A handler of signals has begun another one meanwhile.
        atexit.unregister(engine.stop)
        engine.stop()
    return known


def _forget_after_fork() -> None:
    # The thread is in the parent alone, and the lock may be held by another thread of it.
    global _current, _lock
    _lock = threading.RLock()
    engine, _current = _current, None
    if engine is not None:
        atexit.unregister(engine.stop)
        engine.is_forked = True
        # The fork may have been made in the middle of a loop, whose calls end as those of a failed engine do.
        for each in list(engine.watched):
            each.engine_ended()


if sys.platform != "win32":  # which has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


# -- the tasks of calls ----------------------------------------------------------------------------------------------


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
        # The values in the caller's context are not needed any more.
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


# -- what belongs to a loop ------------------------------------------------------------------------------------------

Closer = Callable[[], Awaitable[object]]


class Ending(Protocol):
    """A function of the program that the engine waits for."""

    def loop_closed(self) -> None:
        """Called in the engine: the function will never end."""


class Watchable(Protocol):
    """The loop, as far as it is watched."""

    def is_closed(self) -> bool:
        """Whether nothing will ever run there again. Called in the engine."""

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` in the loop soon, in order; raises `LoopClosed` if nothing runs there."""

    def wake(self) -> None:
        """Has the loop take the steps that were posted. The engine may have ended before it did so itself."""


class Belongings:
    """Everything in the engine that ends with one loop. The engine looks again and again whether the loop is closed.

    Args:
        engine: Where it is.
        loop: What it ends with.
    """

    def __init__(self, engine: EngineThread, loop: Watchable) -> None:
        self.calls: set[BridgedCall[Any]] = set()
        """The calls in flight: changed in the loop."""
        self.functions: set[Ending] = set()
        """The functions that run in the loop: changed in the engine."""
        self.closers: dict[Closer, None] = {}
        """Close the clients and servers of the loop, in the engine; in the order of their making."""
        self.is_watched = False
        self._engine = engine
        self._loop = loop

    def watch(self) -> None:
        """Has the engine look at the loop from now on. Called when something was added, if it is not `is_watched`."""
        self.is_watched = True
        self._engine.watched.add(self)

    def look(self) -> bool:
        """Ends everything if the loop is closed; see `mcp_actors.bridges.engine_thread.WatchedLoop`."""
        if self._loop.is_closed():
            self.is_watched = False
            self._end()
            return False
        # A thread that adds something looks at the mark afterwards, so that either side sees the other.
        self.is_watched = False
        if self.calls or self.functions or self.closers:
            self.is_watched = True
        return self.is_watched

    def engine_ended(self) -> None:
        """Has every call that waits in the loop raise `EngineStopped`. Called where the engine is not any more."""
        try:
            self._loop.post(self._deliver_all)
            self._loop.wake()
        except LoopClosed:
            log.debug("a loop has ended before it could learn that the engine has failed")

    def next_closer(self) -> Closer:
        """Returns what closes the last one of the clients and servers, and forgets it.

        Raises:
            KeyError: None is left.
        """
        return self.closers.popitem()[0]

    def _deliver_all(self) -> None:
        for call in list(self.calls):
            call.deliver()

    def _end(self) -> None:
        for call in list(self.calls):
            call.cancel()
        self.calls.clear()
        for function in list(self.functions):
            function.loop_closed()
        if self.closers:
            log.debug("a loop was closed before what was opened in it", left=len(self.closers))
            start(self._engine.nursery, LOOP_END, self._close)

    async def _close(self) -> None:
        while self.closers:
            closer = self.next_closer()
            with Containment(LOOP_END), trio.move_on_after(CLOSE_TIME):
                try:
                    await closer()
                except Exception as error:
                    log.debug("what a closed loop has left could not be closed in order", exc_info=error)
