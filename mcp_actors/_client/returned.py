"""Makes the value that a program wants of the result of a tool: an object of the class that it named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mcp_actors._schema.pydantic_types import ConversionError
from mcp_actors._wire.codec import decode_text
from mcp_actors.errors import MalformedMessage, ToolFailed, UnexpectedResult
from mcp_actors.types import UNSET, CallToolResult, TextContent

__all__ = ["returned_value"]


def returned_value(name: str, result: CallToolResult, made: Callable[[Any], Any]) -> Any:
    """Returns what the tool ``name`` returned, converted by ``made``.

    Raises:
        ToolFailed: The result is a failure inside the tool.
        UnexpectedResult: There is no value, or it does not fit.
    """
    if result.is_error:
        raise ToolFailed(name, result.text, result)
    refused: ConversionError | None = None
    for value in _values(result):
        try:
            return made(value)
        except ConversionError as error:
            refused = refused or error
    problem = "it has neither structured content nor text" if refused is None else str(refused)
    raise UnexpectedResult(name, problem, result) from refused


def _values(result: CallToolResult) -> Iterator[Any]:
    """Yields what may be meant by a result, the likeliest first.

    Servers put what is no object under ``result`` in their structured content, since most revisions allow objects
    alone there. Where a revision or a server has none at all, the value is the text, or the JSON in it.
    """
    content = result.structured_content
    if content is not UNSET:
        if result.wrapped:
            yield result.data
        yield content
        if isinstance(content, dict) and content.keys() == {"result"}:
            yield content["result"]
        return
    if len(result.content) == 1 and isinstance(result.content[0], TextContent):
        try:
            yield decode_text(result.text)
        except MalformedMessage:
            pass
    if result.text:
        yield result.text
