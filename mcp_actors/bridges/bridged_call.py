"""A call that a program makes to the engine from outside of its thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

import outcome
import trio

from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.errors import EngineStopped
from mcp_actors.supervision import start
from mcp_actors.task_kinds import BRIDGED_CALL

__all__ = ["Bridge", "BridgedCall", "calling_bridge"]


class Bridge(Protocol):
    """The side of the program: a loop, or a thread."""

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` on the side of the program soon, in order; raises `LoopClosed` if nothing runs there."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the program, from the engine: on the side of the program, awaited if it is async."""


calling_bridge: ContextVar[Bridge | None] = ContextVar("calling_bridge", default=None)
"""In the engine: the bridge over which the running task was called, in all tasks that come of it; else ``None``."""


class BridgedCall:
    """One call of an async function in the engine. ``begin`` and ``cancel`` are steps of the engine.

    The caller's context variables are those of the task.

    Args:
        engine: Runs it.
        bridge: Where it comes from.
        function: Is awaited with ``args`` in the engine.
        deliver: Is called in the engine with the outcome, exactly once, whatever happens. Must not raise.
    """

    __slots__ = ("_args", "_bridge", "_context", "_deliver", "_engine", "_function", "_scope")

    def __init__(
        self,
        engine: EngineThread,
        bridge: Bridge,
        function: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        deliver: Callable[[outcome.Outcome[Any]], object],
    ) -> None:
        self._engine = engine
        self._bridge = bridge
        self._function = function
        self._args = args
        self._deliver = deliver
        self._context: Context = copy_context()
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<BridgedCall {getattr(self._function, '__qualname__', self._function)!s:.80}>"

    def begin(self) -> None:
        """Starts the task."""
        try:
            self._context.run(start, self._engine.nursery, BRIDGED_CALL, self._run)
        except RuntimeError:
            # The nursery takes nothing any more.
            self._deliver(outcome.Error(EngineStopped(False)))

    def cancel(self) -> None:
        """Cancels the task; the outcome is delivered when it has ended."""
        self._scope.cancel(reason="the caller was cancelled")

    async def _run(self) -> None:
        calling_bridge.set(self._bridge)
        result: outcome.Outcome[Any] = outcome.Error(EngineStopped(False))
        try:
            with self._scope:
                result = outcome.Value(await self._function(*self._args))
        except trio.Cancelled:
            raise
        except BaseException as error:
            # It belongs to the caller, whatever it is.
            result = outcome.Error(error)
        finally:
            self._deliver(result)
            # The frames of an error's traceback have it as a local: unless they drop it, it waits for the collector.
            del result
