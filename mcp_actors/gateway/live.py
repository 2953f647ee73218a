"""The upstreams of a gateway while it serves: one set of actors for each `serve`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mcp_actors.client_pool import ClientPool
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.supervision import reraised

__all__ = ["LiveUpstreams", "opened"]


class LiveUpstreams:
    """The actors of all upstreams, by name, in the order in which they were given."""

    def __init__(self, actors: Sequence[UpstreamActor]) -> None:
        self.actors = {each.settings.name: each for each in actors}

    def __repr__(self) -> str:
        return f"<LiveUpstreams {', '.join(self.actors)}>"


@asynccontextmanager
async def opened(upstreams: Sequence[Upstream]) -> AsyncIterator[LiveUpstreams]:
    """Yields the actors of ``upstreams``; at the end of the block their connections are closed."""
    with reraised() as body:
        async with ClientPool() as pool, trio.open_nursery() as nursery:
            with body:
                yield LiveUpstreams([UpstreamActor(each, nursery, pool) for each in upstreams])
            nursery.cancel_scope.cancel(reason="the gateway is no longer served")
