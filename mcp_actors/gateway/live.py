"""The upstreams of a gateway while it serves: one set of actors for each `serve`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mcp_actors.client_pool import ClientPool
from mcp_actors.gateway.held_calls import HeldCalls
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.supervision import reraised, start_again
from mcp_actors.task_kinds import UPSTREAM_KEEP, UPSTREAM_SWEEP

__all__ = ["LiveUpstreams", "opened"]


class LiveUpstreams:
    """The actors of all upstreams, by name, in the order in which they were given.

    Args:
        upstreams: The settings of each.
        nursery: Owns their tasks.
        pool: Owns their clients.
    """

    def __init__(self, upstreams: Sequence[Upstream], nursery: trio.Nursery, pool: ClientPool) -> None:
        held = HeldCalls(nursery)
        self.actors = {
            each.name: UpstreamActor(each, nursery, pool, self._changed, held) for each in upstreams
        }
        for actor in self.actors.values():
            name = actor.settings.name
            if not actor.settings.lazy:
                start_again(nursery, UPSTREAM_KEEP, actor.keep, about=name)
            start_again(nursery, UPSTREAM_SWEEP, actor.sweep, about=name)

    def __repr__(self) -> str:
        return f"<LiveUpstreams {', '.join(self.actors)}>"

    def _changed(self, actor: UpstreamActor) -> None:
        """Takes note that a connection to an upstream was made or lost."""


@asynccontextmanager
async def opened(upstreams: Sequence[Upstream]) -> AsyncIterator[LiveUpstreams]:
    """Yields the actors of ``upstreams``; at the end of the block their connections are closed."""
    with reraised() as body:
        async with ClientPool() as pool, trio.open_nursery() as nursery:
            with body:
                yield LiveUpstreams(upstreams, nursery, pool)
            nursery.cancel_scope.cancel(reason="the gateway is no longer served")
