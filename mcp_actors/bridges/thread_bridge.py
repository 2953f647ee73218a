"""The bridge between the engine and a thread without a loop, which waits for each of its calls."""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import outcome
import trio

from mcp_actors.bridges.bridged_call import BridgedCall
from mcp_actors.bridges.engine_thread import EngineThread, engine_thread
from mcp_actors.errors import EngineStopped, LocalProtocolError, LoopClosed

__all__ = ["ThreadBridge"]

# Seconds that a call has to end in the engine when its caller was interrupted.
CANCEL_TIME = 5.0
# Seconds between two looks at whether the engine is still there.
LOOK_AGAIN = 1.0

T = TypeVar("T")
Step = Callable[[], object]


class ThreadBridge:
    """Calls the engine from a thread that waits; while it waits, functions of the program run in that thread."""

    def __init__(self) -> None:
        self.engine: EngineThread = engine_thread()
        self._steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._result: outcome.Outcome[Any] | None = None

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Awaits ``function(*args)`` in the engine, while this thread waits. One call for each object.

        Interrupted by ``KeyboardInterrupt``, it cancels the call there, and waits until it has ended.

        Raises:
            EngineStopped: The interpreter exits.
            LocalProtocolError: This is the engine's own thread, which must not wait for itself.
            Exception: What ``function`` raises.
        """
        if self.engine.is_current:
            raise LocalProtocolError("this runs in the engine itself: use 'await' with mcp_actors.Client")

        def deliver(result: outcome.Outcome[T]) -> None:
            self._steps.put(lambda: setattr(self, "_result", result))

        call = BridgedCall(self.engine, self, function, args, deliver)
        self.engine.post(call.begin)
        try:
            self._wait(None)
        except BaseException:
            self.engine.post(call.cancel)
            self._wait(CANCEL_TIME)
            raise
        assert self._result is not None
        value: T = self._result.unwrap()
        return value

    def post(self, step: Step) -> None:
        """Runs ``step`` in the waiting thread; raises `LoopClosed` when it waits no longer."""
        if self._result is not None:
            raise LoopClosed("the call that this belongs to has ended")
        self._steps.put(step)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the program: in the waiting thread, or awaited in the engine if it is async.

        Raises:
            LoopClosed: The thread waits no longer.
            Exception: What the function raises.
        """
        ended = trio.Event()
        result: list[outcome.Outcome[Any]] = []

        def step() -> None:
            result.append(outcome.capture(function, *args))
            self.engine.post(ended.set)

        self.post(step)
        await ended.wait()
        value = result[0].unwrap()
        return await value if hasattr(type(value), "__await__") else value

    def _wait(self, seconds: float | None) -> None:
        waited = 0.0
        while self._result is None and (seconds is None or waited < seconds):
            try:
                self._steps.get(timeout=LOOK_AGAIN)()
            except queue.Empty:
                waited += LOOK_AGAIN
                if self.engine.has_ended:
                    raise EngineStopped(self.engine.is_forked) from None
