"""Tools of upstreams in another shape: the same as for a server's own, over each pair of eras."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Argument, Client, Context, Reshape, Server
from mcp_actors.errors import ConfigurationError, RpcError, ToolError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.gateway import configured_gateway
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.server import ReshapedCall
from mcp_actors.types import CallToolResult, ElicitResult
from tests.gateway.worlds import IN_MEMORY, World

EACH_PAIR = pytest.mark.parametrize("world", IN_MEMORY, ids=str)
FIND = Reshape(
    name="find",
    description="Finds things.",
    arguments={"q": Argument("query"), "limit": Argument(default=2), "tenant": Argument(value="acme")},
)


def make_shop() -> Server:
    server = Server("shop")

    @server.tool
    async def search(q: str, limit: int = 10, tenant: str = "all") -> list[str]:
        """Searches."""
        return [f"{q} of {tenant}"] * limit

    @server.tool
    async def fail(a: int) -> int:
        raise ToolError(f"no {a}")

    @server.tool
    async def ask(what: str, ctx: Context) -> str:
        form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        answer = await ctx.elicit(f"Really {what}?", form)
        await ctx.progress(1, 2)
        return answer.action

    server.add_prompt(lambda: "p", name="search")
    return server


async def names(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


@EACH_PAIR
@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_tool_of_an_upstream_is_seen_and_called_in_its_shape(world: World, is_listed: bool) -> None:
    async with world.connected(
        make_shop(), settings={"tools": {"search": FIND}}, arguments="check"
    ) as client:
        if is_listed:
            tools = {each.name: each async for each in client.tools()}
            assert list(tools) == ["find", "x_fail", "x_ask"]
            assert tools["find"].description == "Finds things."
            assert tools["find"].input_schema["properties"] == {
                "query": {"type": "string"},
                "limit": {"type": "integer", "default": 2},
            }
            assert [each.name async for each in client.prompts()] == ["x_search"]
        assert (await client.call_tool("find", {"query": "tea"})).text == '["tea of acme","tea of acme"]'


@EACH_PAIR
async def test_arguments_that_do_not_fit_do_not_reach_the_upstream(world: World) -> None:
    async with world.connected(make_shop(), settings={"tools": {"search": FIND}}) as client:
        for given, said in (
            ({"query": "tea", "tenant": "other"}, "tenant: is not known here"),
            ({"q": "tea"}, "query: is required but missing"),
            ({"query": "tea", "limit": "1"}, "limit: expected integer, got string"),
        ):
            refused = await client.call_tool("find", given)
            assert refused.is_error
            assert said in refused.text
        with pytest.raises(RpcError, match="unknown tool: x_search"):
            await client.call_tool("x_search", {"q": "tea"})


@EACH_PAIR
@pytest.mark.parametrize("is_listed", [True, False])
async def test_arguments_are_repaired_by_the_new_schema(world: World, is_listed: bool) -> None:
    settings: dict[str, Any] = {"tools": {"search": FIND}, "arguments": "repair"}
    async with world.connected(make_shop(), settings=settings) as client:
        if is_listed:
            await names(client)
        repaired = await client.call_tool("find", {"query": "tea", "limit": "1"})
        assert repaired.text == '["tea of acme"]'
        assert (repaired.meta or {})["mcp-actors/repaired"] == {"arguments": ["limit"]}


@EACH_PAIR
async def test_a_function_is_called_in_place_of_the_tool(world: World) -> None:
    async def count(call: ReshapedCall) -> str:
        first, second = await call.forward(), await call.forward(query="x", limit=1)
        return f"{len(first.data)} and {len(second.data)}"

    async def same(call: ReshapedCall) -> CallToolResult:
        return await call.forward()

    async def catching(call: ReshapedCall) -> str:
        try:
            return (await call.forward()).text
        except Exception as error:
            return f"instead: {error}"

    def tenant(ctx: Context) -> str:
        return ctx.server.name

    search = Reshape(
        name="count",
        arguments={"q": Argument("query"), "limit": Argument(default=2), "tenant": Argument(compute=tenant)},
        wrap=count,
    )
    for shape, answer in (
        (same, (True, "no 1")),
        (catching, (False, "instead: the tool 'fail' failed: no 1")),
    ):
        tools = {"search": search, "fail": Reshape(wrap=shape)}
        async with world.connected(make_shop(), settings={"tools": tools}) as client:
            assert (await client.call_tool("count", {"query": "tea"})).text == "2 and 1"
            failed = await client.call_tool("x_fail", {"a": 1})
            assert (bool(failed.is_error), failed.text) == answer


@EACH_PAIR
async def test_a_computed_argument_and_another_output(world: World) -> None:
    shape = Reshape(
        name="texts",
        arguments={"tenant": Argument(compute=lambda ctx: ctx.server.name), "limit": Argument(value=1)},
        output_schema=None,
    )
    async with world.connected(make_shop(), settings={"tools": {"search": shape}}) as client:
        tool = {each.name: each async for each in client.tools()}["texts"]
        assert (tool.output_schema, tool.input_schema["properties"].keys()) == (None, {"q"})
        result = await client.call_tool("texts", {"q": "tea"})
        assert (result.data, result.text) == (None, '["tea of gateway"]')


@EACH_PAIR
async def test_questions_and_progress_pass_through_the_function(world: World) -> None:
    async def loud(call: ReshapedCall) -> str:
        return (await call.forward()).text.upper()

    async def answer(question: Any) -> ElicitResult:
        assert question.message == "Really go?"
        return ElicitResult("accept", {"ok": True})

    shape = Reshape(arguments={"what": Argument("thing")}, wrap=loud)
    seen: list[float] = []
    async with world.connected(make_shop(), settings={"tools": {"ask": shape}}, elicitation=answer) as client:
        result = await client.call_tool(
            "x_ask", {"thing": "go"}, on_progress=lambda each: seen.append(each.progress)
        )
    assert (result.text, seen) == ("ACCEPT", [1])


@EACH_PAIR
@pytest.mark.parametrize("wraps", [True, False])
async def test_a_call_becomes_a_task(world: World, wraps: bool, autojump_clock: MockClock) -> None:
    server = Server("tasks")

    @server.tool(task="optional")
    async def plan(days: int) -> str:
        await trio.sleep(10)
        return f"for {days}"

    async def loud(call: ReshapedCall) -> str:
        return (await call.forward()).text.upper()

    shape = Reshape(arguments={"days": Argument("number")}, wrap=loud if wraps else None)
    async with world.connected(server, settings={"tools": {"plan": shape}}) as client:
        await names(client)
        handle = await client.start_tool("x_plan", {"number": 3})
        assert (await handle.result()).text == ("FOR 3" if wraps else "for 3")
        assert (await client.call_tool("x_plan", {"number": 3})).text == ("FOR 3" if wraps else "for 3")


async def test_one_that_cannot_have_its_shape_costs_itself_and_is_logged() -> None:
    tools = {
        "search": Reshape(arguments={"query": Argument("words")}),
        "fail": Reshape(name="break"),
        "gone": Reshape(name="there"),
    }
    with capture_logs() as logged:
        async with Client(Gateway([Upstream(name="x", target=make_shop(), tools=tools)])) as client:
            for name in ("x_search", "search", "there"):
                # Before it was listed, and after.
                with pytest.raises(RpcError, match=f"unknown tool: {name}"):
                    await client.call_tool(name, {"q": "tea"})
            assert await names(client) == ["break", "x_ask"]
            with pytest.raises(RpcError, match="unknown tool: x_search"):
                await client.call_tool("x_search", {"q": "tea"})
    events = {(each["event"], each.get("tool")) for each in logged if "tool" in each}
    assert ("a tool of an upstream is not offered: it cannot be reshaped", "search") in events
    assert ("a tool that is to be reshaped is not listed", "gone") in events
    error = next(each["error"] for each in logged if each.get("tool") == "search")
    assert error == "there is no argument 'query': the arguments are q, limit, tenant"


def test_shapes_that_contradict_other_settings_are_refused() -> None:
    for settings, said in (
        ({"rename": {"search": "a"}, "tools": {"search": Reshape(name="b")}}, "renamed twice"),
        ({"rename": {"fail": "a"}, "tools": {"search": Reshape(name="a")}}, "renamed to the same"),
    ):
        with pytest.raises(ValueError, match=said):
            Gateway([Upstream(name="x", target=make_shop(), **settings)])
    with pytest.raises(TypeError, match="write a dict of names and Reshape"):
        Gateway([Upstream(name="x", target=make_shop(), tools={"search": {}})])  # type: ignore[dict-item]


# -- the form of the configuration -------------------------------------------------------------------------------------


def entry(tools: Any, **more: Any) -> dict[str, Any]:
    return {"mcpServers": {"shop": {"command": "shop", "tools": tools, **more}}}


def test_a_configuration_says_the_same() -> None:
    entries = read_server_entries(
        entry(
            {
                "search": {
                    "name": "find",
                    "description": "Finds things.",
                    "arguments": {"q": "query", "limit": {"default": 2}, "tenant": {"value": "acme"}},
                },
                "fail": {"arguments": {"a": {"hidden": True, "default": None}}, "output_schema": False},
            }
        )
    )
    (upstream,) = configured_gateway(entries).upstreams
    assert upstream.tools == {
        "search": FIND,
        "fail": Reshape(arguments={"a": Argument(hidden=True, default=None)}, output_schema=None),
    }


@pytest.mark.parametrize(
    ("tools", "more", "said"),
    [
        ({"search": "find"}, {}, "tools: it has to be an object of names and objects"),
        ({"search": {"title": 3}}, {}, "tools.search.title: it has to be a text"),
        ({"search": {"argument": {}}}, {}, "tools.search: it has a member 'argument'; known are name, title"),
        (
            {"search": {"arguments": {"tenant": {"vlaue": 1}}}},
            {},
            "tools.search.arguments.tenant: it has a member 'vlaue'",
        ),
        (
            {"search": {"arguments": {"q": {"value": 1, "name": "x"}}}},
            {},
            "has no name, title or description",
        ),
        ({"search": {"name": "a"}, "fail": {"name": "a"}}, {}, "two names are renamed to the same one"),
        ({"search": {"name": "a"}}, {"rename": {"search": "b"}}, "a tool is renamed here, and in its shape"),
    ],
)
def test_a_mistake_in_a_configuration_is_named(tools: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_server_entries(entry(tools, **more))
