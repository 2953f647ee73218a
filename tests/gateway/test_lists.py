"""The lists of a gateway: its own entries, and those of all upstreams that answer."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors._schema.validate import MOST_COMPILED, PATTERN_BYTES
from mcp_actors.errors import ResourceNotFound, RpcError, UpstreamUnavailable
from mcp_actors.gateway import Gateway, SessionPolicy, Upstream
from mcp_actors.gateway.lists import LIST_PAUSE
from mcp_actors.supervision.principal import Principal
from mcp_actors.tasks import Tasks
from mcp_actors.testing import connected_pair, raw_client
from mcp_actors.types import (
    Annotations,
    Icon,
    ListToolsResult,
    PromptReference,
    Resource,
    ResourceLink,
    ResourceTemplateReference,
    Tool,
    ToolAnnotations,
    ToolExecution,
)
from tests.gateway.upstreams import Behind, cancel_after

ERAS = ("legacy", "modern")


def make_server(name: str = "s", *tools: str, **options: Any) -> Server:
    server = Server(name, **options)
    for each in tools:

        async def call(which: str = f"{name}.{each}") -> str:
            return which

        server.add_tool(call, name=each, description="A tool.")
    return server


def make_library(name: str, scheme: str) -> Server:
    """Returns a server with a resource, a template, a prompt that completes, and a resource that it lists nowhere."""
    server = Server(name)

    @server.resource(f"{scheme}://index", name="index")
    async def index() -> str:
        return f"{name} index"

    @server.resource(f"{scheme}://books/{{title}}", name="books")
    async def book(title: str) -> str:
        return f"{name} book {title}"

    @server.prompt
    async def greet(who: str) -> str:
        """Greets."""
        return f"{name} greets {who}"

    @server.completion(prompt="greet", argument="who")
    async def who(value: str) -> list[str]:
        return [f"{name}-{value}"]

    @server.completion(resource=f"{scheme}://books/{{title}}", argument="title")
    async def title(value: str) -> list[str]:
        return [f"{name}-book-{value}"]

    return server


async def names_of(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_has_no_method_for_a_list_that_it_declared_has_none(era: Any) -> None:
    half = make_server("half", "x", capabilities=["resources", "prompts"])
    for method in ("resources/list", "resources/templates/list", "prompts/list"):
        del half._features.handlers[method]
    gateway = Gateway(
        [Upstream(name="half", target=half, era=era), Upstream(name="a", target=make_library("a", "aa"))]
    )
    with capture_logs() as logs:
        async with connected_pair(gateway) as client:
            assert [each.name async for each in client.tools()] == ["half_x"]
            assert [each.uri async for each in client.resources()] == ["aa://index"]
            assert [each.name async for each in client.prompts()] == ["a_greet"]
    assert [each["event"] for each in logs if each["log_level"] in ("warning", "error")] == []


@pytest.mark.parametrize("era", ERAS)
async def test_the_gateways_own_come_first_then_those_of_the_upstreams_in_order(era: str) -> None:
    gateway = Gateway(
        [
            Upstream(name="b", target=make_server("b", "x", "y"), rename={"y": "why"}, era=era),
            Upstream(name="a", target=make_server("a", "x"), prefix="", era=era),
        ]
    )
    gateway.add_tool(lambda: "mine", name="own", description="Its own.")
    async with Client(gateway, era=era) as client:
        assert await names_of(client) == ["own", "b_x", "why", "x"]
        for name, text in {"own": "mine", "b_x": "b.x", "why": "b.y", "x": "a.x"}.items():
            assert (await client.call_tool(name)).text == text
        with pytest.raises(RpcError, match="unknown tool: b_y"):
            await client.call_tool("b_y")


async def test_what_the_patterns_leave_out_is_neither_seen_nor_used() -> None:
    upstream = Upstream(name="u", target=make_server("u", "get", "drop"), exclude=["drop*"])
    async with Client(Gateway([upstream])) as client:
        assert await names_of(client) == ["u_get"]
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("u_drop")


async def test_of_two_with_one_name_the_first_has_it_and_that_is_logged_once() -> None:
    gateway = Gateway(
        [
            Upstream(name="a", target=make_server("a", "x", "mine"), prefix=""),
            Upstream(name="b", target=make_server("b", "x", "y"), prefix=""),
        ]
    )
    gateway.add_tool(lambda: "own", name="mine", description="Its own.")
    with capture_logs() as logs:
        async with Client(gateway) as client:
            # Nothing was listed: the ones that may have it are asked in order.
            assert (await client.call_tool("x")).text == "a.x"
            assert await names_of(client) == ["mine", "x", "y"]
            assert await names_of(client) == ["mine", "x", "y"]
            assert (await client.call_tool("mine")).text == "own"
    collisions = [
        (each["name"], each["upstream"], each["owner"]) for each in logs if "another server" in each["event"]
    ]
    assert collisions == [("x", "b", "a"), ("mine", "a", "the gateway itself")]


async def test_a_name_does_not_fall_to_another_server_while_its_own_is_away(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    first = Behind(nursery, make_server("a", "x"))
    await first.come()
    gateway = Gateway(
        [
            Upstream(name="a", target=first, prefix="", lazy=True),
            Upstream(name="b", target=make_server("b", "x", "y"), prefix=""),
        ]
    )
    async with Client(gateway) as client:
        assert await names_of(client) == ["x", "y"]
        first.go()
        await trio.sleep(1)
        assert await names_of(client) == ["y"]
        with pytest.raises(UpstreamUnavailable, match="'a'"):
            await client.call_tool("x")
        await first.come()
        await trio.sleep(40)
        assert (await client.call_tool("x")).text == "a.x"


async def test_a_name_keeps_its_meaning_when_an_earlier_server_gets_it_too() -> None:
    early, late = make_server("a", "z"), make_server("b", "x")
    upstreams = [Upstream(name="a", target=early, prefix=""), Upstream(name="b", target=late, prefix="")]
    async with Client(Gateway(upstreams)) as client, client.listen(tools=True) as changes:
        assert await names_of(client) == ["z", "x"]

        async def another() -> str:
            return "a.x"

        early.add_tool(another, name="x", description="Another one.")
        await anext(changes)
        assert await names_of(client) == ["z", "x"]
        assert (await client.call_tool("x")).text == "b.x"
        late.remove_tool("x")
        await anext(changes)
        assert await names_of(client) == ["z", "x"]
        assert (await client.call_tool("x")).text == "a.x"


async def test_names_that_clients_may_refuse_are_warned_of_once() -> None:
    with capture_logs() as logs:
        async with Client(Gateway([Upstream(name="u", target=make_server("u", "n" * 63, "a.b"))])) as client:
            for _ in range(2):
                await names_of(client)
    warned = [each for each in logs if "some clients refuse names" in each["event"]]
    assert [(each["name"], each["names"]) for each in warned] == [("u_" + "n" * 63, 2)]


async def test_a_function_says_what_each_caller_sees() -> None:
    asked: list[tuple[Principal | None, str, str, str]] = []

    def visible(principal: Principal | None, upstream: str, kind: str, name: str) -> bool:
        asked.append((principal, upstream, kind, name))
        if name == "broken":
            raise KeyError(name)
        return name != "y"

    gateway = Gateway([Upstream(name="u", target=make_server("u", "x", "y", "broken"))], visible=visible)
    async with Client(gateway) as client:
        assert await names_of(client) == ["u_x"]
        for name in ("u_y", "u_broken"):
            with pytest.raises(RpcError, match="unknown tool"):
                await client.call_tool(name)
    assert (None, "u", "tools", "y") in asked


# -- what is kept of an entry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_era", ERAS)
@pytest.mark.parametrize("server_era", ERAS)
async def test_an_entry_keeps_all_that_its_server_says_of_it(client_era: str, server_era: str) -> None:
    server = Server("s")
    options: Any = {
        "title": "Title",
        "annotations": ToolAnnotations(read_only_hint=True),
        "icons": [Icon("https://x/i.png")],
        "meta": {"vendor/key": [1]},
    }

    @server.tool(**options)
    async def count() -> dict[str, int]:
        """Counts."""
        return {"n": 1}

    server.add_resource(
        "data://r",
        lambda: "r",
        name="r",
        title="R",
        annotations=Annotations(priority=0.5),
        icons=[Icon("https://x/r.png")],
        meta={"k": 1},
        size=1,
        mime_type="text/plain",
    )
    async with (
        Client(server, era=client_era) as direct,
        Client(
            Gateway([Upstream(name="s", target=server, prefix="", era=server_era)]), era=client_era
        ) as client,
    ):
        assert [each async for each in client.tools()] == [each async for each in direct.tools()]
        assert [each async for each in client.resources()] == [each async for each in direct.resources()]
        assert (await client.call_tool("count")).structured_content == {"n": 1}


@pytest.mark.parametrize("client_era", ERAS)
@pytest.mark.parametrize("server_era", [*ERAS, "2025-06-18"])
async def test_an_icon_that_could_run_something_reaches_no_client(client_era: str, server_era: str) -> None:
    server = Server("s")
    good, bad = Icon("https://x/i.png"), Icon("javascript:alert(1)")
    server.add_resource(
        "x://{a}", lambda a: a, name="x", list=lambda: [Resource("x://r", "r", icons=[bad, good])]
    )
    gateway = Gateway([Upstream(name="s", target=server, era=server_era)])
    for target in (server, gateway):
        async with Client(target, era=client_era) as client:
            (resource,) = [each async for each in client.resources()]
            assert resource.icons in ([good], None)


async def test_a_tool_that_runs_as_a_task_only_is_listed_as_one_that_may() -> None:
    """Who is told ``required`` has to be refused a plain call (MCP 2025-11-25), and the gateway can make it."""
    server = Server("s", extensions=[Tasks()])

    @server.tool(task="required")
    async def report() -> str:
        """Writes a report."""
        return "written"

    gateway = Gateway([Upstream(name="s", target=server, era="legacy")])
    async with Client(gateway, era="legacy") as client:
        assert [each.execution async for each in client.tools()] == [ToolExecution("optional")]
        assert (await client.call_tool("s_report")).text == "written"


NESTED = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "at": {"$ref": "#/$defs/Point"},
        "tree": {"$ref": "#/$defs/Tree"},
    },
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    },
}


def make_nested() -> Server:
    """Returns a server with tools that say what they were called with, as any other server might list them."""
    server = Server("nested", arguments="strict")
    long = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/L"}},
        "$defs": {"L": {"title": "x" * 70_000}},
    }
    for name, schema in (("one", NESTED), ("long", long)):

        @server.tool(name=name, input_schema=schema, output_schema=NESTED if name == "one" else None)
        async def call(arguments: dict[str, Any]) -> dict[str, Any]:
            """Says it."""
            return arguments

    return server


async def test_schemas_are_listed_without_references_where_that_is_set() -> None:
    settings = [("plain", {}), ("written", {"inline_refs": True})]
    gateway = Gateway([Upstream(name=name, target=make_nested(), **more) for name, more in settings])
    async with Client(gateway) as client:
        tools = {each.name: each async for each in client.tools()}
    assert tools["plain_one"].input_schema == NESTED
    written = tools["written_one"]
    assert written.input_schema["properties"]["at"] == NESTED["$defs"]["Point"]
    assert written.input_schema == written.output_schema
    # A circle cannot be written out, and what is too long for a model is not worth the time.
    assert written.input_schema["$defs"] == {"Tree": NESTED["$defs"]["Tree"]}
    assert tools["written_long"].input_schema == tools["plain_long"].input_schema


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("behind", ERAS)
async def test_arguments_are_repaired_for_an_upstream_where_that_is_set(
    era: str, behind: str, listed: bool
) -> None:
    plain = Upstream(name="plain", target=make_nested(), era=behind)
    repaired = Upstream(name="repaired", target=make_nested(), era=behind, arguments="repair")
    gateway = Gateway([plain, repaired], arguments="strict")
    wrong = {"count": "3", "at": '{"x": "1"}'}
    async with connected_pair(gateway, era=era) as client:
        if listed:
            assert len(await names_of(client)) == 4
        fits = await client.call_tool("repaired_one", {"count": 3})
        assert fits.structured_content == {"count": 3}
        assert "mcp-actors/repaired" not in (fits.meta or {})
        result = await client.call_tool("repaired_one", wrong)
        assert result.structured_content == {"count": 3, "at": {"x": 1}}
        assert (result.meta or {})["mcp-actors/repaired"] == {"arguments": ["count", "at", "at.x"]}
        for name, arguments in (("plain_one", wrong), ("repaired_one", {"count": "three"})):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert "count" in refused.text
        assert gateway.tree().repaired == {"repaired_one": 1}


async def test_what_is_compiled_of_the_schemas_of_upstreams_has_a_bound() -> None:
    """An upstream lists as many tools as it likes, and its callers use them all."""
    server = Server("s", arguments="strict")
    tools = 2 * MOST_COMPILED // PATTERN_BYTES
    for number in range(tools):
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "text": {"pattern": f"^{number}"}},
        }

        @server.tool(name=f"t{number}", input_schema=schema)
        async def call(arguments: dict[str, Any]) -> dict[str, Any]:
            """Says it."""
            return arguments

    gateway = Gateway([Upstream(name="x", target=server, arguments="repair")])
    async with Client(gateway, era="modern") as client:
        await names_of(client)
        for number in (*range(tools), 0):
            result = await client.call_tool(f"x_t{number}", {"n": "3", "text": str(number)})
            assert result.structured_content == {"n": 3, "text": str(number)}
        (live,) = gateway._live.values()
        compiled = live.tool_schemas._compiled
        assert 0 < len(compiled) * PATTERN_BYTES <= MOST_COMPILED


async def test_members_that_nobody_knows_stay_and_what_is_no_entry_is_left_out() -> None:
    server = Server("s", capabilities=["tools"])
    good = {"name": "good", "inputSchema": {"type": "object"}, "x-future": {"a": 1}}
    entries = [good, {"name": 5, "inputSchema": {}}, "text", {"inputSchema": {}}, good]
    server._features.handlers["tools/list"] = lambda ctx: {"tools": entries}
    with capture_logs() as logs:
        async with Client(Gateway([Upstream(name="u", target=server)])) as client:
            tools = [each async for each in client.tools()]
    assert [(each.name, each.extra) for each in tools] == [("u_good", {"x-future": {"a": 1}})]
    left_out = [each for each in logs if each["event"].startswith("entries of a list")]
    assert [each["entries"] for each in left_out] == [4]


@pytest.mark.parametrize("result", [{"tools": 5}, {"tools": None}, {}, {"tools": {"name": "x"}}])
async def test_an_answer_that_is_no_list_costs_its_own_server_alone(result: dict[str, Any]) -> None:
    broken = Server("s", capabilities=["tools"])
    broken._features.handlers["tools/list"] = lambda ctx: result
    upstreams = [Upstream(name="u", target=broken), Upstream(name="v", target=make_server("v", "x"))]
    async with Client(Gateway(upstreams)) as client:
        assert await names_of(client) == ["v_x"]


async def test_pages_without_an_end_and_lists_without_a_bound_are_cut(autojump_clock: MockClock) -> None:
    endless, huge = Server("s", capabilities=["tools"]), Server("s", capabilities=["tools"])
    pages = 0

    def next_page(ctx: Any) -> ListToolsResult:
        nonlocal pages
        pages += 1
        return ListToolsResult([Tool(f"t{pages}", {"type": "object"})], f"page {pages}")

    endless._features.handlers["tools/list"] = next_page
    many = ListToolsResult([Tool(f"t{each}", {"type": "object"}) for each in range(6000)])
    huge._features.handlers["tools/list"] = lambda ctx: many
    upstreams = [
        Upstream(name="endless", target=endless),
        Upstream(name="huge", target=huge),
        Upstream(name="v", target=make_server("v", "x")),
    ]
    with capture_logs() as logs:
        async with Client(Gateway(upstreams, page_size=1000)) as client:
            names = await names_of(client)
    assert names[-1] == "v_x"
    assert (len([each for each in names if each.startswith("endless_")]), pages) == (100, 100)
    assert len([each for each in names if each.startswith("huge_")]) == 5000
    assert {each["upstream"] for each in logs if "longer than the gateway reads" in each["event"]} == {
        "endless",
        "huge",
    }


# -- pages and hints --------------------------------------------------------------------------------------------------


async def test_a_cursor_stays_good_while_upstreams_come_and_go(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behinds = [Behind(nursery, make_server(name, "1", "2", "3")) for name in "abc"]
    for each in behinds:
        await each.come()
    gateway = Gateway(
        [Upstream(name=name, target=each) for name, each in zip("abc", behinds, strict=True)], page_size=2
    )
    async with Client(gateway) as client:
        seen = []
        cursor = None
        for turn in range(6):
            page = await client.list_tools(cursor)
            seen += [each.name for each in page.tools]
            cursor = page.next_cursor
            if turn == 1:
                # The page after a_3, b_1 begins in the middle of a server that is away now.
                behinds[1].go()
                await trio.sleep(1)
            if turn == 2:
                await behinds[1].come()
                await trio.sleep(40)
            if cursor is None:
                break
    assert seen == ["a_1", "a_2", "a_3", "b_1", "c_1", "c_2", "c_3"]


async def test_the_least_time_and_the_narrowest_scope_of_all_lists_are_promised(
    autojump_clock: MockClock,
) -> None:
    public = make_server("a", "x", ttl_ms=60_000, cache_scope="public")
    private = make_server("b", "x", ttl_ms=9_000)
    silent = make_server("c", "x")

    async def promised(*servers: tuple[Server, str], wait: float = 0, **options: Any) -> tuple[Any, Any]:
        upstreams = [
            Upstream(name=f"u{index}", target=server, era=era) for index, (server, era) in enumerate(servers)
        ]
        async with Client(Gateway(upstreams, **options), era="modern") as client:
            await client.list_tools()
            await trio.sleep(wait)
            page = await client.list_tools(refresh=True)
            return page.ttl_ms, page.cache_scope

    assert await promised((public, "modern")) == (60_000, "public")
    assert await promised((public, "modern"), wait=20) == (40_000, "public")
    assert await promised((public, "modern"), (private, "modern")) == (9_000, "private")
    assert await promised((public, "modern"), (silent, "legacy")) == (0, "private")
    mine: Any = {"ttl_ms": 500, "cache_scope": "public"}
    assert await promised((public, "modern"), (silent, "legacy"), **mine) == (500, "public")


async def test_a_page_that_is_too_long_is_cut_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.gateway.listing.MAX_BYTES", 20_000)
    long = Server("long")

    async def call() -> str:
        return "x"

    for number in range(30):
        long.add_tool(call, name=f"t{number:02}", description="x" * 1000)
    with capture_logs() as logs:
        async with Client(Gateway([Upstream(name="u", target=long, prefix="")])) as client:
            names = await names_of(client)
    assert 10 < len(names) < 20
    assert names == [f"t{number:02}" for number in range(len(names))]
    assert [each["entries"] for each in logs if "longer than the gateway reads" in each["event"]] == [
        len(names)
    ]


# -- upstreams that are slow or away ----------------------------------------------------------------------------------


def slow_server(name: str, seconds: float) -> Server:
    slow = make_server(name, "x")

    @slow.middleware
    async def late(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/list":
            await trio.sleep(seconds)
        return await call_next()

    return slow


# The settings of the upstream and of the gateway, and the seconds for which the first list waits.
WAITS: dict[str, tuple[float | None, dict[str, Any], float]] = {
    "by default": (None, {}, 30),
    "of the gateway": (None, {"wait": 5}, 5),
    "of the upstream": (3, {"wait": 5}, 3),
    "not at all": (0, {}, 0),
}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("own", "options", "seconds"), WAITS.values(), ids=WAITS.keys())
async def test_a_slow_server_delays_one_list_by_a_bound_and_comes_in_later(
    own: float | None, options: dict[str, Any], seconds: float, era: str, autojump_clock: MockClock
) -> None:
    upstreams = [
        Upstream(name="slow", target=slow_server("s", seconds + 5), wait=own),
        Upstream(name="v", target=make_server("v", "x")),
    ]
    told: list[tuple[str, Any, str | None]] = []
    changes: list[str] = []
    client = Client(
        Gateway(upstreams, **options),
        era=era,
        timeout=100,
        on_log=lambda *message: told.append(message),
        on_change=lambda kind, uri: changes.append(kind),
    )
    with capture_logs() as logs:
        async with client:
            began = trio.current_time()
            assert await names_of(client) == ["v_x"]
            assert trio.current_time() - began == pytest.approx(seconds)
            assert told == [
                (
                    "warning",
                    "the list of tools is not complete: slow does not answer yet; "
                    "a notification follows when it is",
                    "gateway",
                )
            ]
            began = trio.current_time()
            assert await names_of(client) == ["v_x"]
            assert trio.current_time() == pytest.approx(began)
            with trio.fail_after(60):
                async with client.listen(tools=True) as listener:
                    assert (await anext(listener)).kind == "tools"
            assert await names_of(client) == ["slow_x", "v_x"]
    missing = [each for each in logs if "not complete" in each["event"]]
    assert [(each["upstream"], each["list"]) for each in missing] == [("slow", "tools")]


@pytest.mark.parametrize("era", ERAS)
async def test_the_list_before_is_shown_while_a_server_does_not_answer(
    era: str, autojump_clock: MockClock
) -> None:
    upstream = make_server("u", "x")
    hangs = False

    @upstream.middleware
    async def late(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/list" and hangs:
            await trio.sleep(60)
        return await call_next()

    gateway = Gateway([Upstream(name="u", target=upstream, era=era)], wait=5)
    with capture_logs(), trio.fail_after(300):
        async with Client(gateway, timeout=100) as client:
            assert await names_of(client) == ["u_x"]
            hangs = True
            upstream.add_tool(lambda: "y", name="y", description="Another tool.")
            async with client.listen(tools=True) as listener:
                assert (await anext(listener)).kind == "tools"
                assert await names_of(client) == ["u_x"]
                assert (await anext(listener)).kind == "tools"
            assert await names_of(client) == ["u_x", "u_y"]


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_wait_that_is_none_is_refused_at_once(wait: float) -> None:
    with pytest.raises(ValueError, match="wait is a number, at least 0"):
        Gateway([], wait=wait)
    with pytest.raises(ValueError, match="the wait of the upstream 'u' is a number, at least 0"):
        Gateway([Upstream(name="u", target=make_server(), wait=wait)])


async def test_one_message_names_some_of_many_that_are_missing(autojump_clock: MockClock) -> None:
    upstreams = [
        Upstream(name=f"u{number}", target=slow_server("s", 60), wait=1, era="modern") for number in range(12)
    ]
    told: list[Any] = []
    async with Client(Gateway(upstreams), on_log=lambda level, data, logger: told.append(data)) as client:
        assert await names_of(client) == []
    [message] = told
    assert "u0, u1, u2, u3, u4, u5, u6, u7, u8, u9 and 2 more do not answer yet" in message


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_without_a_level_gets_the_log_messages_of_its_own_connection(era: str) -> None:
    server = Server("talks")

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.log("info", "said")
        await ctx.log("debug", "mumbled")
        return "done"

    gateway = Gateway([Upstream(name="u", target=server, prefix="", era=era, sessions="own")])
    initialize = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    with trio.fail_after(20):
        async with raw_client(gateway) as peer:
            await peer.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize})
            assert (await peer.receive())["id"] == 1
            await peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            params = {"name": "talk", "arguments": {}}
            await peer.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
            messages = [await peer.receive(), await peer.receive()]
    assert messages[0]["params"]["data"] == "said"
    assert messages[1]["result"]["content"][0]["text"] == "done"


async def test_a_server_that_comes_back_is_listed_again_and_clients_are_told(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    behind = Behind(nursery, make_server("a", "x"))
    await behind.come()
    upstreams = [
        Upstream(name="a", target=behind, era="legacy", sessions="shared"),
        Upstream(name="b", target=make_server("b", "x")),
    ]
    async with Client(Gateway(upstreams)) as client:
        assert await names_of(client) == ["a_x", "b_x"]
        async with client.listen(tools=True) as changes:
            behind.go()
            await trio.sleep(1)
            assert await names_of(client) == ["b_x"]
            await behind.come()
            assert (await anext(changes)).kind == "tools"
            assert await names_of(client) == ["a_x", "b_x"]


@pytest.mark.parametrize("era", ERAS)
async def test_lists_are_kept_until_the_server_says_that_they_have_changed(
    era: str, autojump_clock: MockClock
) -> None:
    server = make_server("s", "x")
    asked = 0

    @server.middleware
    async def counted(ctx: Any, call_next: Any) -> Any:
        nonlocal asked
        asked += ctx.method == "tools/list"
        return await call_next()

    gateway = Gateway([Upstream(name="u", target=server, era=era)])
    async with Client(gateway, era=era) as client, client.listen(tools=True) as changes:
        async with trio.open_nursery() as together:
            for _ in range(5):
                together.start_soon(names_of, client)
        await trio.sleep(100)
        assert await names_of(client) == ["u_x"]
        assert asked == 1
        server.add_tool(lambda: "y", name="y", description="Y.", inline=True)
        await anext(changes)
        assert await names_of(client) == ["u_x", "u_y"]
        assert asked == 2


async def test_a_flood_of_changes_is_put_together(autojump_clock: MockClock) -> None:
    server = make_server("s", "x")
    told = 0

    def count(kind: str, uri: str | None) -> None:
        nonlocal told
        told += 1

    gateway = Gateway([Upstream(name="u", target=server, era="legacy")])
    async with Client(gateway, era="legacy", on_change=count) as client:
        assert await names_of(client) == ["u_x"]
        for _ in range(200):
            server.bus.publish("tools")
            await trio.sleep(0.01)
        await trio.sleep(LIST_PAUSE)
    assert 2 <= told <= 4


# -- resources, prompts and completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("client_era", ERAS)
@pytest.mark.parametrize("server_era", ERAS)
async def test_resources_prompts_and_completions_reach_their_servers(
    client_era: str, server_era: str
) -> None:
    gateway = Gateway(
        [
            Upstream(name="a", target=make_library("a", "aa"), era=server_era),
            Upstream(name="b", target=make_library("b", "bb"), era=server_era, rename={"greet": "hello"}),
        ]
    )
    gateway.add_resource("own://r", lambda: "own r", name="r", inline=True)
    async with Client(gateway, era=client_era) as client:
        assert [each.uri async for each in client.resources()] == ["own://r", "aa://index", "bb://index"]
        templates = [each.uri_template async for each in client.resource_templates()]
        assert templates == ["aa://books/{title}", "bb://books/{title}"]
        assert [each.name async for each in client.prompts()] == ["a_greet", "hello"]
        texts = {
            "own://r": "own r",
            "aa://index": "a index",
            "bb://index": "b index",
            "bb://books/emma": "b book emma",
        }
        for uri, text in texts.items():
            assert (await client.read_resource(uri)).text == text
        with pytest.raises(ResourceNotFound):
            await client.read_resource("cc://index")
        assert (await client.get_prompt("hello", {"who": "you"})).text == "b greets you"
        assert (await client.complete(PromptReference("hello"), "who", "x")).values == ["b-x"]
        template = ResourceTemplateReference("aa://books/{title}")
        assert (await client.complete(template, "title", "x")).values == ["a-book-x"]
        for ref in (PromptReference("b_greet"), ResourceTemplateReference("cc://{title}")):
            with pytest.raises(RpcError):
                await client.complete(ref, "who", "x")


async def test_a_uri_is_that_of_the_server_that_lists_it_and_stays_so() -> None:
    first, second = Server("a"), Server("b")
    first.add_resource("x://{name}", lambda name: f"a template {name}", name="t", inline=True)
    second.add_resource("x://listed", lambda: "b listed", name="l", inline=True)
    gateway = Gateway([Upstream(name="a", target=first), Upstream(name="b", target=second)])
    async with Client(gateway) as client:
        assert (await client.read_resource("x://listed")).text == "b listed"
        assert (await client.read_resource("x://other")).text == "a template other"


@pytest.mark.parametrize("era", ERAS)
async def test_a_link_to_what_no_server_lists_can_be_read(era: str) -> None:
    server = make_library("a", "aa")

    @server.tool
    async def make() -> ResourceLink:
        """Makes a resource."""
        return ResourceLink("note://1", "made")

    answered = server._features.handlers["resources/read"]

    def read(ctx: Any) -> Any:
        if ctx.params["uri"] == "note://1":
            return {"contents": [{"uri": "note://1", "text": "made"}]}
        return answered(ctx)

    server._features.handlers["resources/read"] = read
    gateway = Gateway(
        [
            Upstream(name="b", target=make_library("b", "bb"), era=era),
            Upstream(name="a", target=server, era=era),
        ]
    )
    async with Client(gateway, era=era) as client:
        (link,) = (await client.call_tool("a_make")).content
        assert isinstance(link, ResourceLink)
        assert (await client.read_resource(link.uri)).text == "made"


async def test_uris_that_the_patterns_leave_out_are_not_read() -> None:
    upstreams = [
        Upstream(name="a", target=make_library("a", "aa"), exclude=["aa://books/secret*"]),
        Upstream(name="b", target=make_library("b", "bb"), include=["bb://books/{title}"]),
    ]
    async with Client(Gateway(upstreams)) as client:
        assert [each.uri async for each in client.resources()] == ["aa://index"]
        assert (await client.read_resource("bb://books/emma")).text == "b book emma"
        for uri in ("aa://books/secret-1", "bb://index"):
            with pytest.raises(ResourceNotFound):
                await client.read_resource(uri)


async def test_completion_of_a_server_that_has_none_is_empty() -> None:
    plain = Server("p")

    @plain.prompt
    async def ask(what: str) -> str:
        """Asks."""
        return what

    plain._features.present(_without_completions(plain))
    gateway = Gateway([Upstream(name="p", target=plain), Upstream(name="a", target=make_library("a", "aa"))])
    async with Client(gateway) as client:
        assert (await client.complete(PromptReference("p_ask"), "what", "x")).values == []


def _without_completions(server: Server) -> Any:
    capabilities = server._features.capabilities()
    capabilities.completions = None
    return capabilities


@pytest.mark.slow
@pytest.mark.parametrize("sessions", ["own", "shared"])
async def test_a_list_that_is_cancelled_at_any_turn_is_there_for_the_next_who_asks(
    sessions: SessionPolicy, autojump_clock: MockClock
) -> None:
    """While it is connected to the upstreams for it, while they are asked, and while it is merged."""
    finished = cancelled = 0
    for turns in range(200):
        upstreams = [
            Upstream(name=name, target=make_server(name, "x"), sessions=sessions, lazy=True, era="legacy")
            for name in ("one", "two")
        ]
        gateway = Gateway(upstreams)
        async with Client(gateway, era="legacy") as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, turns, scope)
                    assert await names_of(client) == ["one_x", "two_x"]
                    finished += 1
                    nursery.cancel_scope.cancel()
            cancelled += scope.cancelled_caught
            began = trio.current_time()
            assert await names_of(client) == ["one_x", "two_x"]
            assert (await client.call_tool("two_x")).text == "two.x"
            assert trio.current_time() == began
            found = gateway._upstream_statistics()
            assert [(each.state, each.connections, each.in_flight) for each in found] == [
                ("connected", 1, 0)
            ] * 2
        if finished > 2:
            break
    assert finished > 2
    assert cancelled > 5
