"""``call_tool(…, returns=…)`` returns objects of the caller's class; results have their text, value and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import attrs
import pydantic
import pytest
from typing_extensions import TypedDict

import mcp_actors.sync
from mcp_actors import Client, RemoteProtocolError, Server, ToolError, ToolFailed, UnexpectedResult
from mcp_actors.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
    Tool,
)


@dataclass
class Forecast:
    city: str
    day: date
    degrees: float


@attrs.frozen
class Weather:
    city: str
    degrees: float


class Model(pydantic.BaseModel):
    city: str
    degrees: float


class Plain(TypedDict):
    city: str
    degrees: float


server = Server("returns")


@server.tool
def forecast(city: str) -> Forecast:
    return Forecast(city, date(2026, 7, 28), 21)


@server.tool
def count() -> int:
    return 3


@server.tool
def forecasts() -> list[Forecast]:
    return [forecast("Bonn"), forecast("Ulm")]


@server.tool
def spoken() -> str:
    return "fine"


@server.tool
def as_text() -> str:
    return '{"city": "Bonn", "degrees": 3.5}'


@server.tool
def in_two_parts() -> list[TextContent]:
    return [TextContent("[1,"), TextContent("2]")]


@server.tool
def wrapped() -> dict[str, Any]:
    return {"result": 5}


@server.tool
def failing() -> Forecast:
    raise ToolError("the station is closed")


@server.tool
def silent() -> None:
    return None


ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@ERAS
async def test_the_class_is_returned(era: str) -> None:
    async with Client(server, era=era) as client:
        found = await client.call_tool("forecast", {"city": "Bonn"}, returns=Forecast)
        assert found == Forecast("Bonn", date(2026, 7, 28), 21.0)
        # A session has no structured content but objects: the value is in the text.
        assert await client.call_tool("count", returns=int) == 3
        assert await client.call_tool("count", returns=float) == 3
        assert (await client.call_tool("forecasts", returns=list[Forecast]))[1].city == "Ulm"
        assert await client.call_tool("count", returns=int | None) == 3


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Weather, Weather("Bonn", 3.5)),
        (Model, Model(city="Bonn", degrees=3.5)),
        (Plain, {"city": "Bonn", "degrees": 3.5}),
        (dict[str, Any], {"city": "Bonn", "degrees": 3.5}),
        (str, '{"city": "Bonn", "degrees": 3.5}'),
    ],
)
async def test_json_in_text_is_a_value_too(kind: Any, expected: object) -> None:
    async with Client(server) as client:
        assert await client.call_tool("as_text", returns=kind) == expected


async def test_text_is_a_value() -> None:
    async with Client(server) as client:
        assert await client.call_tool("spoken", returns=str) == "fine"
        assert await client.call_tool("in_two_parts", returns=str) == "[1,\n2]"


async def test_a_value_under_result_is_taken_out_if_it_does_not_fit_otherwise() -> None:
    async with Client(server) as client:
        assert await client.call_tool("wrapped", returns=int) == 5
        assert await client.call_tool("wrapped", returns=dict[str, int]) == {"result": 5}


@ERAS
async def test_a_failure_inside_the_tool_is_raised(era: str) -> None:
    async with Client(server, era=era) as client:
        with pytest.raises(ToolFailed, match="the tool 'failing' failed: the station is closed") as raised:
            await client.call_tool("failing", returns=Forecast)
        assert (raised.value.tool, raised.value.text) == ("failing", "the station is closed")
        assert raised.value.result.is_error
        assert not isinstance(
            raised.value, ToolError
        )  # which would be shown to the model of whoever calls us


async def test_what_does_not_fit_is_named() -> None:
    async with Client(server) as client:
        with pytest.raises(
            UnexpectedResult, match=r"'forecast' returned does not fit: .*expected string"
        ) as raised:
            await client.call_tool("forecast", {"city": "Bonn"}, returns=dict[str, str])
        assert raised.value.result.data["city"] == "Bonn"
        with pytest.raises(UnexpectedResult, match="neither structured content nor text"):
            await client.call_tool("silent", returns=Forecast)


def test_texts_of_peers_are_cut() -> None:
    result = CallToolResult([])
    assert len(str(ToolFailed("t", "x" * 5000, result))) < 1100
    assert len(str(UnexpectedResult("t", "x" * 5000, result))) < 1100


async def test_a_class_without_a_form_in_json_is_refused_before_anything_is_sent() -> None:
    async with Client(server) as client:
        with pytest.raises(TypeError, match="no form in JSON"):
            await client.call_tool("failing", returns=Server)


@pytest.mark.parametrize("mark", [{"x-fastmcp-wrap-result": True}, {"title": "countOutput"}, {}])
async def test_a_listed_schema_says_whether_the_value_is_wrapped(mark: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
        **mark,
    }
    other = Server("wraps")

    @other.tool(name="count", output_schema=schema)
    def count() -> Any:
        return {"result": 3}

    async with Client(other) as client:
        assert (await client.call_tool("count")).data == {"result": 3}
        assert [type(each) for each in (await client.list_tools()).tools] == [Tool]
        result = await client.call_tool("count")
        assert result.data == (3 if mark else {"result": 3})
        assert result.structured_content == {"result": 3}
        assert result == CallToolResult(result.content, {"result": 3}, meta=result.meta)
        assert await client.call_tool("count", returns=int) == 3


def test_text_has_embedded_resources() -> None:
    file = EmbeddedResource(TextResourceContents("file:///a.txt", "inside"))
    blob = EmbeddedResource(BlobResourceContents("file:///b", "AAAA"))
    assert CallToolResult([TextContent("before"), file, blob]).text == "before\ninside"
    messages = [PromptMessage("user", TextContent("one")), PromptMessage("assistant", file)]
    assert GetPromptResult(messages).text == "one\ninside"


def test_bytes() -> None:
    contents = [TextResourceContents("a:b", "ä"), BlobResourceContents("a:c", "AAE=")]
    assert ReadResourceResult(contents).to_bytes() == "ä".encode() + b"\x00\x01"
    assert ImageContent("AAE=", "image/png").to_bytes() == b"\x00\x01"
    with pytest.raises(RemoteProtocolError, match="no base64"):
        ImageContent("?", "image/png").to_bytes()


def test_the_client_of_a_plain_program_returns_the_class_too() -> None:
    with mcp_actors.sync.Client(server) as client:
        found = client.call_tool("forecast", {"city": "Bonn"}, returns=Forecast)
        assert found == Forecast("Bonn", date(2026, 7, 28), 21.0)
        with pytest.raises(ToolFailed, match="the station is closed"):
            client.call_tool("failing", returns=Forecast)
        with pytest.raises(UnexpectedResult):
            client.call_tool("forecast", {"city": "Bonn"}, returns=int)
