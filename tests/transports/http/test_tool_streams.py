"""Parts of results over HTTP, on connections that are cut."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio

from mcp_actors import Client, Context
from mcp_actors.shared.redis import RedisShared
from tests.redis_server import RedisServer
from tests.shared.spanning import Spanning
from tests.transports.http.nodes import nodes
from tests.transports.http.site import Site, site

CUTS = 10
PARTS = 5


class Cutter:
    """A proxy of bytes before nodes, of which each connection has the next; it breaks all when it is told to."""

    def __init__(self, *ports: int) -> None:
        self._ports = itertools.cycle(ports)
        self.reached: dict[int, int] = dict.fromkeys(ports, 0)
        self._open: set[trio.SocketStream] = set()
        self.cuts = 0

    def cut(self) -> None:
        self.cuts += 1
        for each in self._open:
            each.socket.close()

    async def serve(self, near: trio.SocketStream) -> None:
        port = next(self._ports)
        self.reached[port] += 1
        far = await trio.open_tcp_stream("127.0.0.1", port)
        self._open |= {near, far}
        try:
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, near, far, nursery.cancel_scope)
                nursery.start_soon(self._copy, far, near, nursery.cancel_scope)
        finally:
            self._open -= {near, far}

    @staticmethod
    async def _copy(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            async for chunk in source:
                await sink.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def cut_site(**options: int) -> AsyncIterator[tuple[Site, Cutter, str]]:
    async with site(**options) as here, cut_before(here) as (cutter, url):
        yield here, cutter, url


@asynccontextmanager
async def cut_before(*sites: Site) -> AsyncIterator[tuple[Cutter, str]]:
    """A `Cutter` before these nodes of one server, and its URL."""
    for each in sites:
        each.server.add_tool(steps)
    cutter = Cutter(*[int(each.url.split(":")[2].partition("/")[0]) for each in sites])
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, cutter.serve, 0, host="127.0.0.1"))
        (listener,) = listeners
        yield cutter, f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


async def steps(ctx: Context) -> AsyncIterator[int]:
    """Five numbers for each message."""
    number = 0
    async for message in ctx.inbox:
        if message == "stop":
            return
        for _ in range(PARTS):
            yield number
            number += 1


@pytest.mark.slow
async def test_a_reader_that_is_cut_ten_times_gets_each_part_once() -> None:
    async with cut_site(retry=1) as (_, cutter, url):
        await read_through_cuts(cutter, url)


@pytest.mark.slow
async def test_a_reader_that_comes_back_at_another_node_gets_each_part_once() -> None:
    """Of a session whose nodes share their state: the stream, and the messages to the call, are at one of them."""
    async with nodes(3, Spanning(), retry=1) as made, cut_before(*made) as (cutter, url):
        await read_through_cuts(cutter, url)
        assert min(cutter.reached.values()) >= CUTS / 3


@pytest.mark.slow
async def test_a_reader_that_comes_back_at_another_node_with_redis_gets_each_part_once(
    redis_server: RedisServer,
) -> None:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(site(shared=RedisShared(redis_server.url), retry=1))
            for _ in range(2)
        ]
        cutter, url = await stack.enter_async_context(cut_before(*made))
        await read_through_cuts(cutter, url)
        assert min(cutter.reached.values()) >= CUTS / 2


async def read_through_cuts(cutter: Cutter, url: str) -> None:
    with trio.fail_after(120):
        async with Client(url, era="legacy") as client, client.stream_tool("steps") as stream:
            got = []
            for _ in range(CUTS):
                await stream.send("more")
                got.append(await anext(stream))
                cutter.cut()
                got += [await anext(stream) for _ in range(PARTS - 1)]
            await stream.send("stop")
            assert [each async for each in stream] == []
            assert got == list(range(CUTS * PARTS))
            assert stream.result.structured_content == {"result": got}
            assert cutter.cuts == CUTS


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_parts_and_messages_pass_over_http(era: str) -> None:
    async with cut_site() as (here, _, _), Client(here.url, era=era) as client:
        async with client.stream_tool("steps") as stream:
            await stream.send("more")
            assert [await anext(stream) for _ in range(PARTS)] == list(range(PARTS))
            await stream.send("stop")
            assert [each async for each in stream] == []
