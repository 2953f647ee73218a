"""Opens fields on Trio: to a server's process through its transport's client, or to a server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from benchmarks.suite.programs.ours import server
from mcp_actors.cli.bench.field import ChannelField, channels
from mcp_actors.cli.bench.plan import Era

__all__ = ["channels", "in_memory", "run"]

run = trio.run


@asynccontextmanager
async def in_memory(era: Era, url: str) -> AsyncIterator[ChannelField]:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, url)
        async with channels(era, url) as field:
            yield field
        nursery.cancel_scope.cancel()
