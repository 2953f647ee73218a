"""Gateways that are upstreams of themselves or of each other: what each offers, and that nothing goes round."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, Context, McpError, ResourceNotFound, RpcError, Server
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.types import ClientCapabilities
from mcp_transports.memory import MemoryTransport

GATEWAYS = "mcp-actors/gateways"


class Network:
    """Servers and gateways in memory or at URLs, which can name each other before they are served."""

    def __init__(self, nursery: trio.Nursery, over: str) -> None:
        self._nursery = nursery
        self._over = over
        self._places: dict[str, Any] = {}
        self.gateways: dict[str, Gateway] = {}
        self.received: Counter[tuple[str, str]] = Counter()
        """Requests by server and method."""
        self.metas: dict[str, list[Any]] = {}
        """The ``_meta`` of each request that a server has received, and the capabilities of its client."""

    def __call__(self, name: str) -> Any:
        return lambda: self._places[name]

    async def serve(self, name: str, *upstreams: str, **settings: Any) -> None:
        """Serves a gateway whose upstreams have these names."""
        gateway = Gateway([Upstream(name=each, target=self(each), **settings) for each in upstreams])
        gateway.add_tool(lambda: name, name="own", description="Is of the gateway itself.", inline=True)
        gateway.add_prompt(lambda: name, name="say", description="Is of the gateway itself.", inline=True)
        gateway.add_resource(f"own://{name}", lambda: name, name="own", inline=True)
        await self._begin(name, gateway)
        self.gateways[name] = gateway

    async def server(self, name: str) -> None:
        """Serves a plain server with one tool."""
        server = Server(name)
        server.add_tool(lambda: name, name="last", description="Is no gateway's.", inline=True)
        await self._begin(name, server)

    async def ring(self, size: int, **settings: Any) -> list[str]:
        """Serves gateways of which each is an upstream of the one before it, and returns their names."""
        names = [f"g{number}" for number in range(size)]
        for number, name in enumerate(names):
            await self.serve(name, names[(number + 1) % size], **settings)
        return names

    async def _begin(self, name: str, server: Server) -> None:
        @server.middleware
        async def note(ctx: Context, call_next: Any) -> Any:
            self.received[name, ctx.method] += 1
            self.metas.setdefault(name, []).append((ctx.call.invocation.meta, ctx.peer.raw_capabilities))
            return await call_next()

        way: Any = MemoryTransport() if self._over == "memory" else "http://127.0.0.1:0/mcp"
        places = await self._nursery.start(server.serve, way)
        self._places[name] = way if self._over == "memory" else places[0]

    def place(self, name: str) -> Any:
        return self._places[name]


@asynccontextmanager
async def network(over: str = "memory") -> AsyncIterator[Network]:
    with trio.fail_after(100_000 if over == "memory" else 60), capture_logs():
        async with trio.open_nursery() as nursery:
            yield Network(nursery, over)
            nursery.cancel_scope.cancel()


async def tools_of(at: Network, name: str, era: str) -> list[str]:
    async with Client(at.place(name), era=era) as client:
        return [tool.name async for tool in client.tools()]


async def is_granted(client: Client, uri: str) -> bool:
    """Whether the server lets a client subscribe to a resource."""
    try:
        async with client.listen(uris=(uri,)) as listener:
            granted = None if listener.honored is None else listener.honored.resource_subscriptions
            return uri in (granted or ())
    except McpError:
        return False


def offered(names: list[str], first: int) -> list[str]:
    """The tools that a gateway of a ring offers: each of the others' once, by the way to it."""
    way = [names[(first + number) % len(names)] for number in range(1, len(names))]
    return ["_".join([*way[:length], "own"]) for length in range(len(names))]


OVER = pytest.mark.parametrize("over", ["memory", "http"])
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
SIZES = pytest.mark.parametrize("size", [2, 3, 5])


# -- a gateway that is an upstream of itself ---------------------------------------------------------------------------


@OVER
@ERAS
async def test_a_gateway_of_itself_serves_its_own_tools(over: str, era: str) -> None:
    async with network(over) as at:
        await at.serve("a", "a", lazy=True, era=era)
        async with Client(at.place("a"), era=era) as client:
            for name in ("a_own", "a_a_own", "a_" * 60 + "own", "a_nobody"):
                with pytest.raises(McpError):
                    await client.call_tool(name)
            assert (await client.call_tool("own")).text == "a"
            assert [tool.name async for tool in client.tools()] == ["own"]


