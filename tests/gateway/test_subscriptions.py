"""Subscriptions to resources: one at the server for all clients, and refused where the server refuses."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.errors import Overloaded, ResourceNotFound, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind

ERAS = ("legacy", "modern")
PAIRS = [(client, server) for client in ERAS for server in ERAS]


class Watched:
    """A server with a resource, and the subscriptions that began and ended."""

    def __init__(self) -> None:
        self.server = Server("s")
        self.server.add_resource("x://a", lambda: "a", name="a", inline=True)
        self.server.add_resource("x://b", lambda: "b", name="b", inline=True)
        self.log: list[str] = []
        self.server.on_subscribe = lambda uri: self.log.append(f"+{uri}")
        self.server.on_unsubscribe = lambda uri: self.log.append(f"-{uri}")

    def change(self, uri: str = "x://a") -> None:
        self.server.bus.publish("resource_updated", uri)


async def served(nursery: trio.Nursery, *upstreams: Upstream) -> MemoryTransport:
    transport = MemoryTransport()
    await nursery.start(Gateway(upstreams).serve, transport)
    return transport


@pytest.mark.parametrize(("client_era", "server_era"), PAIRS)
async def test_a_change_of_a_resource_reaches_who_subscribed_to_it(
    client_era: str, server_era: str, autojump_clock: MockClock
) -> None:
    watched = Watched()
    gateway = Gateway([Upstream(name="u", target=watched.server, era=server_era)])
    async with Client(gateway, era=client_era) as client:
        async with client.listen(uris=("x://a",)) as changes:
            assert watched.log == ["+x://a"]
            watched.change("x://b")
            watched.change("x://a")
            event = await anext(changes)
            assert (event.kind, event.uri) == ("resource_updated", "x://a")
        await trio.sleep(1)
        assert watched.log == ["+x://a", "-x://a"]


@pytest.mark.parametrize(("client_era", "server_era"), PAIRS)
async def test_all_clients_have_one_subscription_at_a_server_that_is_shared(
    client_era: str, server_era: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watched = Watched()
    transport = await served(
        nursery, Upstream(name="u", target=watched.server, era=server_era, sessions="shared")
    )
    async with Client(transport, era=client_era) as one, Client(transport, era=client_era) as other:
        async with one.listen(uris=("x://a",)) as first:
            async with other.listen(uris=("x://a",)) as second:
                watched.change()
                assert (await anext(first)).uri == (await anext(second)).uri == "x://a"
            await trio.sleep(1)
            assert watched.log == ["+x://a"]
            watched.change()
            assert (await anext(first)).uri == "x://a"
        await trio.sleep(1)
        assert watched.log == ["+x://a", "-x://a"]


@pytest.mark.parametrize("server_era", ERAS)
async def test_what_the_server_does_not_have_is_refused(server_era: str) -> None:
    watched = Watched()
    upstream = Upstream(name="u", target=watched.server, era="legacy")
    async with Client(Gateway([upstream]), era="legacy") as client:
        with pytest.raises(ResourceNotFound):
            await client.subscribe_resource("x://none")
        await client.subscribe_resource("x://a")
    gateway = Gateway([Upstream(name="u", target=watched.server, era="legacy")])
    async with Client(gateway, era="modern") as client, client.listen(uris=("x://none", "x://a")) as changes:
        assert changes.honored is not None
        assert changes.honored.resource_subscriptions == ["x://a"]


async def test_a_server_without_subscriptions_refuses_them() -> None:
    watched = Watched()
    capabilities = watched.server._features.capabilities()
    assert capabilities.resources is not None
    capabilities.resources.subscribe = None
    watched.server._features.present(capabilities)
    async with Client(
        Gateway([Upstream(name="u", target=watched.server, era="legacy")]), era="legacy"
    ) as client:
        with pytest.raises(RpcError, match="resources/subscribe"):
            await client.subscribe_resource("x://a")


@pytest.mark.parametrize("server_era", ERAS)
async def test_subscriptions_are_made_again_after_a_connection_was_lost(
    server_era: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watched = Watched()
    behind = Behind(nursery, watched.server)
    await behind.come()
    upstream = Upstream(name="u", target=behind, era=server_era, sessions="shared")
    transport = await served(nursery, upstream)
    async with Client(transport, era="legacy") as client, client.listen(uris=("x://a",)) as changes:
        behind.go()
        await trio.sleep(1)
        watched.log.clear()
        await behind.come()
        # Nobody knows what happened while it was away.
        assert (await anext(changes)).uri == "x://a"
        await trio.sleep(1)
        assert watched.log == ["+x://a"]
        watched.change()
        assert (await anext(changes)).uri == "x://a"


async def test_what_a_server_reports_unasked_reaches_nobody(autojump_clock: MockClock) -> None:
    watched, heard = Watched(), []

    def note(kind: Any, uri: str | None) -> None:
        heard.append((kind, uri))

    @watched.server.tool
    async def shout(ctx: Context) -> None:
        """Reports a change that nobody asked for."""
        await ctx.notify("notifications/resources/updated", {"uri": "x://b"})

    async with Client(
        Gateway([Upstream(name="u", target=watched.server, era="legacy")]), era="legacy", on_change=note
    ) as client:
        await client.subscribe_resource("x://a")
        assert not (await client.call_tool("u_shout")).is_error
        watched.change("x://a")
        await trio.sleep(1)
    assert heard == [("resource_updated", "x://a")]


async def test_a_gateways_own_resources_are_subscribed_to_as_ever() -> None:
    gateway = Gateway([Upstream(name="u", target=Watched().server)])
    gateway.add_resource("own://a", lambda: "a", name="a", inline=True)
    subscribed: list[str] = []
    gateway.on_subscribe = subscribed.append
    async with Client(gateway, era="modern") as client, client.listen(uris=("own://a",)) as changes:
        gateway.bus.publish("resource_updated", "own://a")
        assert (await anext(changes)).uri == "own://a"
    assert subscribed == ["own://a"]


async def test_a_server_that_does_nothing_delays_a_subscription_by_a_bound(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    stuck, watched = Behind(nursery, Watched().server), Watched()
    stuck.gate = trio.Event()
    upstreams = [
        Upstream(name="v", target=watched.server, era="legacy"),
        Upstream(name="stuck", target=stuck),
    ]
    gateway = Gateway(upstreams)
    async with (
        Client(gateway, era="modern", timeout=60, probe_timeout=60) as client,
        client.listen(uris=("y://z", "x://a")) as changes,
    ):
        assert changes.honored is not None
        assert changes.honored.resource_subscriptions == ["x://a"]
        watched.change()
        assert (await anext(changes)).uri == "x://a"


async def test_one_caller_has_no_more_than_half_of_the_subscriptions(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("mcp_actors.gateway.upstream_subscriptions.MOST_FOLLOWED", 2)
    gateway = Gateway([Upstream(name="u", target=Watched().server, era="legacy")])
    async with Client(gateway, era="legacy") as client:
        await client.subscribe_resource("x://a")
        with pytest.raises(Overloaded, match="too many subscriptions at one server"):
            await client.subscribe_resource("x://b")
        await client.unsubscribe_resource("x://a")
        await trio.sleep(1)
        await client.subscribe_resource("x://b")
