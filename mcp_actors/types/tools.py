"""Tools, their calls and results (MCP 2026-07-28, Server Features, Tools)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.caching import CacheScope, not_negative
from mcp_actors.types.content import ContentBlock, TextContent
from mcp_actors.types.icons import Icon
from mcp_actors.types.unset import UNSET

__all__ = [
    "CallToolParams",
    "CallToolResult",
    "ListToolsResult",
    "Tool",
    "ToolAnnotations",
    "ToolExecution",
]


@attrs.define
class ToolAnnotations:
    """Hints about a tool. A client must not rely on them unless it trusts the server.

    The defaults are: not read-only, destructive, not idempotent, open world.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ToolExecution:
    """Execution as a task: ``task_support`` is ``"forbidden"`` (the default), ``"optional"`` or ``"required"``."""

    task_support: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class Tool:
    """The description of a tool in ``tools/list``. The schemas are plain JSON Schema and are never changed."""

    name: str
    input_schema: dict[str, Any]
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    output_schema: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    annotations: ToolAnnotations | None = attrs.field(default=None, kw_only=True)
    execution: ToolExecution | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListToolsResult:
    """One page of tools. It is the last one if ``next_cursor`` is absent; an empty string is a cursor."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CallToolParams:
    """Params of ``tools/call``.

    ``input_responses`` maps the key of a question to the answer as plain JSON: see `InputRequiredResult`.
    """

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CallToolResult:
    """Result of ``tools/call``.

    ``structured_content`` is any JSON value, including null, or `UNSET` if there is none. ``is_error`` marks a failure
    inside the tool, which the model should see; if it is absent, the call succeeded.
    """

    result_type: ClassVar[Literal["complete"]] = "complete"

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all text blocks, each on a line of its own; empty if there is none."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    @property
    def data(self) -> Any:
        """The structured content, ``None`` if there is none."""
        return None if self.structured_content is UNSET else self.structured_content
