"""The results of tools: the check against a tool's output schema, and the value that a program wants of a result.

MCP 2026-07-28, Tools, Output Schema: clients should validate structured results against the schema. So the result of a
tool that was listed with a schema is checked. A program that names a class (``returns=``) gets an object of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from mcp_actors._client.tool_arguments import ArgumentCheck, ArgumentMode
from mcp_actors._schema.convert import ConversionError
from mcp_actors._schema.returned import conversion
from mcp_actors._schema.validate import CompiledSchemas, Validator, compile_schema
from mcp_actors._wire.codec import decode_text
from mcp_actors.errors import MalformedMessage, RemoteProtocolError, ToolFailed, UnexpectedResult
from mcp_actors.types import UNSET, CallToolResult, TextContent, Tool

__all__ = ["ListedSchemas", "result_reader", "returned_value"]


class ListedSchemas:
    """Output schemas by tool name; each is compiled when its tool is first called. Those of arguments are beside them.

    Args:
        arguments: What is done with the arguments of calls.
    """

    def __init__(self, arguments: ArgumentMode) -> None:
        self.inputs = ArgumentCheck(arguments)
        self._schemas: dict[str, dict[str, Any]] = {}
        self._compiled = CompiledSchemas[Validator]()
        self._wrapped: set[str] = set()

    def __repr__(self) -> str:
        return f"<ListedSchemas {len(self._schemas)}>"

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of listed tools; the results of one without a schema are not checked."""
        tools = list(tools)
        self.inputs.learn(tools)
        for tool in tools:
            self._wrapped.discard(tool.name)
            if tool.output_schema is None:
                self._schemas.pop(tool.name, None)
            else:
                self._schemas[tool.name] = tool.output_schema
                if wraps(tool.name, tool.output_schema):
                    self._wrapped.add(tool.name)

    def forget(self) -> None:
        """Forgets all schemas: the tools have changed, and have to be listed again."""
        self.inputs.forget()
        self._schemas.clear()
        self._compiled.clear()
        self._wrapped.clear()

    def check(self, name: str, result: CallToolResult) -> None:
        """Marks a result whose value its server has wrapped.

        Raises `RemoteProtocolError` for content that is missing or does not fit; an error needs no content."""
        listed = self._schemas.get(name)
        if listed is None or result.is_error:
            return
        schema = self._compiled.of(listed, partial(_compiled, name, listed))
        if result.structured_content is UNSET:
            raise RemoteProtocolError(
                f"the tool {name!r} has an output schema but gave no structured content"
            )
        problems = schema.problems(result.structured_content)
        if problems:
            raise RemoteProtocolError(
                f"what {name!r} returned does not fit its output schema: {'; '.join(problems)}"
            )
        if name in self._wrapped and "result" in result.structured_content:
            result.wrapped = True


def wraps(name: str, schema: dict[str, Any]) -> bool:
    """Whether a schema is that of an object in which servers wrap a value that is not an object.

    FastMCP marks it; the official Python SDK gives it a title of its own. MCP 2025-11-25, Tools, Output Schema, allows
    objects alone.
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or properties.keys() != {"result"}:
        return False
    return schema.get("x-fastmcp-wrap-result") is True or schema.get("title") == f"{name}Output"


def _compiled(name: str, schema: dict[str, Any]) -> tuple[Validator, int]:
    try:
        validator = compile_schema(schema)
    except ValueError as error:
        raise RemoteProtocolError(f"the output schema of {name!r} cannot be used: {error}") from error
    return validator, validator.weight


def result_reader(returns: Any) -> Callable[[str, CallToolResult], Any]:
    """Returns a function that makes an object of the class ``returns`` of the result of a tool, whose name comes first.

    The function raises `ToolFailed` for a failure inside the tool, and `UnexpectedResult` if there is no value, or the
    value does not fit.

    Raises:
        TypeError: ``returns`` is not a class that values can be converted to.
    """
    return partial(returned_value, conversion(returns))


def returned_value(made: Callable[[Any], Any], name: str, result: CallToolResult) -> Any:
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

    Servers put a value that is not an object under ``result`` in their structured content, since most revisions allow
    objects alone there. Without structured content the value is the text, or the JSON in it.
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
