"""Tools in another shape: what clients see of them is true, and what they call is the tool itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Argument, Client, Context, Meta, Reshape, Server
from mcp_actors.errors import InsufficientScope, LocalProtocolError, RpcError, ToolError
from mcp_actors.server import ReshapedCall
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import CallToolResult, ElicitResult, Tool
from tests.server.test_access import Authenticating

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)


def make_search(**options: Any) -> Server:
    server = Server("shop", **options)

    @server.tool
    async def search(
        q: Annotated[str, Meta(description="Full text")], limit: int = 10, tenant: str = "all"
    ) -> list[str]:
        """Searches."""
        return [f"{q} of {tenant}"] * limit

    @server.tool(inline=True)
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    return server


async def tool_of(client: Client, name: str) -> Tool:
    return next(each for each in [each async for each in client.tools()] if each.name == name)


async def names(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


FIND = Reshape(
    name="find",
    title="Find things",
    description="Finds things in the shop.",
    arguments={
        "q": Argument("query", title="Words", description="What to look for"),
        "limit": Argument(default=2),
        "tenant": Argument(value="acme"),
    },
)


# -- what clients see --------------------------------------------------------------------------------------------------


@EACH_ERA
@pytest.mark.parametrize("where", ["own", "mounted"])
async def test_the_schema_is_that_of_what_may_be_called(era: str, where: str) -> None:
    server = make_search()
    if where == "own":
        server.reshape("search", FIND)
    else:
        host = Server("host")
        host.mount("a", server, tools={"search": FIND})
        server = host
    async with Client(server, era=era, arguments="check") as client:
        assert (await names(client))[-1 if where == "own" else 0] == "find"
        tool = await tool_of(client, "find")
        assert (tool.title, tool.description) == ("Find things", "Finds things in the shop.")
        assert tool.input_schema == {
            "type": "object",
            "properties": {
                "query": {"type": "string", "title": "Words", "description": "What to look for"},
                "limit": {"type": "integer", "default": 2},
            },
            "required": ["query"],
            "additionalProperties": False,
        }
        assert (await client.call_tool("find", {"query": "tea"})).data == ["tea of acme"] * 2
        assert (await client.call_tool("find", {"query": "tea", "limit": 1})).data == ["tea of acme"]


async def test_a_tool_may_stay_beside_its_other_shape() -> None:
    server = make_search()
    server.reshape("search", FIND, keep=True)
    server.reshape("find", Reshape(description="Finds."))
    async with Client(server) as client:
        assert await names(client) == ["search", "add", "find"]
        assert (await tool_of(client, "find")).description == "Finds."
        assert (await client.call_tool("search", {"q": "tea", "limit": 1})).data == ["tea of all"]
        server.remove_tool("search")
        assert (await client.call_tool("find", {"query": "tea", "limit": 1})).data == ["tea of acme"]


async def test_clients_are_notified() -> None:
    server = make_search()
    async with Client(server, era="2025-11-25") as client, client.listen(tools=True) as changes:
        server.reshape("search", Reshape(description="Finds."))
        with trio.fail_after(60):
            async for change in changes:
                assert change.kind == "tools"
                break


@pytest.mark.parametrize("given", ["tenant", "q"])
async def test_an_argument_that_clients_do_not_see_cannot_be_given(given: str) -> None:
    """Also where the schema takes what it does not name."""
    server = Server("open")
    open_schema = {"type": "object", "properties": {"q": {"type": "string"}, "tenant": {"type": "string"}}}

    @server.tool(input_schema=open_schema)
    async def search(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    server.reshape("search", Reshape(arguments={"q": Argument("query"), "tenant": Argument(value="acme")}))
    async with Client(server) as client:
        refused = await client.call_tool("search", {"query": "tea", given: "other"})
        assert refused.is_error
        assert f"{given}: is not known here" in refused.text
        assert (await client.call_tool("search", {"query": "tea", "more": 1})).data == {
            "q": "tea",
            "tenant": "acme",
            "more": 1,
        }


def test_the_rest_of_a_schema_has_the_new_names_and_no_unused_definition() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": {"$ref": "#/$defs/id"},
            "name": {"type": "string"},
            "where": {"$ref": "#/$defs/place"},
        },
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
        "dependentRequired": {"name": ["where"]},
        "$defs": {"id": {"type": "integer"}, "place": {"$ref": "#/$defs/city"}, "city": {"type": "string"}},
    }
    server = Server("schemas")
    for name in ("renamed", "hidden"):
        server.add_tool(lambda arguments: "", name=name, input_schema=schema)
    server.reshape("renamed", Reshape(arguments={"name": Argument("called")}))
    server.reshape("hidden", Reshape(arguments={"where": Argument(value="here")}))
    renamed, hidden = server.tools.get("renamed"), server.tools.get("hidden")
    assert renamed is not None
    assert hidden is not None
    assert renamed.input_schema["anyOf"] == [{"required": ["id"]}, {"required": ["called"]}]
    assert renamed.input_schema["dependentRequired"] == {"called": ["where"]}
    assert renamed.input_schema["$defs"] == schema["$defs"]
    assert "dependentRequired" not in hidden.input_schema
    assert hidden.input_schema["$defs"] == {"id": {"type": "integer"}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"query": Argument("q")}, "there is no argument 'query': the arguments are q, limit, tenant"),
        ({"q": Argument("limit")}, "two arguments would be called 'limit'"),
        ({"q": Argument("x"), "tenant": Argument("x")}, "two arguments would be called 'x'"),
        ({"limit": Argument(default="many")}, "the argument 'limit' does not take 'many': expected integer"),
        ({"limit": Argument(value=None)}, "the argument 'limit' does not take None"),
        ({"q": Argument(hidden=True)}, "the tool needs 'q', which nobody gives when it is hidden"),
    ],
)
@pytest.mark.parametrize("where", ["own", "mounted"])
def test_a_mistake_is_refused_where_it_is_written(
    arguments: Mapping[str, Argument], said: str, where: str
) -> None:
    server, reshape = make_search(), Reshape(name="find", arguments=arguments)
    if where == "own":
        with pytest.raises(ValueError, match=said):
            server.reshape("search", reshape)
        assert "search" in server.tools
        assert "find" not in server.tools
    else:
        host = Server("host")
        with pytest.raises(LocalProtocolError, match=f"cannot reshape the tool 'search': {said}"):
            host.mount("a", server, tools={"search": reshape})
        assert len(host.tools) == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Argument(value=1, default=2), "only one of"),
        (lambda: Argument("x", value=1), "has no name"),
        (lambda: Argument(""), "write a name"),
        (lambda: Argument(value=object()), "JSON cannot hold it"),
        (lambda: Argument(compute=3), "is not a function"),
        (lambda: Reshape(name=""), "write a name"),
        (lambda: Reshape(arguments={"q": "query"}), "write Argument"),
        (lambda: Reshape(wrap=lambda call: None), "is not async"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make()


def test_a_tool_that_is_not_there_or_not_its_own_is_refused() -> None:
    host = Server("host")
    host.mount("a", make_search())
    with pytest.raises(LocalProtocolError, match="there is no tool 'search'"):
        host.reshape("search", FIND)
    with pytest.raises(LocalProtocolError, match=r"mount\('a', …, tools=\{'search': Reshape"):
        host.reshape("a_search", FIND)
    host.add_tool(lambda: "", name="own")
    with pytest.raises(LocalProtocolError, match="already a tool 'a_add'"):
        host.reshape("own", Reshape(name="a_add"))
    assert "own" in host.tools


# -- calls -------------------------------------------------------------------------------------------------------------


@EACH_ERA
async def test_arguments_are_repaired_and_told_of_by_the_names_that_clients_see(era: str) -> None:
    server = make_search()
    server.reshape("search", FIND)
    server.reshape("add", Reshape(arguments={"a": Argument("first"), "b": Argument(value=5)}))
    async with Client(server, era=era) as client:
        await names(client)
        repaired = await client.call_tool("find", {"query": "tea", "limit": "1"})
        assert repaired.data == ["tea of acme"]
        assert (repaired.meta or {})["mcp-actors/repaired"] == {"arguments": ["limit"]}
        assert (await client.call_tool("add", {"first": "1"})).data == 6
        wrong = await client.call_tool("find", {"query": 3})
        assert wrong.text == "invalid arguments: query: expected string, got integer"


async def test_what_the_tool_itself_refuses_is_said_about_the_names_that_clients_see() -> None:
    server = Server("narrow")

    @server.tool
    async def at(hour: Annotated[int, Meta(ge=0, le=23)]) -> int:
        return hour

    async def later(call: ReshapedCall) -> CallToolResult:
        return await call.forward(clock=call.arguments["clock"] + 10)

    server.reshape("at", Reshape(arguments={"hour": Argument("clock")}, wrap=later))
    async with Client(server) as client:
        assert (await client.call_tool("at", {"clock": 12})).data == 22
        refused = await client.call_tool("at", {"clock": 20})
        assert refused.is_error
        assert refused.text.startswith("invalid arguments: clock: ")


@EACH_ERA
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_argument_is_computed_of_the_context(era: str, is_async: bool) -> None:
    async def later(ctx: Context) -> str:
        await trio.lowlevel.checkpoint()
        return ctx.method

    server = make_search()
    compute = later if is_async else (lambda ctx: ctx.method)
    server.reshape(
        "search", Reshape(arguments={"tenant": Argument(compute=compute), "limit": Argument(value=1)})
    )
    async with Client(server, era=era) as client:
        assert (await tool_of(client, "search")).input_schema["properties"].keys() == {"q"}
        assert (await client.call_tool("search", {"q": "tea"})).data == ["tea of tools/call"]


async def test_a_computation_that_fails_is_a_failure_of_the_tool() -> None:
    def compute(ctx: Context) -> str:
        raise KeyError("tenant")

    server = make_search()
    server.reshape("search", Reshape(arguments={"tenant": Argument(compute=compute)}))
    async with Client(server) as client:
        with capture_logs():
            failed = await client.call_tool("search", {"q": "tea"})
        assert failed.is_error
        assert failed.text == "search: KeyError: 'tenant'"


@EACH_ERA
@pytest.mark.parametrize("where", ["own", "mounted", "behind middleware"])
async def test_a_function_is_called_in_place_of_the_tool(era: str, where: str) -> None:
    async def count(call: ReshapedCall) -> int:
        """Counts."""
        first = await call.forward()
        second = await call.forward(query=call.arguments["query"].upper(), tenant="x")
        return len(first.data) + len(second.data)

    shape = Reshape(name="count", arguments={**FIND.arguments}, wrap=count)
    server = make_search()
    seen: list[Any] = []

    if where == "behind middleware":

        @server.middleware
        async def note(ctx: Context, call_next: Any) -> Any:
            seen.append((ctx.params["name"], ctx.params["arguments"]))
            return await call_next()

    if where == "own":
        server.reshape("search", shape)
    else:
        host = Server("host")
        host.mount("a", server, tools={"search": shape})
        server = host
    async with Client(server, era=era) as client:
        await names(client)
        assert (await client.call_tool("count", {"query": "tea", "limit": 3})).data == 6
        assert (await client.call_tool("count", {"query": 1})).is_error
    if where == "behind middleware":
        assert seen == [
            ("search", {"q": "tea", "limit": 3, "tenant": "acme"}),
            ("search", {"q": "TEA", "limit": 3, "tenant": "x"}),
        ]


@pytest.mark.parametrize("inline", [True, False])
async def test_a_failure_of_the_tool_is_that_of_the_call_unless_it_is_caught(inline: bool) -> None:
    server = Server("failing")

    def fail(a: int) -> int:
        raise ToolError("it is closed")

    async def passing(call: ReshapedCall) -> str:
        return str((await call.forward()).data)

    async def catching(call: ReshapedCall) -> str:
        try:
            return str((await call.forward()).data)
        except Exception as error:
            return f"instead: {error}"

    async def own(call: ReshapedCall) -> str:
        raise ToolError("its own")

    for function in (passing, catching, own):
        server.add_tool(fail, name=function.__name__, inline=inline)
        server.reshape(function.__name__, Reshape(wrap=function))
    async with Client(server) as client:
        results = [await client.call_tool(each, {"a": 1}) for each in ("passing", "catching", "own")]
    assert [(bool(each.is_error), each.text) for each in results] == [
        (True, "it is closed"),
        (False, "instead: the tool 'catching' failed: it is closed"),
        (True, "its own"),
    ]


@EACH_ERA
async def test_the_result_has_another_schema_or_none(era: str) -> None:
    async def first(call: ReshapedCall) -> dict[str, str]:
        return {"first": (await call.forward()).data[0]}

    async def same(call: ReshapedCall) -> CallToolResult:
        return await call.forward()

    server = make_search()
    for shape in (
        Reshape(name="text", output_schema=None),
        Reshape(name="one", output_schema={"type": "array", "maxItems": 1}),
        Reshape(name="first", wrap=first),
        Reshape(name="same", wrap=same),
    ):
        server.reshape("search", shape, keep=True)
    search, same_tool, text = (server.tools.get(each) for each in ("search", "same", "text"))
    assert search is not None
    assert same_tool is not None
    assert text is not None
    assert text.output_schema is None
    assert same_tool.output_schema == search.output_schema
    async with Client(server, era=era) as client:
        await names(client)
        only_text = await client.call_tool("text", {"q": "a", "limit": 1})
        assert (only_text.data, only_text.text) == (None, '["a of all"]')
        assert (await client.call_tool("one", {"q": "a", "limit": 1})).data == ["a of all"]
        with capture_logs():
            refused = await client.call_tool("one", {"q": "a", "limit": 2})
        assert refused.is_error
        assert "does not fit the output schema" in refused.text
        assert (await client.call_tool("first", {"q": "a"})).data == {"first": "a of all"}
        assert (await client.call_tool("same", {"q": "a", "limit": 1})).data == ["a of all"]


async def test_a_result_that_cannot_be_sent_is_a_failure_of_the_tool() -> None:
    async def wrong(call: ReshapedCall) -> int:
        return "no number"  # type: ignore[return-value]

    server = make_search()
    server.reshape("add", Reshape(wrap=wrong))
    async with Client(server) as client:
        with capture_logs():
            failed = await client.call_tool("add", {"a": 1, "b": 1})
        assert failed.is_error
        assert "it returned what cannot be sent" in failed.text


# -- everything else goes on -------------------------------------------------------------------------------------------


@EACH_ERA
async def test_progress_and_questions_and_cancellation_are_those_of_the_tool(
    era: str, autojump_clock: MockClock
) -> None:
    server = Server("slow")
    ended: list[str] = []

    @server.tool
    async def slow(ctx: Context, seconds: int) -> str:
        answer = await ctx.elicit("Really?", {"type": "object", "properties": {"ok": {"type": "boolean"}}})
        await ctx.progress(1, 2)
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            ended.append("cancelled")
            raise
        return answer.action

    async def wrapped(call: ReshapedCall) -> str:
        return f"wrapped: {(await call.forward()).text}"

    server.reshape("slow", Reshape(arguments={"seconds": Argument("for")}, wrap=wrapped))
    seen: list[float] = []

    async def answer(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"ok": True})

    async with Client(server, era=era, elicitation=answer) as client:
        result = await client.call_tool(
            "slow", {"for": 1}, on_progress=lambda each: seen.append(each.progress)
        )
        assert (result.text, seen) == ("wrapped: accept", [1])
        with trio.move_on_after(1):
            await client.call_tool("slow", {"for": 100})
        await trio.testing.wait_all_tasks_blocked()
    assert ended == ["cancelled"]


@EACH_ERA
async def test_a_call_becomes_a_task_after_what_runs_before(era: str, autojump_clock: MockClock) -> None:
    seen: list[Any] = []
    server = Server("tasks")

    async def before(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        seen.append(dict(arguments))
        return {**arguments, "days": arguments["days"] + 1}

    @server.tool(task="optional", before_task=before)
    async def plan(days: int, team: str) -> str:
        await trio.sleep(10)
        return f"{team}: {days}"

    server.reshape("plan", Reshape(arguments={"days": Argument("for"), "team": Argument(value="red")}))
    async with Client(server, era=era) as client:
        await names(client)
        assert (await (await client.start_tool("plan", {"for": 2})).result()).text == "red: 3"
        refused = await client.call_tool("plan", {"for": 2, "team": "blue"})
        assert refused.is_error
        assert "team: is not known here" in refused.text
    assert seen == [{"days": 2, "team": "red"}]


async def test_headers_mirror_an_argument_by_the_name_that_clients_see() -> None:
    server = Server("headers")

    @server.tool
    async def where(region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
        return region

    server.reshape("where", Reshape(arguments={"region": Argument("place")}))
    (param,) = server.tools.mirrored_params("where")
    assert (param.header, param.path) == ("mcp-param-region", ("place",))
    async with trio.open_nursery() as nursery:
        places = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
        async with Client(str(places[0]), era="2026-07-28") as client:
            await names(client)
            assert (await client.call_tool("where", {"place": "north"})).text == "north"
        nursery.cancel_scope.cancel()


async def test_scopes_stay() -> None:
    server = Server("scoped")
    server.add_tool(lambda: "stored", name="store", scopes=["files:write"])
    server.reshape("store", Reshape(name="keep"))
    transport = Authenticating(Principal("ada", scopes=frozenset()))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport, era="2025-11-25") as client:
            assert await names(client) == []
            with pytest.raises((InsufficientScope, RpcError)):
                await client.call_tool("keep")
        nursery.cancel_scope.cancel()


async def test_three_levels_of_mounts_reshape_one_after_the_other() -> None:
    inner, middle, host = make_search(), Server("middle"), Server("host")
    middle.mount("inner", inner, prefix="", tools={"search": FIND})

    async def loud(call: ReshapedCall) -> list[str]:
        return [each.upper() for each in (await call.forward()).data]

    shape = Reshape(name="seek", arguments={"query": Argument("words")}, wrap=loud)
    host.mount("middle", middle, tools={"find": shape})
    async with Client(host) as client:
        assert await names(client) == ["seek", "middle_add"]
        assert (await client.call_tool("seek", {"words": "tea", "limit": 1})).data == ["TEA OF ACME"]
        inner.add_tool(lambda: "late", name="late")
        assert (await client.call_tool("middle_late")).text == "late"
        inner.remove_tool("search")
        assert await names(client) == ["middle_add", "middle_late"]


async def test_a_mount_reshapes_what_comes_later_and_shows_nothing_that_does_not_fit() -> None:
    inner, host = Server("inner"), Server("host")
    with capture_logs() as logged:
        host.mount("a", inner, tools={"find": FIND, "search": Reshape(arguments=FIND.arguments)})
        inner.add_tool(lambda: "", name="find")
    assert [each["event"] for each in logged] == [
        "a tool that is to be reshaped is not there yet",
        "a tool that is to be reshaped is not there yet",
        "a tool is not shown: it cannot be reshaped",
    ]

    async def search(q: str, limit: int = 10, tenant: str = "all") -> str:
        return f"{q} {limit} {tenant}"

    inner.add_tool(search)
    async with Client(host) as client:
        assert await names(client) == ["a_search"]
        assert (await client.call_tool("a_search", {"query": "tea"})).text == "tea 2 acme"


def test_a_prompt_keeps_the_name_that_a_tool_loses() -> None:
    inner, host = make_search(), Server("host")
    inner.add_prompt(lambda: "p", name="search")
    host.mount("a", inner, tools={"search": Reshape(name="find")})
    assert "find" in host.tools
    assert "a_search" in host.prompts
    with pytest.raises(ValueError, match="'search' is renamed twice"):
        host.mount("b", inner, rename={"search": "x"}, tools={"search": Reshape(name="find")})
    with pytest.raises(TypeError, match="write a dict of names and Reshape"):
        host.mount("b", inner, tools={"search": {"name": "find"}})  # type: ignore[dict-item]


def test_values_are_those_of_each_call() -> None:
    """What the function does with a list that is fixed changes nothing for others."""
    server = Server("lists")

    @server.tool(input_schema={"type": "object", "properties": {"items": {"type": "array"}}})
    async def grow(arguments: dict[str, Any]) -> int:
        arguments["items"].append(1)
        return len(arguments["items"])

    server.reshape("grow", Reshape(arguments={"items": Argument(value=[0])}))

    async def main() -> None:
        async with Client(server) as client:
            assert [(await client.call_tool("grow")).data for _ in range(2)] == [2, 2]

    trio.run(main)


async def test_rules_and_switches_know_a_reshaped_tool_by_the_name_that_clients_see() -> None:
    seen: list[str] = []
    server = Server("renamed", visible=lambda caller, component: seen.append(component.name) or True)

    @server.tool
    def old() -> str:
        return "here"

    server.reshape("old", Reshape(name="new"))
    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["new"]
        assert set(seen) == {"new"}
        server.hide("new")
        assert [each.name async for each in client.tools()] == []
        with pytest.raises(RpcError):
            await client.call_tool("new", {})


def test_a_tool_with_several_versions_is_not_reshaped() -> None:
    server = Server("versions")
    server.add_tool(lambda: 1, name="count", version="1")
    server.add_tool(lambda: 2, name="count", version="2")
    with pytest.raises(LocalProtocolError, match="several versions"):
        server.reshape("count", Reshape(description="counts"))
