"""A server whose tools take note of what happens to them."""

from __future__ import annotations

from typing import Any

import trio

from mcp_actors import Context, Server


class Witness:
    """Knows which calls of its tools began, returned and were cancelled, by request id, in order."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("witness", **options)
        self.begun: list[Any] = []
        self.returned: list[Any] = []
        self.cancelled: list[Any] = []
        self.reasons: list[str] = []
        for tool in (self.hang, self.nap, self.echo):
            self.server.add_tool(tool)

    async def hang(self, ctx: Context) -> str:
        """Never ends by itself."""
        await self._sleeping(ctx, float("inf"))
        return "woken"

    async def nap(self, seconds: float, ctx: Context) -> str:
        """Ends after a while."""
        await self._sleeping(ctx, seconds)
        return "slept"

    async def echo(self, text: str) -> str:
        """Says it again."""
        await trio.lowlevel.checkpoint()
        return text

    async def _sleeping(self, ctx: Context, seconds: float) -> None:
        self.begun.append(ctx.request_id)
        try:
            await trio.sleep(seconds)
        except trio.Cancelled as error:
            self.cancelled.append(ctx.request_id)
            self.reasons.append(str(error))
            raise
        self.returned.append(ctx.request_id)


async def still_running(nursery: trio.Nursery) -> list[str]:
    """The tasks of a cancelled nursery that have not ended after some time; what kept them is taken away then."""
    with trio.move_on_after(2, shield=True):
        while nursery.child_tasks:  # noqa: ASYNC110
            await trio.sleep(0.001)
    stuck = sorted(task.name for task in nursery.child_tasks)
    pending = [nursery]
    while pending:
        each = pending.pop()
        each.cancel_scope.shield = False
        pending += [inner for task in each.child_tasks for inner in task.child_nurseries]
    return stuck
