"""A client's check of structured content against the output schemas of the tools that it has listed.

MCP 2026-07-28, Tools, Output Schema: clients should validate structured results against the schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp_actors._schema.validate import Validator, compile_schema
from mcp_actors.errors import RemoteProtocolError
from mcp_actors.types import UNSET, CallToolResult, Tool

__all__ = ["OutputValidation"]


class OutputValidation:
    """Output schemas by tool name; each is compiled when its tool is first called."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any] | Validator] = {}
        self._wrapped: set[str] = set()

    def __repr__(self) -> str:
        return f"<OutputValidation {len(self._schemas)}>"

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of listed tools; one without a schema is not checked."""
        for tool in tools:
            self._wrapped.discard(tool.name)
            if tool.output_schema is None:
                self._schemas.pop(tool.name, None)
            else:
                self._schemas[tool.name] = tool.output_schema
                if _wraps(tool.name, tool.output_schema):
                    self._wrapped.add(tool.name)

    def forget(self) -> None:
        """The tools have changed: until they are listed again nobody knows what they return."""
        self._schemas.clear()
        self._wrapped.clear()

    def check(self, name: str, result: CallToolResult) -> None:
        """Marks a result whose value its server has wrapped.

        Raises `RemoteProtocolError` for content that is missing or does not fit; an error needs no content."""
        schema = self._schemas.get(name)
        if schema is None or result.is_error:
            return
        if isinstance(schema, dict):
            schema = self._schemas[name] = _compiled(name, schema)
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


def _wraps(name: str, schema: dict[str, Any]) -> bool:
    """Whether a schema is that of an object which servers make for a value that is none, with the value in it.

    FastMCP marks it; the official Python SDK gives it a title of its own. MCP 2025-11-25, Tools, Output Schema, allows
    objects alone.
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or properties.keys() != {"result"}:
        return False
    return schema.get("x-fastmcp-wrap-result") is True or schema.get("title") == f"{name}Output"


def _compiled(name: str, schema: dict[str, Any]) -> Validator:
    try:
        return compile_schema(schema)
    except ValueError as error:
        raise RemoteProtocolError(f"the output schema of {name!r} cannot be used: {error}") from error
