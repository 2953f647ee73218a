"""The values that a handler returns when its answer has to wait for something."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["Continuation", "Deferred"]


class Continuation(partial[Any]):
    """The rest of a handler's work: called without arguments, in the call's own task, it returns an awaitable result.

    A handler is called once, in the turn of whoever read the request. It returns its result if it has it, and a
    continuation if the call needs a task. A continuation that is never called has done nothing.
    """

    begun = False
    """Whether it was begun without a task, and waits for what somebody else reads."""


class Deferred(Continuation):
    """A continuation that may do without a task: all it waits for is one answer, and somebody else reads that.

    It is either called, as any continuation, or begun. What was begun ends by `outcome` or by `abandon`.
    """

    def begin(self, done: Callable[[], None]) -> bool:
        """Begins without waiting; returns false, having done nothing, where that is not possible.

        Args:
            done: Is called once, when there is an outcome. A peer in this process may have sent it before this returns.

        Raises:
            RpcError: The call fails; it was not begun.
        """
        raise NotImplementedError

    def outcome(self) -> Any:
        """Returns the result, or a `Continuation` where something else has to be waited for; raises why there is none.

        It is called once, after ``done``.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Ends it without an outcome: nobody waits for that any more. Never waits."""
        raise NotImplementedError
