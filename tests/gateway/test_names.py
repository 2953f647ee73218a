"""Names of upstreams: what is offered has exactly one name in the gateway, which leads back to it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors._server.names import NameTable
from mcp_actors.errors import ConfigurationError, RpcError, UpstreamUnavailable
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.gateway import LONGEST_INSTRUCTIONS, LONGEST_MERGED
from mcp_actors.gateway.names import NameClaims, table_of
from mcp_actors.types import Icon, ServerCapabilities
from mcp_transports.memory import MemoryTransport
from tests.gateway.upstreams import Behind, make_server

# Few characters, so that prefixes, renames and names meet each other often.
NAMES = st.text("ab_", min_size=0, max_size=4)
PATTERNS = st.lists(st.text("ab_*?", min_size=1, max_size=3), max_size=2)


@st.composite
def tables(draw: st.DrawFn) -> NameTable:
    renames = draw(st.dictionaries(NAMES.filter(bool), NAMES.filter(bool), max_size=4))
    taken: dict[str, str] = {}
    for own, outside in renames.items():
        if outside not in taken.values():
            taken[own] = outside
    return table_of(
        Upstream(
            name="u",
            target="stdio:none",
            prefix=draw(st.one_of(st.none(), NAMES)),
            rename=taken,
            include=draw(st.one_of(st.just(["*"]), PATTERNS)),
            exclude=draw(PATTERNS),
        ),
        is_alone=draw(st.booleans()),
    )


@given(tables(), NAMES)
def test_a_name_in_the_gateway_leads_back_to_what_it_was_made_of(table: NameTable, own: str) -> None:
    outside = table.outside(own)
    assert outside is None or table.own(outside) == own


@given(tables(), st.one_of(NAMES, NAMES.map(lambda name: f"u_{name}")))
def test_what_a_name_leads_to_has_that_name(table: NameTable, outside: str) -> None:
    own = table.own(outside)
    assert own is None or table.outside(own) == outside


@given(tables(), st.sets(NAMES))
def test_no_two_things_have_one_name(table: NameTable, names: set[str]) -> None:
    outside = [name for own in names if (name := table.outside(own)) is not None]
    assert len(set(outside)) == len(outside)


def make_table(**settings: object) -> NameTable:
    return table_of(Upstream(name="u", target="stdio:none", **settings), is_alone=True)  # type: ignore[arg-type]


def test_names_have_a_prefix_or_none_or_are_renamed() -> None:
    assert make_table().outside("add") == "u_add"
    assert make_table(prefix="").outside("add") == "add"
    assert make_table(prefix="my.").outside("add") == "my.add"
    assert make_table(rename={"add": "sum"}).outside("add") == "sum"
    assert make_table(rename={"add": "sum"}).own("u_add") is None
    # The prefix would give it the name of what is renamed.
    assert make_table(prefix="", rename={"add": "sum"}).outside("sum") is None


def test_patterns_say_what_is_offered() -> None:
    table = make_table(include=["get_*", "add"], exclude=["*_secret"])
    assert [each for each in ("get_a", "add", "adds", "get_secret") if table.outside(each)] == [
        "get_a",
        "add",
    ]
    assert table.own("u_get_secret") is None
    assert make_table(include=[]).outside("add") is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rename": {"a": "c", "b": "c"}}, "renamed to the same one"),
        ({"rename": {"a": ""}}, "renamed to nothing"),
        ({"include": "a*"}, "write a list of patterns"),
    ],
)
def test_names_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_table(**settings)


@given(st.lists(st.tuples(st.sampled_from("uvw"), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_a_name_is_its_owners_until_no_list_of_the_owner_has_it(steps: list[tuple[str, str, bool]]) -> None:
    claims = NameClaims("tool")
    model: dict[str, list[str]] = {"a": [], "b": []}
    for upstream, name, claims_it in steps:
        holders = model[name]
        if claims_it:
            assert claims.claim(name, upstream, name) == (not holders or holders[0] == upstream)
            if not holders or holders[0] == upstream:
                holders.append(upstream)
        elif holders:
            claims.release(name)
            holders.pop()
        owner = claims.owners.get(name)
        assert (None if owner is None else owner.upstream) == (holders[0] if holders else None)


# -- Servers that are added to a gateway, before it serves and while it does -----------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_is_mounted_while_the_gateway_serves_is_listed_and_called(
    era: str, autojump_clock: MockClock
) -> None:
    gateway = Gateway([])
    gateway.mount("before", make_server())
    kinds: list[str] = []
    async with Client(gateway, era=era, on_change=lambda kind, uri: kinds.append(kind)) as client:
        assert {tool.name async for tool in client.tools()} >= {"before_add"}
        await trio.sleep(5)
        kinds.clear()
        gateway.mount("after", make_server(), prefix="late-")
        await trio.sleep(5)
        assert "tools" in kinds
        assert {tool.name async for tool in client.tools()} >= {"before_add", "late-add"}
        assert (await client.call_tool("late-add", {"a": 1, "b": 2})).text == "3"
        assert [each.name for each in gateway.tree().upstreams] == ["before", "after"]


def test_a_name_is_given_once_and_a_bridge_has_one_server() -> None:
    gateway = Gateway([Upstream(name="one", target=Server("s"))])
    with pytest.raises(ValueError, match="two upstreams have the name 'one'"):
        gateway.mount("one", Server("t"))
    with pytest.raises(TypeError, match="colour"):
        gateway.mount("two", Server("t"), colour="red")
    with pytest.raises(ValueError, match="has no others"):
        Gateway([Upstream(name="one", target=Server("s"))], presents=True).mount("two", Server("t"))


WRONG: list[tuple[Any, str]] = [
    ("bad url", "is not a transport URL"),
    ("foo://bar", "no transport is installed for 'foo'"),
    ("http:///mcp", "the URL names no host"),
    (7, "int"),
]


@pytest.mark.parametrize(("target", "says"), WRONG, ids=str)
async def test_a_target_that_is_none_is_refused_where_it_is_written(target: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"server 'one', target: .*{says}"):
        Gateway([Upstream(name="one", target=target)])
    gateway = Gateway([])
    with pytest.raises(ConfigurationError, match=says):
        gateway.mount("one", target)
    gateway.mount("one", make_server())
    async with Client(gateway) as client:
        assert "one_add" in {tool.name async for tool in client.tools()}


async def test_a_function_that_returns_no_target_costs_its_own_upstream_and_one_line(
    autojump_clock: MockClock,
) -> None:
    wrong = Upstream(name="wrong", target=lambda: "http:///mcp")
    with capture_logs() as logs:
        async with Client(Gateway([wrong, Upstream(name="good", target=make_server())])) as client:
            assert "good_add" in {tool.name async for tool in client.tools()}
            with pytest.raises(RpcError, match="the server 'wrong' is not available"):
                await client.call_tool("wrong_add")
    (told,) = [each for each in logs if each["log_level"] in ("warning", "error")]
    assert told["event"] == "an upstream cannot be connected to"
    assert told["error"].startswith("its target cannot be used: the URL names no host")


# -- A gateway says what it and its upstreams are and have; a bridge says what its one server says -------

ERAS = ("legacy", "modern")


def make_server_description(name: str = "s", *kinds: str, **options: Any) -> Server:
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
        Upstream(name="a", target=make_server_description("a", "tools"), era=era),
        Upstream(name="b", target=make_server_description("b", "prompts"), era=era),
    ]
    async with Client(Gateway(upstreams), era=era) as client:
        assert features_of(client.server_capabilities) == {"tools", "prompts"}
    gateway = Gateway(upstreams[:1])
    gateway.add_resource("x://{name}", lambda name: name, name="x", inline=True)
    async with Client(gateway, era=era) as client:
        assert features_of(client.server_capabilities) == {"tools", "resources", "completions"}


async def test_nobody_knows_what_a_server_has_that_nobody_has_met() -> None:
    upstreams = [Upstream(name="a", target=make_server_description("a", "tools"), lazy=True)]
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
            Upstream(name="a", target=make_server_description("a", "tools")),
        ]
    )
    transport = MemoryTransport()
    await nursery.start(gateway.serve, transport)
    waited = []
    for _ in range(2):
        began = trio.current_time()
        async with Client(transport, era=era, timeout=60, probe_timeout=60):
            waited.append(trio.current_time() - began)
    # Frameworks for agents give up after 5 s, and the gateway's own start is a part of these.
    assert waited == [pytest.approx(3), pytest.approx(0)]


async def test_instructions_stand_under_the_names_of_their_servers_and_have_a_bound() -> None:
    upstreams = [
        Upstream(name="a", target=make_server_description("a", "tools", instructions="Use a.")),
        Upstream(name="b", target=make_server_description("b", "tools")),
        Upstream(
            name="c",
            target=make_server_description("c", "tools", instructions="c" * 2 * LONGEST_INSTRUCTIONS),
        ),
    ]
    async with Client(Gateway(upstreams, instructions="Be brief.")) as client:
        text = client.instructions
        assert text is not None
        assert text.startswith("Be brief.\n\n## a\n\nUse a.\n\n## c\n\nccc")
        assert text.endswith("c…")
        assert len(text) < LONGEST_INSTRUCTIONS + 100
    many = [
        Upstream(
            name=f"u{each}",
            target=make_server_description("s", "tools", instructions="i" * LONGEST_INSTRUCTIONS),
        )
        for each in range(12)
    ]
    async with Client(Gateway(many)) as client:
        assert client.instructions is not None
        assert LONGEST_MERGED / 2 < len(client.instructions) <= LONGEST_MERGED
    async with Client(Gateway(upstreams[1:2])) as client:
        assert client.instructions is None


async def test_a_gateway_has_a_name_title_and_icons_of_its_own() -> None:
    gateway = Gateway(
        [Upstream(name="a", target=make_server_description("a", "tools"))],
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
    server = make_server_description(
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


async def let_in(slow: Behind, seconds: float) -> None:
    await trio.sleep(seconds)
    slow.gate.set()


@pytest.mark.parametrize("era", ERAS)
async def test_a_bridge_waits_for_a_server_that_starts_slowly(
    era: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    slow = Behind(nursery)
    await slow.come()
    slow.gate = trio.Event()
    bridge = Gateway([Upstream(name="s", target=slow, prefix="")], presents=True)
    transport = MemoryTransport()
    await nursery.start(bridge.serve, transport)
    began = trio.current_time()
    nursery.start_soon(let_in, slow, 25)
    async with Client(transport, era=era, timeout=60, probe_timeout=60) as client:
        assert trio.current_time() - began == pytest.approx(25)
        assert client.server_info is not None
        assert client.server_info.name == slow.server.name


async def test_a_bridge_without_its_server_lets_nobody_in() -> None:
    bridge = Gateway([Upstream(name="s", target="stdio:false", prefix="", lazy=True)], presents=True)
    with pytest.raises(UpstreamUnavailable, match="'s' is not available"):
        async with Client(bridge, era="legacy"):
            pytest.fail("it was let in")


def test_a_bridge_has_one_server() -> None:
    with pytest.raises(ValueError, match="of one upstream, not of 0"):
        Gateway([], presents=True)
