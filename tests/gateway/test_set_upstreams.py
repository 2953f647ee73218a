"""The upstreams of a gateway are replaced while it serves: those that are the same notice nothing, in any era."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.errors import ConfigurationError, RpcError
from mcp_actors.gateway import Gateway, Upstream, bridge_to
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind, make_server

ERAS = ("legacy", "modern")
EACH_PAIR = pytest.mark.parametrize(("client_era", "era"), [(a, b) for a in ERAS for b in ERAS])


@asynccontextmanager
async def served(
    nursery: trio.Nursery, *upstreams: Upstream, era: str
) -> AsyncIterator[tuple[Gateway[Any], Client]]:
    gateway: Gateway[Any] = Gateway(upstreams)
    transport = MemoryTransport()
    await nursery.start(gateway.serve, transport)
    async with Client(transport, era=era) as client:
        yield gateway, client


async def behind(nursery: trio.Nursery, server: Server | None = None) -> Behind:
    there = Behind(nursery, server)
    await there.come()
    return there


async def names(client: Client) -> list[str]:
    return [tool.name async for tool in client.tools()]


@EACH_PAIR
async def test_an_upstream_that_is_the_same_keeps_its_connection_and_its_calls(
    nursery: trio.Nursery, client_era: str, era: str, autojump_clock: MockClock
) -> None:
    kept, ended, new = [await behind(nursery) for _ in range(3)]
    one, two = Upstream(name="one", target=kept, era=era), Upstream(name="two", target=ended, era=era)
    async with served(nursery, one, two, era=client_era) as (gateway, client):
        assert {"one_add", "two_add"} <= set(await names(client))
        results: list[str] = []
        async with trio.open_nursery() as calls:

            async def call() -> None:
                results.append((await client.call_tool("one_wait", {"seconds": 20})).text)

            calls.start_soon(call)
            await trio.sleep(5)
            connects = kept.connects
            gateway.set_upstreams([Upstream(name="new", target=new, era=era), one])
            await trio.sleep(5)
            assert (kept.connects, kept.open, ended.open) == (connects, 1, 0)
            assert [each.name for each in gateway.upstreams] == ["new", "one"]
            found = await names(client)
            assert [name for name in found if name.endswith("_add")] == ["new_add", "one_add"]
            assert (await client.call_tool("new_add", {"a": 1, "b": 2})).text == "3"
            with pytest.raises(RpcError):
                await client.call_tool("two_add", {"a": 1, "b": 2})
        assert results == ["waited"]
        assert kept.connects == connects


@EACH_PAIR
async def test_calls_in_flight_at_one_that_is_replaced_end_there_and_new_ones_go_to_the_new_one(
    nursery: trio.Nursery, client_era: str, era: str, autojump_clock: MockClock
) -> None:
    old, new = await behind(nursery), await behind(nursery)
    async with served(nursery, Upstream(name="u", target=old, era=era), era=client_era) as (gateway, client):
        results: list[str] = []
        async with trio.open_nursery() as calls:

            async def call() -> None:
                results.append((await client.call_tool("u_wait", {"seconds": 20})).text)

            calls.start_soon(call)
            await trio.sleep(5)
            gateway.set_upstreams([Upstream(name="u", target=new, era=era)])
            assert (await client.call_tool("u_add", {"a": 1, "b": 2})).text == "3"
            assert (old.open, new.open, results) == (1, 1, [])
        assert results == ["waited"]
        await trio.sleep(1)
        assert (old.open, new.open) == (0, 1)
        # It is not connected to again by what has kept it connected.
        await trio.sleep(600)
        assert old.open == 0


@EACH_PAIR
async def test_clients_hear_that_lists_have_changed_and_of_resources_at_the_new_one(
    nursery: trio.Nursery, client_era: str, era: str, autojump_clock: MockClock
) -> None:
    servers = []
    for _ in range(2):
        server = make_server()
        server.add_resource("x://a", lambda: "a", name="a", inline=True)
        servers.append(server)
    old, new = [await behind(nursery, each) for each in servers]
    first = Upstream(name="u", target=old, era=era, sessions="shared")
    async with served(nursery, first, era=client_era) as (gateway, client):
        kinds = ("resource_updated", "tools")
        async with client.listen(tools=True, uris=("x://a",)) as changes:
            gateway.set_upstreams([attrs.evolve(first, target=new)])
            seen = {(await anext(changes)).kind for _ in kinds}
            assert seen == set(kinds)
            await trio.sleep(1)
            servers[1].bus.publish("resource_updated", "x://a")
            assert (await anext(changes)).uri == "x://a"


async def test_a_connection_that_is_being_made_for_one_that_is_gone_is_closed(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    old, new = await behind(nursery), await behind(nursery)
    old.gate = trio.Event()
    async with served(nursery, Upstream(name="u", target=old, era="modern"), era="modern") as (
        gateway,
        client,
    ):
        await trio.sleep(5)
        gateway.set_upstreams([Upstream(name="u", target=new, era="modern")])
        old.gate.set()
        assert "u_add" in await names(client)
        assert (await client.call_tool("u_add", {"a": 1, "b": 2})).text == "3"
        await trio.sleep(1)
        assert (old.open, new.open) == (0, 1)


async def test_a_name_is_free_once_its_owner_is_taken_out(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    first, second = make_server(), Server("other")

    @second.tool
    async def add(a: int, b: int) -> str:
        return "of the other"

    one = Upstream(name="one", target=await behind(nursery, first), prefix="", era="modern")
    two = Upstream(name="two", target=await behind(nursery, second), prefix="", era="modern")
    async with served(nursery, one, two, era="modern") as (gateway, client):
        assert "add" in await names(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        gateway.set_upstreams([two])
        assert await names(client) == ["add"]
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "of the other"
        gateway.set_upstreams([])
        assert await names(client) == []


def _twice(one: Upstream) -> list[Upstream]:
    return [one, attrs.evolve(one, prefix="x")]


def _renamed(one: Upstream) -> list[Upstream]:
    return [one, attrs.evolve(one, name="two", rename={"a": "c", "b": "c"})]


def _nowhere(one: Upstream) -> list[Upstream]:
    return [one, Upstream(name="two", target="nonsense")]


@pytest.mark.parametrize("others", [_twice, _renamed, _nowhere])
async def test_what_cannot_be_changes_nothing(
    nursery: trio.Nursery, others: Callable[[Upstream], list[Upstream]], autojump_clock: MockClock
) -> None:
    one = Upstream(name="one", target=await behind(nursery), era="modern")
    async with served(nursery, one, era="modern") as (gateway, client):
        before = await names(client)
        with pytest.raises((ValueError, ConfigurationError)):
            gateway.set_upstreams(others(one))
        assert gateway.upstreams == [one]
        assert await names(client) == before


def test_a_bridge_keeps_its_upstream() -> None:
    with pytest.raises(ValueError, match="keeps it"):
        bridge_to(make_server()).set_upstreams([])


async def test_methods_of_one_that_is_taken_out_are_not_found(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.method("my/method")
    async def answer(params: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"a": 1}

    one = Upstream(name="one", target=await behind(nursery, server), methods=["my/method"])
    async with served(nursery, one, era="modern") as (gateway, client):
        assert (await client.request("my/method", {}))["a"] == 1
        again = attrs.evolve(one, prefix="x")
        gateway.set_upstreams([again])
        assert (await client.request("my/method", {}))["a"] == 1
        gateway.set_upstreams([])
        with pytest.raises(RpcError, match="my/method"):
            await client.request("my/method", {})
