"""Some nodes of one server in this process: each a site of its own, with state that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from tests.shared.spanning import Spanning, SpanningNode
from tests.transports.http.site import Site


class Node(Site):
    """A site that is a node, and can be killed."""

    scope: trio.CancelScope
    state: SpanningNode

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as self.scope:
            async with trio.open_nursery() as nursery:
                (self.url,) = await nursery.start(self.server.serve, self.transport)
                task_status.started()
        self.ends.append("gone")


@asynccontextmanager
async def nodes(number: int, shared: Spanning, **options: Any) -> AsyncIterator[list[Node]]:
    """So many nodes, which all serve until the block ends."""
    made = [Node(shared=shared, **options) for _ in range(number)]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            for node in made:
                known = set(shared.nodes)
                await stack.enter_async_context(node.http)
                await nursery.start(node.live)
                (name,) = shared.nodes.keys() - known
                node.state = shared.nodes[name]
            yield made
            nursery.cancel_scope.cancel()
