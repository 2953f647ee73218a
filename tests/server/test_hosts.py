"""What hosts and models that exist need of a tool: schemas without references, and arguments written as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

from mcp_actors import Client, Server, ToolError
from mcp_actors.telemetry import Metrics
from mcp_actors.testing import connected_pair

ERAS = ["legacy", "modern"]


@dataclasses.dataclass
class City:
    """A place."""

    name: str
    people: int = 0


@attrs.define
class Trip:
    cities: list[City]
    days: int | None = None


class Plan(TypedDict):
    trip: Trip
    back: City


class Cost(msgspec.Struct):
    of: City
    amount: float


class Guest(pydantic.BaseModel):
    home: City
    kind: Literal["a", "b"] = "a"


class Tree(msgspec.Struct):
    children: list[Tree] = []


def referring(value: Any, at: str = "") -> Iterator[str]:
    """The places of references, and of definitions."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name in ("$ref", "$defs"):
                yield at
            yield from referring(each, f"{at}/{name}")
    elif isinstance(value, list):
        for each in value:
            yield from referring(each, at)


async def listed(server: Server) -> dict[str, Any]:
    async with connected_pair(server) as client:
        return {tool.name: tool async for tool in client.tools()}


async def test_schemas_have_no_references() -> None:
    server = Server("s")

    @server.tool
    async def plan(
        plan: Plan,
        cost: Cost | None,
        guests: list[Guest],
        by: Annotated[City, msgspec.Meta(description="Who.")],
    ) -> Plan:
        return plan

    tool = (await listed(server))["plan"]
    assert [*referring(tool.input_schema), *referring(tool.output_schema)] == []
    city = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "people": {"type": "integer", "default": 0}},
        "required": ["name"],
    }
    properties = tool.input_schema["properties"]
    assert properties["by"] == {"description": "Who.", **city}
    assert properties["plan"]["properties"]["trip"]["properties"]["cities"]["items"] == {
        "description": "A place.",
        **city,
    }


async def test_a_class_that_contains_itself_keeps_its_reference_and_the_program_its_schemas() -> None:
    server = Server("s")

    @server.tool
    async def grow(tree: Tree, city: City) -> None: ...

    given = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "integer"}},
    }

    @server.tool(input_schema=given, output_schema=given)
    async def own(arguments: dict[str, Any]) -> Any: ...

    tools = await listed(server)
    assert list(tools["grow"].input_schema["$defs"]) == ["Tree"]
    assert (tools["own"].input_schema, tools["own"].output_schema) == (given, given)


async def test_a_program_may_keep_references_and_a_schema_that_would_grow_keeps_them() -> None:
    server = Server("s", inline_refs=False)

    @server.tool
    async def one(city: City) -> City:
        return city

    tool = (await listed(server))["one"]
    assert tool.input_schema["properties"]["city"] == {"$ref": "#/$defs/City"}

    long = dataclasses.make_dataclass("Long", [(f"member_{number}", int) for number in range(30)])
    many = dataclasses.make_dataclass("Many", [(f"p{number}", long) for number in range(30)])

    async def use(many: Any) -> None: ...

    use.__annotations__["many"] = many
    with capture_logs() as logs:
        (server := Server("s")).add_tool(use)
    assert [(each["log_level"], each["tool"]) for each in logs] == [("warning", "use")]
    assert "$defs" in (await listed(server))["use"].input_schema


# -- arguments --------------------------------------------------------------------------------------------------------


