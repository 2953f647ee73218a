"""The value that a handler returns when its answer has to wait for something."""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = ["Continuation"]


class Continuation(partial[Any]):
    """The rest of a handler's work: called without arguments, in the call's own task, it returns an awaitable result.

    A handler is called once, in the turn of whoever read the request. It returns its result if it has it, and a
    continuation if the call needs a task. A continuation that is never called has done nothing.
    """

    __slots__ = ()
