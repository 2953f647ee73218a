"""The nursery of an ``async with`` block of this package, which notices when the block is left where it must not be.

Trio closes nurseries in the task that opened them, and in reverse order. A program that breaks this gets an internal
error of Trio from elsewhere, and ends. Here the nursery is given up before Trio notices, so that everything else of the
program goes on as if it had been closed.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from mcp_actors._actors.task_pool import INNERMOST_SCOPE
from mcp_actors._exception_groups import one_error
from mcp_actors.errors import ClosedElsewhere
from mcp_actors.logging import log

__all__ = ["BlockNursery"]


class BlockNursery:
    """A nursery that is opened by ``__aenter__`` and closed by ``__aexit__`` of ``owner``, a class of this package.

    Its tasks must end by themselves before it is closed, for one that is given up can no longer wait for them.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._opening: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._innermost: Any = None

    def __repr__(self) -> str:
        return f"<BlockNursery of {self._owner} {'open' if self._nursery else 'closed'}>"

    async def open(self) -> trio.Nursery:
        """Opens the nursery in the running task, inside everything that is open there."""
        self._opening = trio.open_nursery()
        self._nursery = await self._opening.__aenter__()
        self._innermost = getattr(self._nursery.parent_task, INNERMOST_SCOPE, None)
        return self._nursery

    @property
    def is_innermost(self) -> bool:
        """Whether it may be closed here: in the task that opened it, with nothing opened later still open."""
        task = trio.lowlevel.current_task()
        return (
            self._nursery is not None
            and task is self._nursery.parent_task
            and getattr(task, INNERMOST_SCOPE, None) is self._innermost
        )

    async def close(self) -> None:
        """Waits for the nursery's tasks and closes it; without one nothing happens.

        Raises:
            ClosedElsewhere: It may not be closed here. It was given up, and cannot be closed any more.
            BaseException: What a task raised that no row of `mcp_actors.task_kinds.TASKS` contains.
        """
        nursery, opening = self._nursery, self._opening
        if nursery is None or opening is None:
            return
        is_innermost = self.is_innermost
        in_its_task = trio.lowlevel.current_task() is nursery.parent_task
        self._nursery = self._opening = self._innermost = None
        if not is_innermost:
            _give_up(nursery)
            elsewhere = ClosedElsewhere(self._owner, "in another order" if in_its_task else "in another task")
            # What else the task has left open may end the program in Trio before anybody sees the exception.
            log.error("closed elsewhere", error=str(elsewhere))
            raise elsewhere
        with one_error():
            await opening.__aexit__(None, None, None)


def _give_up(nursery: trio.Nursery) -> None:
    """Takes a nursery without tasks out of the task that opened it, and what is inside of its scope with it.

    Trio has no public names for this. With a Trio that has others, the task gets Trio's own error when it ends.
    """
    opened: list[trio.Nursery] = getattr(nursery.parent_task, "_child_nurseries", [])
    if nursery in opened:
        opened.remove(nursery)
    scope: Any = getattr(nursery.cancel_scope, INNERMOST_SCOPE, None)
    if scope is not None:
        for inner in scope.children:
            inner.parent = scope.parent
        for task in scope.tasks:
            task._activate_cancel_status(scope.parent)
