"""Shared state in Redis keeps the contracts of `mcp_actors.abc.shared`, outages included."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mcp_actors.abc.shared import OpenState
from mcp_actors.shared.redis import RedisShared, RedisState
from mcp_actors.testing import SharedStateSubject, check_shared_state
from tests.redis_server import RedisServer

LEASE = 1.0
TIMEOUT = 0.5


class Processes:
    """The processes of nodes: each has a way of its own to the server, which can be cut."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._ways: dict[str, str] = {}

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[RedisState]:
        way = self._server.new_way()
        async with RedisShared(f"unix://{way}", lease=LEASE, timeout=TIMEOUT).open(name) as state:
            self._ways[state.node] = way
            yield state

    async def lose(self, state: OpenState) -> None:
        await trio.to_thread.run_sync(self._server.cut_off, self._ways[state.node], state.node)


def subject_of(server: RedisServer, *, is_slow: bool) -> SharedStateSubject:
    async def cut() -> None:
        await trio.to_thread.run_sync(server.stop if is_slow else server.kill)

    async def mend() -> None:
        await trio.to_thread.run_sync(server.go_on if is_slow else server.start)

    async def flush() -> None:
        await trio.to_thread.run_sync(server.do, "FLUSHALL")

    processes = Processes(server)
    return SharedStateSubject(
        share=lambda: processes,
        lose=processes.lose,
        cut=cut,
        mend=mend,
        flush=flush,
        now=time.time,
        lease=LEASE,
        bound=4 * TIMEOUT,
    )


async def test_redis_keeps_the_contracts(redis_server: RedisServer) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[SharedStateSubject]:
        await trio.to_thread.run_sync(redis_server.do, "FLUSHALL")
        yield subject_of(redis_server, is_slow=True)

    report = await check_shared_state(make, many=200)
    assert report.skipped == ()
