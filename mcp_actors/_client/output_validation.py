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

    def __repr__(self) -> str:
        return f"<OutputValidation {len(self._schemas)}>"

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of listed tools; one without a schema is not checked."""
        for tool in tools:
            if tool.output_schema is None:
                self._schemas.pop(tool.name, None)
            else:
                self._schemas[tool.name] = tool.output_schema

    def forget(self) -> None:
        """The tools have changed: until they are listed again nobody knows what they return."""
        self._schemas.clear()

    def check(self, name: str, result: CallToolResult) -> None:
        """Raises `RemoteProtocolError` for content that is missing or does not fit; an error needs no content."""
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


def _compiled(name: str, schema: dict[str, Any]) -> Validator:
    try:
        return compile_schema(schema)
    except ValueError as error:
        raise RemoteProtocolError(f"the output schema of {name!r} cannot be used: {error}") from error
