"""What a server keeps in a session and tells its client outside of any call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, LocalProtocolError, Server, ToolError
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.abc.discovery import client_transport
from mcp_actors.testing import ScriptedPeer
from mcp_actors.types import TextContent

from .peers import EVERY, LEGACY, begin, call


@attrs.define(eq=False)
class Cart:
    """What one client has chosen."""

    things: list[str] = attrs.field(factory=list)


carts: list[weakref.ref[Cart]] = []


def make_server() -> Server:
    server = Server("shop")

    @server.tool
    async def put(thing: str, ctx: Context) -> int:
        """Puts something into the session's cart."""
        assert ctx.session is not None
        cart = ctx.session.get(Cart)
        cart.things.append(thing)
        carts.append(weakref.ref(cart))
        return len(cart.things)

    return server


@asynccontextmanager
async def connections(server: Server, count: int) -> AsyncIterator[list[ScriptedPeer]]:
    """That many connections to one serving of the server."""
    transport: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await nursery.start(server.serve, transport)
        channels = [await stack.enter_async_context(transport.connect()) for _ in range(count)]
        yield [ScriptedPeer(channel) for channel in channels]
        nursery.cancel_scope.cancel()


async def logged(peer: ScriptedPeer) -> list[Any]:
    """All log messages that come within a long time, and nothing else."""
    found = []
    with trio.move_on_after(100):
        while True:
            message = await peer.receive()
            assert message["method"] == "notifications/message"
            found.append(message["params"])
    return found


@pytest.mark.parametrize("version", EVERY)
async def test_a_connection_has_a_place_of_its_own_for_each_class(version: str) -> None:
    server = make_server()
    async with Client(server, era=version) as one, Client(server, era=version) as other:
        results = [await one.call_tool("put", {"thing": each}) for each in "ab"]
        results.append(await other.call_tool("put", {"thing": "c"}))
    assert [result.content for result in results] == [[TextContent(each)] for each in "121"]


async def test_what_is_kept_is_freed_with_the_session_without_the_collector() -> None:
    carts.clear()
    gc.disable()
    try:
        async with connections(make_server(), 1) as [peer]:
            await begin(peer, "2025-11-25")
            await call(peer, "2025-11-25", 1, "put", thing="a")
            assert carts[0]() is not None
            await peer.channel.aclose()
            await wait_all_tasks_blocked()
            assert carts[0]() is None
    finally:
        gc.enable()


async def test_what_cannot_be_made_is_not_kept() -> None:
    server = Server("shop")
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        if len(made) == 1:
            raise ToolError("not yet")
        return made

    @server.tool
    async def count(ctx: Context) -> int:
        """Counts."""
        assert ctx.session is not None
        return len(ctx.session.get(make))

    async with Client(server) as client:
        assert (await client.call_tool("count")).is_error
        results = [await client.call_tool("count") for _ in range(2)]
    assert [result.content for result in results] == [[TextContent("2")]] * 2


# -- logs outside of calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_the_server_logs_to_every_session_that_wants_it(
    version: str, autojump_clock: MockClock
) -> None:
    server = make_server()
    async with connections(server, 4) as [quiet, chatty, usual, nobody]:
        for peer in (quiet, chatty, usual):
            await begin(peer, version)
        await quiet.request(1, "logging/setLevel", {"level": "error"})
        await chatty.request(1, "logging/setLevel", {"level": "debug"})
        await wait_all_tasks_blocked()
        server.log("debug", 1)
        server.log("warning", {"disk": "full"}, "storage")
        server.log("alert", 2)
        alert = {"level": "alert", "data": 2}
        warning = {"level": "warning", "data": {"disk": "full"}, "logger": "storage"}
        assert await logged(quiet) == [alert]
        assert await logged(usual) == [warning, alert]
        assert await logged(chatty) == [{"level": "debug", "data": 1}, warning, alert]
        assert await logged(nobody) == []


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no such level"):
        is_wanted("loud", "info")


async def test_a_client_that_does_not_read_loses_logs_and_holds_nobody_up() -> None:
    server = make_server()
    async with connections(server, 2) as [asleep, awake]:
        await begin(asleep, "2025-11-25")
        await begin(awake, "2025-11-25")
        await wait_all_tasks_blocked()
        for number in range(10_000):
            server.log("error", number)
            assert (await awake.receive())["params"]["data"] == number
        links = [session.link for session in server.tree().sessions]
        # Those of one write are on their way, and no more wait than there is room for.
        assert [link.outbox <= 2 * server.limits.outbox for link in links if link is not None] == [True, True]