def make_server(**options: Any) -> Server:
    server = Server("s", **options)

    @server.tool
    async def add(a: int, b: float = 1.0, *, cities: list[City] | None = None, note: str = "") -> str:
        if note == "fail":
            raise ToolError("as the model wished")
        return f"{a} {b} {cities} {note}"

    @server.tool(inline=True)
    def inline(a: int, flag: bool = False) -> dict[str, Any]:
        if a == 7:
            raise ToolError("seven")
        return {"a": a, "flag": flag}

    schema = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}

    @server.tool(input_schema=schema)
    def raw(arguments: dict[str, Any]) -> str:
        return str(arguments)

    return server


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments", "text", "paths"),
    [
        ("add", {"a": "3"}, "3 1.0 None ", ["a"]),
        ("add", {"a": 3, "b": "2.5", "note": "5"}, "3 2.5 None 5", ["b"]),
        ("add", {"a": 1, "cities": '[{"name": "Bern"}]'}, "1 1.0 [City(name='Bern', people=0)] ", ["cities"]),
        (
            "add",
            {"a": 1, "cities": [{"name": "Bern", "people": "7"}]},
            "1 1.0 [City(name='Bern', people=7)] ",
            ["cities[0].people"],
        ),
        ("add", {"a": "1", "b": None}, "1 1.0 None ", ["a", "b"]),
        ("inline", {"a": "3", "flag": "true"}, '{"a":3,"flag":true}', ["a", "flag"]),
        ("raw", {"ids": "[1, 2]"}, "{'ids': [1, 2]}", ["ids"]),
    ],
)
async def test_arguments_are_repaired_and_the_model_is_told(
    tool: str, arguments: dict[str, Any], text: str, paths: list[str], era: Any
) -> None:
    async with connected_pair(make_server(), era=era) as client:
        result = await client.call_tool(tool, arguments)
    assert not result.is_error
    assert result.text == text
    assert result.meta is not None
    assert result.meta["mcp-actors/repaired"] == {"arguments": paths}


@pytest.mark.parametrize("tool", ["add", "inline"])
async def test_what_the_tool_says_after_a_repair_is_sent(tool: str) -> None:
    async with connected_pair(make_server()) as client:
        result = await client.call_tool(tool, {"a": "7", **({"note": "fail"} if tool == "add" else {})})
    assert result.is_error
    assert result.meta is not None
    assert result.meta["mcp-actors/repaired"] == {"arguments": ["a"]}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("add", {"a": "three"}),
        ("add", {"a": "3", "z": 1}),
        ("inline", {"a": "3", "flag": "yes"}),
        ("raw", {"ids": 3}),
        ("raw", {"ids": "3"}),
    ],
)
async def test_what_cannot_be_repaired_is_refused_as_it_was_sent(
    tool: str, arguments: dict[str, Any]
) -> None:
    async with connected_pair(make_server(arguments="strict")) as client:
        refused = await client.call_tool(tool, arguments)
    server = make_server()
    async with connected_pair(server) as client:
        result = await client.call_tool(tool, arguments)
        assert not server.tree().repaired
    assert result.is_error
    assert result == refused


async def test_nothing_is_repaired_if_the_program_wants_that() -> None:
    async with connected_pair(make_server(arguments="strict")) as client:
        result = await client.call_tool("add", {"a": "3"})
    assert result.is_error
    assert "a: expected integer, got string" in result.text
    with pytest.raises(ValueError, match='write "repair" or "strict"'):
        Server("s", arguments="lax")  # type: ignore[arg-type]


async def test_the_operator_sees_repairs() -> None:
    metrics = Metrics()
    server = make_server(telemetry=metrics)
    with capture_logs() as logs:
        async with connected_pair(server) as client:
            for number in range(3):
                await client.call_tool("add", {"a": str(number)})
                await client.call_tool("add", {"a": number})
            await client.call_tool("inline", {"a": "1"})
            assert server.tree().repaired == {"add": 3, "inline": 1}
            (line,) = [
                each for each in metrics.text().splitlines() if 'tool="add"' in each and "repaired" in each
            ]
            assert line.endswith(" 3")
    told = [(each["tool"], each["arguments"]) for each in logs if "another type" in each["event"]]
    assert told == [("add", ["a"]), ("inline", ["a"])]


@pytest.mark.parametrize("era", ERAS)
async def test_a_typed_result_of_repaired_arguments_is_read_as_any_other(era: Any) -> None:
    server = Server("s")

    @server.tool
    def double(a: int) -> int:
        return 2 * a

    async with connected_pair(server, era=era) as client:
        assert isinstance(client, Client)
        assert await client.call_tool("double", {"a": "4"}, returns=int) == 8
