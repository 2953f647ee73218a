"""The thread in which the engine runs for programs that do not run on Trio: one for the whole process.

It is started at first use, and stopped at the interpreter's exit. It knows nothing of asyncio: a loop that is blocked,
closed or gone costs the engine nothing, and a program may have as many loops as it likes, one after the other or at
the same time.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Protocol

import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.call_pool import CallPool
from mcp_actors.bridges.step_queue import Step, StepQueue
from mcp_actors.bridges.wake_ups import WakeUps
from mcp_actors.errors import EngineStopped
from mcp_actors.logging import log
from mcp_actors.supervision import Containment, start_again
from mcp_actors.task_kinds import BRIDGED_STEP, LOOP_WATCH

__all__ = ["EngineThread", "WatchedLoop", "engine_thread"]

# Seconds that everything in the engine has to end when the interpreter exits.
STOP_TIME = 5.0
# Seconds between two looks at whether the loops of the program are still there.
LOOK_AGAIN = 0.5


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
        """What is looked at again and again. Anybody adds to it, from any thread; only the engine takes from it."""
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
            # Nothing else ends it. Whoever has learnt of that may begin another one at once.
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

        For the exit of the interpreter: nobody waits for results any more.
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
        # Before the loop has begun there is nobody to wake: it takes the steps as soon as it begins.
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
            # A thread that is started now would be stopped by nobody.
            raise EngineStopped(False)
        engine = EngineThread()
        # Whatever interrupts the start, nothing is left of an engine that nobody knows.
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
