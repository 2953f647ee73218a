"""What handlers are given in these tests instead of a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._server.invoke import Handler, WorkerThreads
from mcp_actors._server.visibility import Visibility


@attrs.define(eq=False)
class FakeContext:
    """Stands for `mcp_actors.Context`: what handlers read of it."""

    params: dict[str, Any] = attrs.field(factory=dict)
    era: Any = None
    meta: dict[str, Any] = attrs.field(factory=dict)
    peer: Any = None
    server: Any = None
    call: Any = attrs.field(factory=SimpleNamespace)

    def end(self) -> None:
        """Nothing in these tests outlives its call."""


@attrs.define
class Changes:
    """Counts the calls of ``on_change``."""

    count: int = 0

    def __call__(self) -> None:
        self.count += 1


def options(**more: Any) -> dict[str, Any]:
    """What every registry takes."""
    return {
        "injected": FakeContext,
        "for_sync": lambda ctx, inline: ctx,
        "threads": WorkerThreads(2),
        "visibility": Visibility(None, lambda: None),
        **more,
    }


async def answer(handler: Handler, params: dict[str, Any], **more: Any) -> Any:
    """Asks the way a session does: on the spot, and in a task if that is wanted."""
    result = handler(FakeContext(params, **more))
    return await result() if isinstance(result, Continuation) else result
