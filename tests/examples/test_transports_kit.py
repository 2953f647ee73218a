"""The two worked transports keep the contract, as the kit has it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_actors.abc import FrameChannel, ServerHandler
from mcp_actors.examples.transports.broker import BrokerClient, BrokerWorker, open_broker
from mcp_actors.examples.transports.http2 import client_channel, serve_streams
from mcp_actors.testing import check_transport

NAMES = itertools.count()


@asynccontextmanager
async def broker() -> AsyncIterator[Any]:
    name = f"kit{next(NAMES)}"
    # A worker that has ended says nothing; its lease does, sooner than the kit's patience ends.
    async with open_broker(name, lease=1):
        yield BrokerWorker(name), lambda where: BrokerClient(where.partition(":")[2])


class HttpSseChannels:
    """HTTP/2 as over a child's streams, without the child; one connection after the other may be opened."""

    def __init__(self) -> None:
        self._tasks: trio.Nursery | None = None
        self._handler: ServerHandler | None = None

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as self._tasks:
            self._handler = handler
            task_status.started("pipes")
            await trio.sleep_forever()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        assert self._tasks is not None
        assert self._handler is not None
        back, back_end = trio.testing.memory_stream_one_way_pair()
        there, there_end = trio.testing.memory_stream_one_way_pair()
        self._tasks.start_soon(serve_streams, self._handler, there_end, back)
        async with client_channel(back_end, there) as channel:
            yield channel


@asynccontextmanager
async def pipes() -> AsyncIterator[Any]:
    transport = HttpSseChannels()
    yield transport, lambda where: transport


async def test_a_broker_keeps_the_contract() -> None:
    report = await check_transport(broker, exchange=True, eras=["modern"], quiet=0.02)
    assert report.passed


async def test_http2_keeps_the_contract() -> None:
    report = await check_transport(pipes, exchange=True, eras=["modern"], quiet=0.02)
    assert report.passed
