"""The answer that a login waits for: the first one that is accepted, and no other."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcp_actors.auth.effects import RedirectAnswer

__all__ = ["AwaitedAnswer"]


class AwaitedAnswer:
    """The answer of one login. It is taken while ``accepts`` is set, once, if it is accepted."""

    def __init__(self) -> None:
        self.value: RedirectAnswer | None = None
        """The answer, once it was taken."""
        self.over = trio.Event()
        """Set when it was taken, or when none can come any more."""
        self.accepts: Callable[[RedirectAnswer], bool] | None = None
        """Whether an answer is that of the login; ``None`` while none is waited for."""

    def takes(self, answer: RedirectAnswer) -> bool:
        """Takes the answer if it is the first one that is accepted, and returns whether it was."""
        if self.accepts is None or self.over.is_set() or not self.accepts(answer):
            return False
        self.value = answer
        self.over.set()
        return True
