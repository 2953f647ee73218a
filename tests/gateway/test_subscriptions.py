"""Subscriptions to resources: one at the server for all clients, and refused where the server refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from telemetry.spans import Traced, parent_id, span_id, tree
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.cli.top.screen import TopState, everything
from mcp_actors.errors import Overloaded, ResourceNotFound, RpcError, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.history import HistoryRecorder
from mcp_actors.telemetry.snapshot import NodeSnapshot, Snapshot, SnapshotCapture
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind, serve_gateway

from .worlds import ERAS

ERAS_SUBSCRIPTIONS = ("legacy", "modern")
PAIRS = [(client, server) for client in ERAS_SUBSCRIPTIONS for server in ERAS_SUBSCRIPTIONS]


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
    transport = await serve_gateway(
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


@pytest.mark.parametrize("server_era", ERAS_SUBSCRIPTIONS)
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


@pytest.mark.parametrize("server_era", ERAS_SUBSCRIPTIONS)
async def test_subscriptions_are_made_again_after_a_connection_was_lost(
    server_era: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    watched = Watched()
    behind = Behind(nursery, watched.server)
    await behind.come()
    upstream = Upstream(name="u", target=behind, era=server_era, sessions="shared")
    transport = await serve_gateway(nursery, upstream)
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


# -- What an operator sees of the servers behind a gateway -----------------------------------------------


async def watched(gateway: Gateway) -> NodeSnapshot:
    history = HistoryRecorder(gateway._runtime, None)
    return await SnapshotCapture(gateway._runtime, "n", lambda: gateway.info, history).capture(0.0, [])


async def test_the_tree_and_the_live_view_show_each_server(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery)
    await behind.come()
    gateway = Gateway(
        [
            Upstream(name="here", target=behind, era="modern", lazy=True),
            Upstream(name="never", target=Behind(nursery), lazy=True),
            Upstream(name="unused", target=behind, lazy=True),
        ]
    )
    way = MemoryTransport()
    await nursery.start(gateway.serve, way)
    async with Client(way) as client, trio.open_nursery() as calls:
        with pytest.raises(UpstreamUnavailable):
            await client.call_tool("never_add")
        calls.start_soon(client.call_tool, "here_wait", {"seconds": 1})
        await trio.sleep(0.5)
        here, never, unused = gateway.tree().upstreams
        assert (here.state, here.in_flight, here.callers, here.connections) == ("connected", 1, 1, 1)
        assert (here.server, here.version) == ("behind 0", "2026-07-28")
        assert (never.state, never.failures, unused.state) == ("away", 1, "idle")
        assert "it is away" in never.last_failure
        node = await watched(gateway)
    assert [(each.name, each.in_flight) for each in node.upstreams] == [
        ("here", 1),
        ("never", 0),
        ("unused", 0),
    ]
    state = TopState(Snapshot(at=0.0, interval=1.0, watchers=1, nodes=[node]))
    lines = "\n".join(each.plain for each in everything(state, "n"))
    assert "upstreams (3)" in lines
    assert "it is away" in lines


# -- Spans of a gateway lie between those of its client and of its server; without spans of its own a trace passes ---


def make_server(seen: list[dict[str, str]], telemetry: Traced | None = None) -> Server:
    server = Server("behind", telemetry=None if telemetry is None else telemetry.telemetry)

    @server.tool
    async def look(ctx: Context) -> str:
        seen.append(ctx.trace)
        return "seen"

    return server


@pytest.mark.parametrize(("client_era", "server_era"), ERAS)
async def test_the_spans_of_a_hop_nest(client_era: str, server_era: str) -> None:
    traced = Traced()
    upstream = Upstream(name="x", target=make_server([], traced), era=server_era)
    gateway = Gateway([upstream], telemetry=traced.telemetry)
    async with Client(gateway, era=client_era, telemetry=traced.telemetry) as client:
        assert [tool.name async for tool in client.tools()] == ["x_look"]
        await client.call_tool("x_look")
    calls = [each for each in traced.spans if each.name.startswith("tools/call")]
    # The spans end from the inside to the outside.
    rows = [(span_id(each), parent_id(each), f"{each.kind.name} {each.name}") for each in reversed(calls)]
    assert tree(rows).splitlines() == [
        "CLIENT tools/call x_look",
        "  SERVER tools/call x_look",
        "    CLIENT tools/call look",
        "      SERVER tools/call look",
    ]


async def test_a_trace_passes_through_a_gateway_that_only_counts() -> None:
    seen: list[dict[str, str]] = []
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    gateway = Gateway([Upstream(name="x", target=make_server(seen))], telemetry=Metrics())
    async with Client(gateway) as client:
        await client.call_tool("x_look", meta=trace)
    assert seen == [trace]


async def test_names_that_upstreams_list_are_labels_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_actors.gateway.gateway.MOST_LABELS", 3)
    server, metrics = Server("behind"), Metrics()
    names = ["one", "two", "a\u202eb", "long" * 40, "three", "one too many"]
    for name in names:
        server.add_tool(lambda: "done", name=name)
    server.add_prompt(lambda: "hello", name="greet")
    async with Client(Gateway([Upstream(name="x", target=server, prefix="")], telemetry=metrics)) as client:
        with pytest.raises(RpcError):
            await client.call_tool("made up")
        assert [tool.name async for tool in client.tools()] == names
        assert [prompt.name async for prompt in client.prompts()] == ["greet"]
        for name in names:
            await client.call_tool(name)
        await client.get_prompt("greet")
    counted = Counter[str]()
    for (side, _, target, *_), found, _ in metrics.durations():
        if side == "server" and target is not None:
            counted[target] += sum(found)
    assert counted == {"one": 1, "two": 1, "three": 1, "other": 4, "greet": 1}
