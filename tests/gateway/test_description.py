"""A gateway says what it and its upstreams are and have; a bridge says what its one server says."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.errors import UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.gateway import LONGEST_INSTRUCTIONS, LONGEST_MERGED
from mcp_actors.gateway.lists import LIST_TIMEOUT
from mcp_actors.types import Icon, ServerCapabilities
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind

ERAS = ("legacy", "modern")


def make_server(name: str = "s", *kinds: str, **options: Any) -> Server:
    return Server(name, capabilities=kinds, **options)  # type: ignore[arg-type]


def features_of(capabilities: ServerCapabilities) -> set[str]:
    return {
        name
        for name in ("tools", "prompts", "resources", "completions")
        if getattr(capabilities, name) is not None
    }


@pytest.mark.parametrize("era", ERAS)
async def test_a_gateway_declares_what_any_of_its_servers_has(era: str) -> None:
    upstreams = [
        Upstream(name="a", target=make_server("a", "tools"), era=era),
        Upstream(name="b", target=make_server("b", "prompts"), era=era),
    ]
    async with Client(Gateway(upstreams), era=era) as client:
        assert features_of(client.server_capabilities) == {"tools", "prompts"}
    gateway = Gateway(upstreams[:1])
    gateway.add_resource("x://{name}", lambda name: name, name="x", inline=True)
    async with Client(gateway, era=era) as client:
        assert features_of(client.server_capabilities) == {"tools", "resources", "completions"}


async def test_nobody_knows_what_a_server_has_that_nobody_has_met() -> None:
    upstreams = [Upstream(name="a", target=make_server("a", "tools"), lazy=True)]
    async with Client(Gateway(upstreams)) as client:
        assert features_of(client.server_capabilities) == {"tools", "prompts", "resources", "completions"}
        assert [each async for each in client.prompts()] == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_cannot_be_met_delays_the_first_client_alone(
    era: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    away, stuck = Behind(nursery), Behind(nursery)
    stuck.gate = trio.Event()
    gateway = Gateway(
        [
            Upstream(name="away", target=away),
            Upstream(name="stuck", target=stuck),
            Upstream(name="a", target=make_server("a", "tools")),
        ]
    )
    transport = MemoryTransport()
    await nursery.start(gateway.serve, transport)
    waited = []
    for _ in range(2):
        began = trio.current_time()
        async with Client(transport, era=era, timeout=60, probe_timeout=60):
            waited.append(trio.current_time() - began)
    assert waited == [pytest.approx(LIST_TIMEOUT), pytest.approx(0)]


async def test_instructions_stand_under_the_names_of_their_servers_and_have_a_bound() -> None:
    upstreams = [
        Upstream(name="a", target=make_server("a", "tools", instructions="Use a.")),
        Upstream(name="b", target=make_server("b", "tools")),
        Upstream(name="c", target=make_server("c", "tools", instructions="c" * 2 * LONGEST_INSTRUCTIONS)),
    ]
    async with Client(Gateway(upstreams, instructions="Be brief.")) as client:
        text = client.instructions
        assert text is not None
        assert text.startswith("Be brief.\n\n## a\n\nUse a.\n\n## c\n\nccc")
        assert text.endswith("c…")
        assert len(text) < LONGEST_INSTRUCTIONS + 100
    many = [
        Upstream(name=f"u{each}", target=make_server("s", "tools", instructions="i" * LONGEST_INSTRUCTIONS))
        for each in range(12)
    ]
    async with Client(Gateway(many)) as client:
        assert client.instructions is not None
        assert LONGEST_MERGED / 2 < len(client.instructions) <= LONGEST_MERGED
    async with Client(Gateway(upstreams[1:2])) as client:
        assert client.instructions is None


async def test_a_gateway_has_a_name_title_and_icons_of_its_own() -> None:
    gateway = Gateway(
        [Upstream(name="a", target=make_server("a", "tools"))],
        "all",
        version="3",
        title="All of it",
        icons=[Icon("https://x/i.png")],
    )
    async with Client(gateway) as client:
        info = client.server_info
        assert (info.name, info.version, info.title) == ("all", "3", "All of it")
        assert info.icons == [Icon("https://x/i.png")]


@pytest.mark.parametrize("client_era", ERAS)
@pytest.mark.parametrize("server_era", ERAS)
async def test_a_bridge_describes_itself_as_its_server_does(client_era: str, server_era: str) -> None:
    server = make_server(
        "calc",
        "tools",
        version="7",
        title="Calculator",
        instructions="Add.",
        website_url="https://calc",
        experimental={"x": {"y": 1}},
    )

    @server.tool
    async def add(a: int, b: int) -> dict[str, int]:
        """Adds."""
        return {"sum": a + b}

    bridge = Gateway([Upstream(name="s", target=server, prefix="", era=server_era)], presents=True)
    async with Client(server, era=client_era) as direct, Client(bridge, era=client_era) as client:
        assert client.server_info == direct.server_info
        assert client.instructions == "Add."
        assert client.server_capabilities == attrs.evolve(
            direct.server_capabilities, tools=client.server_capabilities.tools
        )
        assert features_of(client.server_capabilities) == {"tools"}
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == {"sum": 3}
        result = await client.request("tools/list")
        assert result == await direct.request("tools/list")


async def test_a_bridge_without_its_server_lets_nobody_in() -> None:
    bridge = Gateway([Upstream(name="s", target="stdio:false", prefix="", lazy=True)], presents=True)
    with pytest.raises(UpstreamUnavailable, match="'s' is not available"):
        async with Client(bridge, era="legacy"):
            pytest.fail("it was let in")


def test_a_bridge_has_one_server() -> None:
    with pytest.raises(ValueError, match="of one upstream, not of 0"):
        Gateway([], presents=True)
