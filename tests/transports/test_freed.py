"""Sessions and connections that have ended are freed by reference counts, with Python's collector switched off."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.errors import RpcError, ToolError

# Clients that come and go before the measure, when caches are filled, and in it.
FIRST, MEASURED = 2, 10
# Objects in cycles, of all measured clients together: one cycle for each client would be more.
ALLOWED = MEASURED // 2

BINDINGS = ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0", "unix:{}/freed", "memory"]
ERAS = ["legacy", "modern"]


def make_server() -> Server:
    server = Server("freed")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def fails() -> str:
        raise ToolError("on purpose")

    @server.tool
    async def hangs(ctx: Context) -> str:
        await ctx.progress(1)
        await trio.sleep_forever()
        return ""

    @server.resource("memo:one")
    async def memo() -> str:
        return "memo"

    return server


@pytest.fixture
def collector_rests() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def served(server: Server, binding: str, tmp_path: Any) -> AsyncIterator[Any]:
    if binding == "memory":
        yield server
        return
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(server.serve, binding.format(tmp_path))
        yield where
        nursery.cancel_scope.cancel()


async def calls(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client:
        await client.call_tool("echo", {"text": "x"})


async def fails(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client:
        await client.call_tool("fails")
        with pytest.raises(RpcError):
            await client.read_resource("memo:none")


async def listens(where: Any, server: Server, era: str) -> None:
    async with Client(where, era=era) as client, client.listen(uris=["memo:one"]) as events:
        server.resource_updated("memo:one")
        await anext(events)


async def leaves_a_call(where: Any, server: Server, era: str) -> None:
    with trio.CancelScope() as scope:

        async def reported(progress: Any) -> None:
            scope.cancel()

        async with Client(where, era=era) as client:
            await client.call_tool("hangs", on_progress=reported)


async def garbage(use: Callable[[], Awaitable[None]]) -> int:
    """Returns how many objects of the measured clients only the collector can free."""
    for _ in range(FIRST):
        await use()
    await settled()
    gc.collect()
    for _ in range(MEASURED):
        await use()
    await settled()
    return gc.collect()


async def settled() -> None:
    """Waits until the tasks of connections that have ended are done, which takes no time that could be known."""
    tasks = -1
    for _ in range(100):
        await trio.sleep(0.05)
        if tasks == (tasks := trio.lowlevel.current_statistics().tasks_living):
            return


@pytest.mark.usefixtures("collector_rests")
@pytest.mark.parametrize("use", [calls, fails, listens, leaves_a_call], ids=lambda use: use.__name__)
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_client_that_has_left_is_freed(binding: str, era: str, use: Any, tmp_path: Any) -> None:
    server = make_server()
    async with served(server, binding, tmp_path) as where:
        assert await garbage(lambda: use(where, server, era)) < ALLOWED
