"""Runs the functions that a client's user gave it, so that what goes wrong in one costs the one call it was made for.

A callback may raise anything, raise a `trio.Cancelled` that it kept, or leave a cancel scope or a nursery open. Of all
this only an `Exception` leaves `guarded`; the log names the callback. `KeyboardInterrupt` passes, and so does a
cancellation of the task that the callback runs in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

import attrs
import trio

from mcp_actors._actors.task_pool import INNERMOST_SCOPE, abandon_nurseries
from mcp_actors.errors import McpError
from mcp_actors.logging import log
from mcp_actors.supervision import crash_in

__all__ = ["Guard", "guarded"]


@attrs.define(eq=False)
class Guard:
    """A context manager round the code of a user; ``callback`` is its name for the log and for errors.

    With ``contains`` nothing leaves it that is to be contained; without, an exception leaves it as it is and anything
    else as a `RuntimeError`.
    """

    callback: str
    contains: bool = False
    _status: Any = attrs.field(default=None, init=False)
    _nurseries: int = attrs.field(default=0, init=False)

    def __enter__(self) -> None:
        task = trio.lowlevel.current_task()
        self._status = getattr(task, INNERMOST_SCOPE, None)
        self._nurseries = len(task.child_nurseries)

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        left_open = self._close_scopes_left_open()
        if error is None:
            if not left_open:
                return False
            failure: BaseException = RuntimeError(f"{self.callback} left a cancel scope or a nursery open")
        else:
            crash = crash_in(error)
            if crash is None:
                return False
            failure = crash
        if not isinstance(failure, McpError):
            log.error("a callback failed", callback=self.callback, exc_info=failure)
        if self.contains:
            return True
        if failure is error and isinstance(error, Exception):
            return False
        raise failure if error is None else RuntimeError(f"{self.callback} raised {error!r}") from error

    def _close_scopes_left_open(self) -> bool:
        """Whether there were any. Trio offers no public way to see the innermost scope of a task."""
        task = trio.lowlevel.current_task()
        if getattr(task, INNERMOST_SCOPE, None) is self._status:
            return False
        abandon_nurseries(task, self._nurseries)
        while task._cancel_status is not None and task._cancel_status is not self._status:
            task._cancel_status._scope.__exit__(None, None, None)
        return True


def guarded(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``callback``, sync or async, inside a `Guard` each time it is called."""

    def call(*args: Any) -> Any:
        with Guard(name):
            outcome = callback(*args)
        return _awaited(name, outcome) if inspect.isawaitable(outcome) else outcome

    return call


async def _awaited(name: str, outcome: Any) -> Any:
    with Guard(name):
        return await outcome
