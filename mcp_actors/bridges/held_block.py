"""An async context manager that is entered and left in one task of the engine, by calls that come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.errors import EngineStopped
from mcp_actors.supervision import start
from mcp_actors.task_kinds import HELD_BLOCK

__all__ = ["HeldBlock"]

# Seconds that a block has to end once it was cancelled; then nobody waits for it any more.
CANCEL_TIME = 5.0

T = TypeVar("T")


class HeldBlock(Generic[T]):
    """A block of the engine that the program holds open: `enter` and `leave` are called through a bridge.

    Trio demands that a cancel scope or a nursery is closed by the task that has opened it, and each bridged call is a
    task of its own. So the block has a task of its own, in the engine's nursery.

    Args:
        open_block: Is called in that task; what it returns is entered there. It sees the context variables of
            whoever calls `enter`.
    """

    def __init__(self, open_block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_block = open_block
        self._scope = trio.CancelScope()
        self._value: T
        self._failure: BaseException | None = None
        self._is_inside = False
        self._has_entered = trio.Event()
        self._is_left = trio.Event()
        self._has_ended = trio.Event()

    def __repr__(self) -> str:
        state = "ended" if self._has_ended.is_set() else "inside" if self._is_inside else "not entered"
        return f"<HeldBlock {state}>"

    async def enter(self) -> T:
        """Enters the block, and returns what it gives. Called once, in the engine. Cancelled, it leaves it again.

        Raises:
            EngineStopped: The engine ends.
            Exception: What entering the block raises.
        """
        start(EngineThread.of_this_run().nursery, HELD_BLOCK, self._hold)
        try:
            await self._has_entered.wait()
            if not self._is_inside:
                await self._has_ended.wait()
                raise self._taken_failure() or EngineStopped(False)
        except trio.Cancelled:
            await self._end_soon()
            raise
        return self._value

    @property
    def is_left(self) -> bool:
        """Whether somebody has begun to leave the block, or it has ended. Legal from any thread."""
        return self._is_left.is_set() or self._has_ended.is_set()

    def begin_to_leave(self) -> None:
        """Begins to leave the block, for a step of the engine; `leave` waits for its end."""
        self._is_left.set()

    async def leave(self) -> None:
        """Leaves the block, in the engine, which is not told what has ended its body.

        Legal any number of times; cancelled, the block is cancelled.

        Raises:
            Exception: What leaving the block raises, at the first call; so too what has ended the block before anybody
                left it.
        """
        self._is_left.set()
        try:
            await self._has_ended.wait()
        except trio.Cancelled:
            await self._end_soon()
            raise
        failure = self._taken_failure()
        try:
            if failure is not None:
                raise failure
        finally:
            # It stands in its own traceback, whose frames would keep it.
            del failure

    async def _hold(self) -> None:
        try:
            with self._scope:
                async with self._open_block() as self._value:
                    self._is_inside = True
                    self._has_entered.set()
                    await self._is_left.wait()
        except trio.Cancelled:
            self._failure = EngineStopped(False)
            raise
        except BaseException as error:
            # It belongs to whoever enters or leaves, whatever it is.
            self._failure = error
        finally:
            self._has_ended.set()
            self._has_entered.set()

    async def _end_soon(self) -> None:
        self._scope.cancel(reason="the caller was cancelled")
        with trio.move_on_after(CANCEL_TIME, shield=True):
            await self._has_ended.wait()

    def _taken_failure(self) -> BaseException | None:
        failure, self._failure = self._failure, None
        return failure
