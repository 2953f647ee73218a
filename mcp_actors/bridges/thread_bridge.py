"""The bridge between the engine and a thread without a loop, which waits for each of its calls.

Plain callbacks of such programs run in threads of their own (`CallbackThreads`).
"""

from __future__ import annotations

import inspect
import queue
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.engine_thread import EngineThread, engine_thread
from mcp_actors.bridges.steps import Step
from mcp_actors.errors import EngineStopped, LocalProtocolError, LoopClosed
from mcp_actors.supervision.logging import log

__all__ = ["CallbackThreads", "ThreadBridge", "place_of_thread"]

# Seconds that a call has to end in the engine when its caller was interrupted.
CANCEL_TIME = 5.0
# Seconds between two looks at whether the engine is still there.
LOOK_AGAIN = 1.0
# Callbacks of one kind that run at the same time.
MOST = 40
# More of them that wait for calls of their own: a callback that calls what calls it back has no other end.
MOST_WAITING = 200

T = TypeVar("T")

place_of_thread: ContextVar[Callable[..., Awaitable[Any]] | None] = ContextVar(
    "place_of_thread", default=None
)
"""Awaits a function in the engine for a thread that has one of few places; ``None`` in all other threads."""


class ThreadBridge:
    """Calls the engine from a thread that waits; while it waits, functions of the program run in that thread."""

    __slots__ = ("_has_ended", "_steps", "engine")

    def __init__(self) -> None:
        self.engine: EngineThread = engine_thread()
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._has_ended = False

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` in the engine, while this thread waits. One call for each object.

        Interrupted by ``KeyboardInterrupt``, or by what a function raises that the engine has called here and that
        ends the program, it cancels the call there, and waits until it has ended, `CANCEL_TIME` seconds at most.

        Raises:
            EngineStopped: The interpreter exits, the engine has failed, or this process is a fork. A daemon thread
                waits for the end of the process instead when the interpreter exits.
            LocalProtocolError: This is the engine's own thread, which must not wait for itself.
            Exception: What ``function`` raises.
        """
        engine = self.engine
        if engine.is_current:
            raise LocalProtocolError("this runs in the engine itself: use 'await' with mcp_actors.Client")
        place = place_of_thread.get()
        if place is not None:
            function, args = place, (function, *args)
        call = _ThreadCall(self, function, args)
        try:
            engine.post(call.begin)
            self._wait(None)
        except EngineStopped:
            if engine.leaves_thread_waiting():
                _wait_for_the_end()
            raise
        except BaseException:
            call.cancel_soon()
            self._wait(CANCEL_TIME)
            call.error = None
            raise
        return call.unwrap()

    def ended(self) -> None:
        """Ends the waiting: the result is there. Called in the engine."""
        self._has_ended = True
        self.engine.wake_ups.add(partial(self._steps.put, _nothing))

    def post(self, step: Step) -> None:
        """Runs ``step`` in the waiting thread.

        Raises:
            LoopClosed: It waits no longer.
        """
        if self._has_ended:
            raise LoopClosed("the call that this belongs to has ended")
        self._steps.put(step)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the program: in the waiting thread, or awaited in the engine if it is async.

        Cancelled, it waits no longer; a function that has begun goes on.

        Raises:
            LoopClosed: The thread waits no longer, or the function ends the program.
            Exception: What the function raises.
        """
        run = _ThreadFunction(self.engine, function, args)
        self.post(run.begin)
        await run.ended.wait()
        value = run.unwrap()
        return await value if inspect.isawaitable(value) else value

    def _wait(self, seconds: float | None) -> None:
        waited = 0.0
        while not self._has_ended and (seconds is None or waited < seconds):
            try:
                step = self._steps.get(timeout=LOOK_AGAIN)
            except queue.Empty:
                waited += LOOK_AGAIN
                if self.engine.has_ended:
                    raise self.engine.stopped() from None
            else:
                step()


class _ThreadCall(BridgedCall[T]):
    """A call for which a thread waits."""

    __slots__ = ("_thread",)

    def __init__(
        self, bridge: ThreadBridge, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]
    ) -> None:
        super().__init__(bridge, function, args)
        self._thread = bridge

    def deliver(self) -> None:
        if not self._thread.engine.is_exiting:
            self._thread.ended()


class _ThreadFunction:
    """A function of the program that runs in its waiting thread for the engine."""

    __slots__ = ("_args", "_engine", "_error", "_function", "_value", "ended")

    def __init__(self, engine: EngineThread, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._engine = engine
        self._function = function
        self._args = args
        self._value: Any = None
        self._error: Exception | None = None
        self.ended = trio.Event()

    def begin(self) -> None:
        try:
            self._value = self._function(*self._args)
        except Exception as error:
            self._error = error
        except BaseException:
            # An interrupt and SystemExit belong to the program, and end the waiting.
            self._error = LoopClosed("the function ended the program, or was interrupted")
            self._end()
            raise
        self._end()

    def unwrap(self) -> Any:
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            # The frames of its traceback would keep it.
            del error

    def _end(self) -> None:
        self._engine.post(self.ended.set)


def _nothing() -> None:
    pass


def _wait_for_the_end() -> None:
    log.debug("a daemon thread waits for the end of the process")
    while True:
        time.sleep(LOOK_AGAIN)


class CallbackThreads:
    """Runs one kind of callback in threads. Its methods belong to the engine.

    A callback that waits for a call of its own gives its place to others meanwhile: it may wait for one of them.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MOST)

    def __repr__(self) -> str:
        return f"<CallbackThreads {self._limiter.borrowed_tokens} of {self._limiter.total_tokens}>"

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what ``function(*args)`` returns; cancelled, it leaves the thread to itself."""
        token = place_of_thread.set(self.lend)
        try:
            return await trio.to_thread.run_sync(
                partial(function, *args), abandon_on_cancel=True, limiter=self._limiter
            )
        finally:
            place_of_thread.reset(token)

    async def lend(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` for a thread that waits for it.

        Raises:
            LocalProtocolError: `MOST_WAITING` of them wait already.
            Exception: What the function raises.
        """
        # The tasks that come of it are not in the thread.
        place_of_thread.set(None)
        limiter = self._limiter
        if limiter.total_tokens >= MOST + MOST_WAITING:
            raise LocalProtocolError(
                f"{MOST_WAITING} callbacks wait for calls that they have made: does one lead to another for ever?"
            )
        limiter.total_tokens += 1
        try:
            return await function(*args)
        finally:
            limiter.total_tokens -= 1