@ERAS
async def test_a_gateway_of_itself_says_so(era: str, autojump_clock: trio.testing.MockClock) -> None:
    async with network() as at:
        with capture_logs() as logs:
            await at.serve("a", "a", era=era)
            async with Client(at.place("a"), era=era) as client:
                with pytest.raises(RpcError):
                    await client.call_tool("a_own")
    assert any("this gateway is an upstream of itself" in str(each) for each in logs)


# -- gateways that are upstreams of each other -------------------------------------------------------------------------


@ERAS
@SIZES
@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "eager"])
async def test_each_gateway_of_a_ring_offers_what_the_others_have(
    size: int, era: str, lazy: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with network() as at:
        names = await at.ring(size, lazy=lazy, era=era)
        for name in names:
            async with Client(at.place(name), era=era) as client:
                async for tool in client.tools():
                    owner = tool.name.split("_")[-2] if "_" in tool.name else name
                    assert (await client.call_tool(tool.name)).text == owner
        for hours in (0, 1, 24):
            await trio.sleep(3600 * hours)
            for first, name in enumerate(names):
                assert await tools_of(at, name, era) == offered(names, first)


@ERAS
async def test_gateways_of_each_other_at_urls_offer_what_the_other_has(era: str) -> None:
    async with network("http") as at:
        names = await at.ring(2, lazy=True, era=era)
        for first, name in enumerate(names):
            async with Client(at.place(name), era=era) as client:
                assert (await client.call_tool(offered(names, first)[-1])).text == names[1 - first]
                assert {tool.name async for tool in client.tools()} == set(offered(names, first))
                with pytest.raises(RpcError):
                    await client.call_tool("_".join([*(names * 20), "own"]))


@ERAS
@SIZES
async def test_a_ring_is_quiet_when_nothing_happens(
    size: int, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with network() as at:
        names = await at.ring(size, era=era)
        async with Client(at.place("g0"), era=era) as client:
            assert len([tool async for tool in client.tools()]) == size
            await trio.sleep(60)
            before = at.received.total()
            await trio.sleep(3600)
            assert at.received.total() - before <= 10 * size
    assert len(names) == size


@ERAS
@SIZES
async def test_a_change_goes_round_a_ring_once(
    size: int, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with network() as at:
        names = await at.ring(size, era=era)
        for name in names:
            await tools_of(at, name, era)
        async with Client(at.place("g0"), era=era) as client, client.listen(tools=True) as listener:
            assert len([tool async for tool in client.tools()]) == size
            await trio.sleep(60)
            at.gateways[names[-1]].add_tool(lambda: "new", name="new", description="Is new.", inline=True)
            with trio.fail_after(60):
                await anext(aiter(listener))
            await trio.sleep(60)
            assert "_".join([*names[1:], "new"]) in [tool.name async for tool in client.tools()]
            before = at.received.total()
            await trio.sleep(3600)
            assert at.received.total() - before <= 10 * size


@ERAS
@pytest.mark.parametrize("prefix", [None, ""], ids=["prefix", "no prefix"])
async def test_what_nobody_in_a_ring_has_is_refused_as_unknown(
    prefix: str | None, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    settings = {} if prefix is None else {"prefix": prefix}
    async with network() as at:
        names = await at.ring(3, lazy=True, era=era, **settings)
        deep = "_".join([*names[1:], *names, "own"]) if prefix is None else "nobody_has_it"
        async with Client(at.place("g0"), era=era) as client:
            start = trio.current_time()
            with pytest.raises(RpcError):
                await client.call_tool(deep)
            with pytest.raises(RpcError):
                await client.get_prompt(deep)
            with pytest.raises(ResourceNotFound):
                await client.read_resource("nobody://has-it")
            assert not await is_granted(client, "nobody://has-it")
            assert await is_granted(client, "own://g2")
            assert trio.current_time() - start < 60
            assert (await client.call_tool("own")).text == "g0"
            assert (await client.read_resource("own://g2")).contents[0].text == "g2"
        assert at.received["g0", "resources/read"] <= 6


@ERAS
async def test_a_method_that_is_passed_on_comes_to_an_end(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with network() as at:
        await at.ring(2, lazy=True, era=era, methods=["x/ask"])
        async with Client(at.place("g0"), era=era) as client:
            with pytest.raises(RpcError):
                await client.request("x/ask", {})
        assert at.received["g0", "x/ask"] <= 3


@ERAS
async def test_a_ring_delays_a_handshake_no_longer_than_any_upstream_may(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with network() as at:
        names = await at.ring(3, era=era)
        for name in names:
            with trio.fail_after(3.5):
                async with Client(at.place(name), era=era):
                    pass


# -- gateways that are in no circle ------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_chain_of_twenty_reaches_its_end(over: str, era: str) -> None:
    async with network(over) as at:
        await at.server("s")
        before = "s"
        for number in range(20):
            await at.serve(f"g{number}", before, lazy=True, era=era, prefix="")
            before = f"g{number}"
        async with Client(at.place(before), era=era) as client:
            assert (await client.call_tool("last")).text == "s"
            assert (await client.call_tool("own")).text == before
            with pytest.raises(McpError):
                await client.call_tool("nobody_has_it")
            with trio.move_on_after(0.01):
                await client.call_tool("last")
            assert (await client.call_tool("last")).text == "s"


@ERAS
async def test_a_diamond_asks_its_last_server_once_for_each_call(era: str) -> None:
    async with network() as at:
        await at.server("s")
        await at.serve("left", "s", era=era)
        await at.serve("right", "s", era=era)
        await at.serve("top", "left", "right", era=era)
        async with Client(at.place("top"), era=era) as client:
            assert (await client.call_tool("left_s_last")).text == "s"
            assert (await client.call_tool("right_s_last")).text == "s"
            listed = {tool.name async for tool in client.tools()}
        assert listed == {"own", "left_own", "right_own", "left_s_last", "right_s_last"}


# -- ids that are made up ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [
        None,
        5,
        [],
        {"ids": []},
        {"ids": [None, 5, {}, [], "x" * 10_000]},
        {"ids": [f"made-up-{number}" for number in range(3000)]},
        {"ids": ["\u0000", "\x1b[2J"]},
    ],
    ids=lambda each: str(each)[:20],
)
@ERAS
async def test_ids_of_gateways_that_a_client_makes_up_refuse_nobody(declared: Any, era: str) -> None:
    async with network() as at:
        await at.server("s")
        await at.serve("a", "s", era=era)
        capabilities = ClientCapabilities(experimental={GATEWAYS: declared})
        async with Client(at.place("a"), era=era, capabilities=capabilities) as client:
            assert (await client.call_tool("s_last")).text == "s"
        async with Client(at.place("a"), era=era) as client:
            assert (await client.call_tool("s_last")).text == "s"
        await at.server("t")
        upstream = at.gateways["a"].mount("t", at("t"), era=era)
        async with Client(at.place("a"), era=era) as client:
            assert (await client.call_tool(f"{upstream.name}_last")).text == "t"


@ERAS
async def test_the_id_of_another_gateway_costs_only_the_client_that_sends_it(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The operator of a server behind a gateway knows its id, and may be a client of another one in front of it."""
    async with network() as at:
        await at.server("spy")
        await at.serve("b", "spy", era=era)
        await at.serve("a", "b", era=era)
        assert await tools_of(at, "b", era) == ["own", "spy_last"]
        ids = at.metas["spy"][-1][1]["experimental"][GATEWAYS]
        # Other SDKs refuse an experimental capability that is no object.
        assert list(ids) == ["ids"]
        assert len(ids["ids"]) == 1
        capabilities = ClientCapabilities(experimental={GATEWAYS: ids})
        async with Client(at.place("a"), era=era, capabilities=capabilities) as forger:
            assert [tool.name async for tool in forger.tools()] == ["own"]
            with pytest.raises(RpcError):
                await forger.call_tool("b_own")
        async with Client(at.place("a"), era=era) as forger:
            with pytest.raises(RpcError):
                await forger.call_tool("b_spy_last", meta={GATEWAYS: ids})
            await forger.request("tools/list", {"_meta": {GATEWAYS: ids}})
        async with Client(at.place("a"), era=era) as client:
            assert (await client.call_tool("b_own")).text == "b"
            assert [tool.name async for tool in client.tools()] == ["own", "b_own", "b_spy_last"]


@ERAS
async def test_gateways_are_named_to_gateways_alone(era: str, autojump_clock: trio.testing.MockClock) -> None:
    async with network() as at:
        await at.server("s")
        await at.serve("b", "s", era=era)
        await at.serve("a", "b", era=era)
        async with Client(at.place("a"), era=era) as client:
            assert GATEWAYS not in (client.server_capabilities.experimental or {})
            assert (await client.call_tool("b_s_last")).text == "s"
            assert (await client.call_tool("own")).text == "a"
        assert all(GATEWAYS not in meta for meta, _ in at.metas["s"] + at.metas["a"])
        assert any(GATEWAYS in meta for meta, _ in at.metas["b"])
