"""A list of tools within a budget: what is beyond it is found, called, and seen by nobody who may not see it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, Context, Server
from mcp_actors._server.search import ToolIndex, _UsedTools, tokens_of
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import CallToolResult, Tool
from tests.server.generated_tools import QUESTIONS, make_tools
from tests.server.test_access import Authenticating

pytestmark = pytest.mark.slow

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)
OURS = ["search_tools", "call_tool"]


def make_server(**options: Any) -> Server:
    server = Server("many", **{"budget": 1_000, **options})
    for tool in make_tools()[:200]:
        add_tool(server, tool)
    return server


def add_tool(server: Server, tool: Tool, **options: Any) -> None:
    async def call(arguments: dict[str, Any]) -> str:
        return f"{tool.name} {arguments}"

    server.add_tool(
        call, name=tool.name, description=tool.description, input_schema=tool.input_schema, **options
    )


async def names(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


async def found(client: Client, query: str, **more: Any) -> list[str]:
    result = await client.call_tool("search_tools", {"query": query, **more})
    return [each["name"] for each in result.structured_content["tools"]]


# -- quality -----------------------------------------------------------------------------------------------------------


def test_of_two_thousand_tools_the_right_one_is_among_the_first_five(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tools, index = make_tools(), ToolIndex()
    assert (len(tools), len({each.name for each in tools}), len(QUESTIONS)) == (2_000, 2_000, 100)
    assert {each.name for each in tools} >= set(QUESTIONS.values())
    places = {}
    for question, wanted in QUESTIONS.items():
        ranked = [each.name for each in index.search(tools, question, 5)]
        places[question] = ranked.index(wanted) + 1 if wanted in ranked else None
    missed = [each for each, place in places.items() if place is None]
    within = 100 - len(missed)
    first = sum(place == 1 for place in places.values())
    with capsys.disabled():
        print(f"\nof 2,000 tools: first {first} %, among the first five {within} %; missed: {missed}")
    assert within >= 85
    assert first >= 44


@EACH_ERA
async def test_the_list_costs_no_more_than_the_budget(era: str, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("many", budget=8_000)
    for tool in make_tools():
        add_tool(server, tool)
    async with Client(server, era=era) as client:
        listed = [each async for each in client.tools()]
        after = sum(map(tokens_of, listed))
        before = sum(map(tokens_of, make_tools()))
        assert [each.name for each in listed] == OURS
        assert await found(client, "put a meeting on my calendar") != []
    with capsys.disabled():
        print(f"\ntokens: {before:,} before, {after:,} after")
    assert before > 100_000
    assert after < 500


# -- the two tools -----------------------------------------------------------------------------------------------------


@EACH_ERA
async def test_a_list_within_the_budget_is_whole(era: str) -> None:
    server = make_server(budget=100_000)
    async with Client(server, era=era) as client:
        assert len(await names(client)) == 200
        # A client that has an older list may go on with it.
        assert await found(client, "slack emoji", limit=1) != []


@EACH_ERA
async def test_what_is_found_is_called_and_stays_listed(era: str) -> None:
    server = make_server(pinned=["jira_get_*"])
    async with Client(server, era=era) as client:
        pinned = [each for each in server.tools.by_key if each.startswith("jira_get_")]
        assert await names(client) == [*OURS, *pinned]
        result = await client.call_tool("search_tools", {"query": "report a bug on GitHub", "limit": "3"})
        (first, *_) = result.structured_content["tools"]
        assert first.keys() == {"name", "description", "inputSchema"}
        called = await client.call_tool(
            "call_tool", {"name": "github_create_issue", "arguments": '{"name": "x", "properties": "y"}'}
        )
        assert called.text == "github_create_issue {'name': 'x', 'properties': 'y'}"
        # By its own name, though it is not listed.
        assert not (await client.call_tool("slack_get_message", {"id": "1"})).is_error
        assert await names(client) == [*OURS, *pinned, "slack_get_message", "github_create_issue"]
    async with Client(server, era=era) as another:
        assert await names(another) == [*OURS, *pinned]


@EACH_ERA
async def test_what_was_used_goes_as_far_as_the_budget(era: str) -> None:
    server = make_server(budget=600)
    async with Client(server, era=era) as client:
        for name in list(server.tools.by_key)[:60]:
            await client.call_tool(name, {"id": "1", "name": "1", "page": "1", "query": "1", "format": "1"})
        listed = [each async for each in client.tools()]
        assert sum(map(tokens_of, listed)) <= 600
        assert [each.name for each in listed][2] == list(server.tools.by_key)[59]


@EACH_ERA
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search_tools", {"query": "xylophone"}, "none of the 200 tools has a word of this"),
        ("search_tools", {}, "query: is required but missing"),
        ("search_tools", {"query": "a", "limit": 100}, "limit: "),
        ("call_tool", {"name": "slack_get_mesage", "arguments": {}}, "did you mean 'slack_get_message'"),
        ("call_tool", {"name": "zzz", "arguments": {}}, "search_tools finds those that there are"),
        ("call_tool", {"name": "call_tool", "arguments": {}}, "there is no tool 'call_tool'"),
        ("call_tool", {"name": "slack_get_message", "arguments": {}}, "id: is required but missing"),
        # What takes no arguments is called without any, as by `tools/call`.
        ("call_tool", {"name": "slack_get_message"}, "id: is required but missing"),
    ],
)
async def test_a_model_reads_its_mistakes(era: str, name: str, arguments: dict[str, Any], said: str) -> None:
    async with Client(make_server(), era=era) as client:
        assert said in (await client.call_tool(name, arguments)).text


@pytest.mark.parametrize("query", ['"', "a OR b", "NEAR(", "*", "name:", "-", "", "öffne", "x" * 10_000])
async def test_no_query_is_an_error(query: str) -> None:
    async with Client(make_server()) as client:
        assert not (await client.call_tool("search_tools", {"query": query})).is_error


# -- who may see what --------------------------------------------------------------------------------------------------


async def test_nobody_finds_or_calls_what_they_may_not_see() -> None:
    server = make_server()
    add_tool(server, make_tools()[1_000], scopes=["secret"])
    secret = make_tools()[1_000].name
    for scopes, expected in (((), False), (("secret",), True)):
        transport = Authenticating(Principal("ada", scopes=frozenset(scopes)))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, transport)
            async with Client(transport, era="2025-11-25") as client:
                assert (secret in await found(client, secret.replace("_", " "))) is expected
                called = await client.call_tool("call_tool", {"name": secret, "arguments": {"name": "1"}})
                assert bool(called.is_error) is not expected
                assert ("there is no tool" in called.text) is not expected
            nursery.cancel_scope.cancel()


@EACH_ERA
async def test_middleware_sees_the_tool_that_is_called_and_decides_what_is_found(era: str) -> None:
    server = make_server()
    seen: list[str] = []

    @server.middleware
    async def hide(ctx: Context, call_next: Any) -> Any:
        if ctx.method == "tools/call":
            seen.append(ctx.params["name"])
        result = await call_next()
        if ctx.method == "tools/list":
            result.tools = [each for each in result.tools if not each.name.startswith("slack_")]
        return result

    async with Client(server, era=era) as client:
        assert all(not each.startswith("slack") for each in await found(client, "slack message", limit=20))
        assert (await client.call_tool("call_tool", {"name": "slack_get_message", "arguments": {}})).is_error
        await client.call_tool("call_tool", {"name": "jira_get_epic", "arguments": {"id": "1"}})
    assert seen == ["jira_get_epic"]


async def test_mounted_tools_are_found_and_come_and_go() -> None:
    host, inner = Server("host", budget=100, capabilities=["tools"]), Server("inner")
    host.mount("a", inner)
    async with Client(host) as client:
        assert await names(client) == []
        for tool in make_tools()[:10]:
            add_tool(inner, tool)
        assert await names(client) == OURS
        assert (await found(client, "create an issue"))[0] == "a_github_create_issue"
        inner.remove_tool("github_create_issue")
        assert "a_github_create_issue" not in await found(client, "create an issue")


def test_options_that_cannot_be_are_refused() -> None:
    for options in ({"budget": 0}, {"budget": 10, "pinned": "a"}):
        with pytest.raises(ValueError, match=r"budget|pinned"):
            Server("x", **options)  # type: ignore[arg-type]


async def test_a_tool_with_the_name_of_the_search_is_logged() -> None:
    server = make_server()
    server.add_tool(lambda: "", name="search_tools")
    async with Client(server) as client:
        with capture_logs() as logged:
            assert await names(client) == OURS
            await names(client)
    assert [each["event"] for each in logged] == ["a tool is not listed: the search has its name"]


async def test_a_name_of_any_length_that_middleware_answers_is_not_kept() -> None:
    server = make_server(budget=600)
    kept: list[list[str]] = []

    @server.middleware
    async def answers(ctx: Context, call_next: Any) -> Any:
        if ctx.method == "tools/call" and ctx.session is not None:
            kept.append(list(ctx.session.get(_UsedTools).names))
            return CallToolResult([])
        return await call_next()

    async with Client(server, era="legacy") as client:
        for name in ("short", "x" * 100_000, "end"):
            await client.call_tool(name)
    assert kept == [[], ["short"], ["short"]]
