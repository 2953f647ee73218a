"""Parts of results over HTTP, on connections that are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from mcp_actors import Client, Context
from tests.transports.http.site import Site, site

CUTS = 10
PARTS = 5


class Cutter:
    """A proxy of bytes before a server, which breaks all connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[trio.SocketStream] = set()
        self.cuts = 0

    def cut(self) -> None:
        self.cuts += 1
        for each in self._open:
            each.socket.close()

    async def serve(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream("127.0.0.1", self._port)
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
    async with site(**options) as here, trio.open_nursery() as nursery:

        @here.server.tool
        async def steps(ctx: Context) -> AsyncIterator[int]:
            number = 0
            async for message in ctx.inbox:
                if message == "stop":
                    return
                for _ in range(PARTS):
                    yield number
                    number += 1

        cutter = Cutter(int(here.url.split(":")[2].partition("/")[0]))
        listeners = await nursery.start(partial(trio.serve_tcp, cutter.serve, 0, host="127.0.0.1"))
        (listener,) = listeners
        yield here, cutter, f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_reader_that_is_cut_ten_times_gets_each_part_once() -> None:
    async with (
        cut_site(retry=1) as (_, cutter, url),
        Client(url, era="legacy") as client,
        client.stream_tool("steps") as stream,
    ):
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
