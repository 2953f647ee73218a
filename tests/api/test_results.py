"""Results as their readers want them, and the annotations, arguments and schemas behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from mcp_actors import Client, Server
from mcp_actors.types import UNSET, CallToolResult, ContentBlock, ImageContent, TextContent
from mcp_transports.http.server import Refusal

ERAS = ["legacy", "modern"]
BLOCKS: list[ContentBlock] = [TextContent("a"), ImageContent("eA==", "image/png"), TextContent("b")]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("hint", "value", "content"),
    [
        (list[TextContent], BLOCKS[:1], BLOCKS[:1]),
        (list[ContentBlock], BLOCKS, BLOCKS),
        (Sequence[ContentBlock], tuple(BLOCKS), BLOCKS),
        (Iterable[ContentBlock], BLOCKS, BLOCKS),
        (Iterable[ContentBlock], lambda: iter(BLOCKS), BLOCKS),
        (Iterator[TextContent], lambda: iter(BLOCKS[:1]), BLOCKS[:1]),
        (list[str | ImageContent], ["a", BLOCKS[1]], BLOCKS[:2]),
        (Sequence[ContentBlock], [], []),
    ],
)
async def test_sequences_of_blocks_are_content(hint: Any, value: Any, content: Any, era: str) -> None:
    server = Server("content")

    async def give() -> Any:
        return value() if callable(value) else value

    give.__annotations__["return"] = hint
    server.add_tool(give)
    async with Client(server, era=era) as client:
        [tool] = [each async for each in client.tools()]
        assert tool.output_schema is None
        result = await client.call_tool("give")
    assert result.content == content
    assert result.structured_content is UNSET


@pytest.mark.parametrize("era", ERAS)
async def test_a_list_of_values_is_no_content(era: str) -> None:
    server = Server("content")

    @server.tool
    async def give() -> Sequence[str]:
        return []

    async with Client(server, era=era) as client:
        assert (await client.call_tool("give")).text == "[]"


def test_text_and_data() -> None:
    result = CallToolResult(BLOCKS, {"a": 1})
    assert (result.text, result.data) == ("a\nb", {"a": 1})
    assert (CallToolResult([]).text, CallToolResult([]).data) == ("", None)


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_without_arguments_has_properties_all_the_same(era: str) -> None:
    server = Server("schemas")

    @server.tool
    async def now() -> str:
        return "now"

    async with Client(server, era=era) as client:
        [tool] = [each async for each in client.tools()]
    assert tool.input_schema["properties"] == {}


@pytest.mark.parametrize("era", ERAS)
async def test_one_point_zero_is_an_integer(era: str) -> None:
    server = Server("numbers")

    @server.tool
    async def add(numbers: list[int], more: int = 0, ratio: float = 1.5) -> str:
        return repr((numbers, more, ratio))

    async with Client(server, era=era) as client:
        wide = {"numbers": [1.0, 2], "more": 3.0, "ratio": 2.0}
        assert (await client.call_tool("add", wide)).text == "([1, 2], 3, 2.0)"
        refused = await client.call_tool("add", {"numbers": [1.5], "more": True})
    assert refused.is_error
    assert "numbers[0]: expected integer, got number" in refused.text
    assert "more: expected integer, got boolean" in refused.text


def test_a_refusal_writes_its_body() -> None:
    assert Refusal(401, "a token is needed").body.endswith(b'"message":"a token is needed"}}')
    assert (Refusal(404).body, Refusal(404, "x", body=b"mine").body) == (b"", b"mine")
