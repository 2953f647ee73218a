"""``Client(arguments=)``: what becomes of arguments that do not fit the schema that the server has listed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from mcp_actors import Client, Server, ToolFailed
from mcp_actors.errors import WrongArguments
from mcp_actors.types import Tool

SCHEMA = {
    "type": "object",
    "properties": {
        "days": {"type": "integer"},
        "cities": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "string"},
    },
    "required": ["days"],
}


@dataclass
class Seen:
    """A server that takes anything, and what came."""

    server: Server
    arguments: list[dict[str, Any]]


def listening() -> Seen:
    seen = Seen(Server("s", arguments="strict"), [])

    async def take(given: dict[str, Any]) -> str:
        return "taken"

    seen.server.add_tool(take, input_schema=SCHEMA)

    @seen.server.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "tools/call":
            seen.arguments.append(ctx.params["arguments"])
        return await call_next()

    return seen


TEXTS = {"days": "3", "cities": '["Bern"]', "note": "7"}
MEANT = {"days": 3, "cities": ["Bern"], "note": "7"}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_a_model_wrote_as_text_is_sent_as_it_is_meant(era: str) -> None:
    seen = listening()
    async with Client(seen.server, era=era, arguments="repair") as client:
        await client.list_tools()
        given = dict(TEXTS)
        assert (await client.call_tool("take", given)).text == "taken"
        assert given == TEXTS
    assert seen.arguments[0] == MEANT


@pytest.mark.parametrize(("mode", "wrong"), [("check", TEXTS), ("repair", {"days": "soon"}), ("repair", {})])
async def test_what_does_not_fit_is_refused_before_it_is_sent(mode: Any, wrong: dict[str, Any]) -> None:
    seen = listening()
    async with Client(seen.server, arguments=mode) as client:
        await client.list_tools()
        with pytest.raises(
            WrongArguments, match=r"the arguments of the tool 'take' do not fit: .*days"
        ) as caught:
            await client.call_tool("take", wrong)
        with pytest.raises(WrongArguments, match="days"):
            await client.call_tool("take")
        assert (caught.value.tool, len(caught.value.problems) >= 1) == ("take", True)
        assert (await client.call_tool("take", MEANT)).text == "taken"
    assert seen.arguments[0] == MEANT


async def test_arguments_go_as_they_are_by_default_and_where_nothing_was_listed() -> None:
    seen = listening()
    for options in ({}, {"arguments": "check"}, {"arguments": "repair"}):
        async with Client(seen.server, **options) as client:  # type: ignore[arg-type]
            if not options:
                await client.list_tools()
            assert (await client.call_tool("take", TEXTS)).is_error
    assert [each for each in seen.arguments if each != TEXTS] == []


async def test_a_schema_that_is_no_use_checks_nothing() -> None:
    seen = listening()
    async with Client(seen.server, arguments="check") as client:
        await client.list_tools()
        for schema in ({"$ref": "http://elsewhere/schema"}, {"properties": {"note": {"pattern": "(?=x)"}}}):
            client._requests.schemas.inputs.learn([Tool("take", {"type": "object", **schema})])
            assert (await client.call_tool("take", MEANT)).text == "taken"


async def test_tools_that_have_changed_are_checked_once_they_are_listed_again() -> None:
    seen = listening()
    changed = trio.Event()
    client = Client(seen.server, era="legacy", arguments="check", on_change=lambda kind, uri: changed.set())
    async with client:
        await client.list_tools()
        with pytest.raises(WrongArguments):
            await client.call_tool("take", TEXTS)

        async def born(day: datetime.date) -> str:
            return day.isoformat()

        seen.server.add_tool(born)
        with trio.fail_after(20):
            await changed.wait()
        with pytest.raises(ToolFailed):
            await client.call_tool("take", TEXTS, returns=str)
        await client.list_tools()
        with pytest.raises(WrongArguments):
            await client.call_tool("born", {"day": 1})


def test_another_word_is_refused() -> None:
    with pytest.raises(TypeError, match="arguments is 'as-is', 'check' or 'repair', not 'fix'"):
        Client(Server("s"), arguments="fix")  # type: ignore[arg-type]
