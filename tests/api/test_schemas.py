"""From type hints to the wire and back: what is listed, what is taken, what is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from msgspec import Meta

from mcp_actors import Client, Context, Server
from mcp_actors.errors import InputRequired, LocalProtocolError
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitResult

from .peers import MODERN, ask, call


@dataclass
class Data:
    """A place."""

    x: int
    label: str = "none"


@attrs.define
class Attrs:
    x: int
    label: str | None = None


class Typed(TypedDict):
    x: int
    label: NotRequired[str]


class Named(NamedTuple):
    x: int
    label: str = "none"


class Struct(msgspec.Struct):
    x: int
    label: str = "none"


class Model(pydantic.BaseModel):
    x: int
    label: str = pydantic.Field("none", max_length=5)


# One type for each way through: the type; good JSON with what the function sees of it; bad JSON. Every type there is
# stands in ``schema/test_signature_types.py``.
ROWS: list[tuple[Any, list[tuple[Any, Any]], list[Any]]] = [
    (str, [("", ""), ("3", "3"), ('{"a":1}', '{"a":1}')], [3, None, True, [], {}]),
    (int, [(3, 3), (0, 0), (2**60, 2**60)], ["3", 3.5, True, None]),
    (Annotated[int, Meta(ge=1, le=14)], [(1, 1), (14, 14)], [0, 15, "1"]),
    (Data, [({"x": 1}, Data(1)), ({"x": 1, "label": "a"}, Data(1, "a"))], [{}, {"x": "1"}, 1]),
    (Model, [({"x": 1}, Model(x=1))], [{}, {"x": "1"}, {"x": 1, "label": "too long"}]),
    (Any, [(None, None), ([1], [1]), ("3", "3")], []),
    (list[Data], [([{"x": 1}], [Data(1)])], [[{"x": "1"}]]),
]


def echoing(hint: Any, seen: list[Any]) -> Callable[..., Any]:
    def echo(value: Any) -> None:
        seen.append(value)

    echo.__annotations__ = {"value": hint, "return": None}
    echo.__doc__ = "Looks."
    return echo


@pytest.mark.parametrize(("hint", "good", "bad"), ROWS, ids=[str(row[0]) for row in ROWS])
async def test_a_type_is_listed_taken_and_refused(
    hint: Any, good: list[tuple[Any, Any]], bad: list[Any]
) -> None:
    seen: list[Any] = []
    server = Server("s")
    server.add_tool(echoing(hint, seen), name="echo", inline=True)
    async with Client(server, era="modern") as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["required"] == ["value"]
        assert tool.input_schema["additionalProperties"] is False
        for value, expected in good:
            result = await client.call_tool("echo", {"value": value})
            assert not result.is_error, result.content
            assert seen == [expected]
            assert type(seen.pop()) is type(expected)
        for value in bad:
            result = await client.call_tool("echo", {"value": value})
            assert result.is_error, (value, seen)
            assert "value" in result.content[0].text  # type: ignore[union-attr]
            assert seen == []


@pytest.mark.parametrize("hint", [Data, Attrs, Typed, Named, Struct, Model])
async def test_every_kind_of_class_as_a_result(hint: Any) -> None:
    def make() -> Any:
        return hint(x=1, label="a")

    make.__annotations__ = {"return": hint}
    server = Server("s")
    server.add_tool(make, description="Makes.")
    async with Client(server, era="modern") as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.output_schema is not None
        result = await client.call_tool("make")  # the client checks it against that schema
        if tool.output_schema.get("type") == "object":
            assert result.structured_content == {"x": 1, "label": "a"}
        assert "1" in result.content[0].text  # type: ignore[union-attr]


async def test_a_whole_signature() -> None:
    server = Server("s")

    @server.tool
    async def forecast(
        city: str,
        days: Annotated[int, Meta(ge=1, le=14)] = 3,
        unit: Literal["C", "F"] = "C",
        *,
        at: datetime | None = None,
        ctx: Context,
    ) -> Data:
        """Forecast for a city.

        Args:
            city: The name of the city.
            days: How many days.
        """
        return Data(days, city)

    async with raw_client(server) as peer:
        (tool,) = (await ask(peer, MODERN, 1, "tools/list"))["result"]["tools"]
        assert tool["description"] == "Forecast for a city."
        schema = tool["inputSchema"]
        assert list(schema["properties"]) == ["city", "days", "unit", "at"]  # the context is in no schema
        assert schema["required"] == ["city"]
        assert schema["properties"]["city"] == {"type": "string", "description": "The name of the city."}
        days = schema["properties"]["days"]
        assert (days["minimum"], days["maximum"], days["default"]) == (1, 14, 3)
        assert days["description"] == "How many days."
        assert set(schema["properties"]["unit"]["enum"]) == {"C", "F"}
        assert tool["outputSchema"]["type"] == "object"
        result = (await call(peer, MODERN, 2, "forecast", city="Paris"))["result"]
        assert result["structuredContent"] == {"x": 3, "label": "Paris"}


async def test_a_raw_schema_and_a_dict() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"positive": {"type": "integer", "exclusiveMinimum": 0}},
        "properties": {"n": {"$ref": "#/$defs/positive"}, "kind": {"const": "a"}},
        "required": ["n"],
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"properties": {"n": {"maximum": 5}}},
    }
    server = Server("s")

    @server.tool(input_schema=schema, output_schema={"type": "object", "required": ["n"]})
    async def raw(arguments: dict[str, Any]) -> dict[str, Any]:
        """Takes what the schema takes."""
        return {key: value for key, value in arguments.items() if value != 4}

    async with raw_client(server) as peer:
        (tool,) = (await ask(peer, MODERN, 1, "tools/list"))["result"]["tools"]
        assert tool["inputSchema"] == schema  # word for word
        assert (await call(peer, MODERN, 2, "raw", n=9))["result"]["structuredContent"] == {"n": 9}
        for id, arguments in enumerate(({"n": 0}, {"n": "1"}, {}, {"n": 6, "kind": "a"})):
            result = (await call(peer, MODERN, f"r{id}", "raw", **arguments))["result"]
            assert result["isError"] is True
        # What does not fit the output schema is the tool's own mistake.
        result = (await call(peer, MODERN, 3, "raw", n=4))["result"]
        assert result["isError"] is True
        assert "it returned what cannot be sent" in result["content"][0]["text"]


@dataclass
class Booking:
    """A form."""

    name: Annotated[str, Meta(min_length=1, description="Whose?")]
    guests: Annotated[int, Meta(ge=1, le=9)] = 2
    vegetarian: bool = False
    table: Literal["window", "door"] = "door"


async def test_a_class_as_a_form_is_flat() -> None:
    server = Server("s")

    @server.tool
    async def book(ctx: Context) -> str:
        """Books."""
        return (await ctx.elicit("A table?", Booking)).action

    async with Client(server, answer_input=False, elicitation=lambda params: params) as client:  # type: ignore[arg-type, return-value]
        with pytest.raises(InputRequired) as required:
            await client.call_tool("book")
        (question,) = required.value.requests.values()
        schema = question.requested_schema
        assert schema["type"] == "object"
        assert schema["required"] == ["name"]
        assert not {"$ref", "$defs", "allOf", "anyOf"} & set(schema)
        assert schema["properties"]["name"] == {"type": "string", "minLength": 1, "description": "Whose?"}
        assert schema["properties"]["guests"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 2}
        assert schema["properties"]["vegetarian"] == {"type": "boolean", "default": False}
        assert set(schema["properties"]["table"]["enum"]) == {"door", "window"}
        assert schema["properties"]["table"]["type"] == "string"


@dataclass
class Optionals:
    """Everything may stay empty."""

    note: str | None = None
    age: Annotated[int, Meta(ge=0)] | None = None
    colours: list[Literal["r", "g"]] | None = None


@dataclass
class Nested:
    """No form can ask for this."""

    place: Data


async def form_asked(schema: Any) -> Any:
    """The form that a client is shown, or the error that the call ends with."""
    server = Server("s")

    @server.tool
    async def book(ctx: Context) -> str:
        """Books."""
        try:
            return (await ctx.elicit("?", schema)).action
        except LocalProtocolError as error:
            return str(error)

    async def elicitation(params: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with Client(server, answer_input=False, elicitation=elicitation) as client:
        try:
            return (await client.call_tool("book")).content[0].text  # type: ignore[union-attr]
        except InputRequired as required:
            (question,) = required.requests.values()
            return question.requested_schema["properties"]


async def test_what_may_stay_empty_is_simply_not_required() -> None:
    """Forms have no null: a field that nobody fills in is absent."""
    assert await form_asked(Optionals) == {
        "note": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "colours": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}},
    }


@pytest.mark.parametrize(
    ("schema", "culprit"),
    [
        (Nested, "place"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "a"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}}, "a"),
        ({"type": "object", "properties": {"a": {}}}, "a"),
        ({"type": "string"}, "object"),
    ],
)
async def test_what_no_form_can_ask_for_is_the_servers_own_mistake(schema: Any, culprit: str) -> None:
    assert culprit in await form_asked(schema)
