"""A call that a program makes to the engine from outside of its thread, and the two sides that take part in it.

This module loads neither asyncio nor the engine's thread, because plain servers use parts of it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from mcp_actors.errors import EngineStopped
from mcp_actors.errors.protocol import see_page

__all__ = ["Bridge", "BridgedCall", "calling_bridge", "function_name", "refuse_asyncio"]

T = TypeVar("T")


class Engine(Protocol):
    """The side of the engine: see `mcp_actors.bridges.engine_thread.EngineThread`."""

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` in the engine's loop soon, in order; raises `EngineStopped` if it has ended."""

    def start_call(self, call: BridgedCall[Any]) -> None:
        """Runs ``call`` soon, in a task of its own; a step. Raises ``RuntimeError`` if no task is started any more."""

    def stopped(self) -> EngineStopped:
        """Returns the error that says why it has ended."""


class Bridge(Protocol):
    """The side of the program: a loop, or a thread."""

    @property
    def engine(self) -> Engine:
        """The engine that it leads to."""

    def post(self, step: Callable[[], object]) -> None:
        """Runs ``step`` on the side of the program soon, in order; raises `LoopClosed` if nothing runs there."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the program, from the engine: on the side of the program, awaited if it is async."""


calling_bridge: ContextVar[Bridge | None] = ContextVar("calling_bridge", default=None)
"""In the engine: the bridge over which the running task was called, in all tasks that come of it; else ``None``."""


class BridgedCall(ABC, Generic[T]):
    """One call of an async function in the engine, with the context variables of its caller.

    ``begin`` and ``cancel`` are steps of the engine. It calls ``deliver`` exactly once, whatever happens; ``unwrap``
    gives the result from then on. Each kind of bridge has a subclass.
    """

    __slots__ = (
        "_has_begun",
        "args",
        "bridge",
        "context",
        "error",
        "function",
        "has_value",
        "scope",
        "value",
    )

    value: T

    def __init__(self, bridge: Bridge, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self.bridge = bridge
        self.function = function
        self.args = args
        self.context: Context = copy_context()
        self.scope: trio.CancelScope | None = None
        """The scope of the task that runs it, while one does."""
        self.error: BaseException | None = None
        self.has_value = False
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<BridgedCall {function_name(self.function)}>"

    @abstractmethod
    def deliver(self) -> None:
        """Tells the caller, from the engine, that the call has ended. Must not raise."""

    def begin(self) -> None:
        """Starts the call."""
        if self._has_begun:
            # It was cancelled before.
            return
        self._has_begun = True
        try:
            self.bridge.engine.start_call(self)
        except RuntimeError:
            # The nursery takes nothing any more.
            self.deliver()

    def cancel(self) -> None:
        """Cancels the call, which ends then as soon as it can."""
        if self.scope is not None:
            self.scope.cancel(reason="the caller was cancelled")
        elif not self._has_begun:
            self._has_begun = True
            self.deliver()

    def cancel_soon(self) -> None:
        """Cancels the call from any thread."""
        with suppress(EngineStopped):
            self.bridge.engine.post(self.cancel)

    def unwrap(self) -> T:
        """Returns the result, or raises it, and forgets it: the frames of its traceback would keep an error otherwise.

        Raises:
            EngineStopped: The engine has ended before the call did.
            Exception: What the function has raised.
        """
        if self.has_value:
            return self.value
        error, self.error = self.error, None
        try:
            raise error or self.bridge.engine.stopped()
        finally:
            del error


# Characters of a name that are shown.
_MOST_SHOWN = 80


def function_name(function: Any) -> str:
    """Returns the name of a callable, and nothing of its arguments or of the object that it belongs to.

    Those may be secrets, and the ``repr`` of a partial or of a bound method has them in it.
    """
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name[:_MOST_SHOWN]


def refuse_asyncio(what: str, instead: str) -> None:
    """Does nothing where no asyncio loop runs.

    Args:
        what: The expression that would block the loop until it ends.
        instead: The one that does not.

    Raises:
        RuntimeError: An asyncio loop runs in this thread.
    """
    # No loop runs where the module was never imported, and importing it takes longer than many servers take to start.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{what} would block the asyncio loop that runs here: use '{instead}'; {see_page('asyncio')}"
    )
