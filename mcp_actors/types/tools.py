"""Tools, their calls and results."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.content import ContentBlock
from mcp_actors.types.icons import Icon
from mcp_actors.types.resources import CacheScope
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
    """Hints about a tool. Untrusted: a client must not decide by them for a server that it does not trust.

    What absence means: not read-only, destructive, not idempotent, open world.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ToolExecution:
    """``task_support`` is ``"forbidden"`` (what absence means), ``"optional"`` or ``"required"``."""

    task_support: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class Tool:
    """What a client sees of a tool. The schemas are plain JSON Schema and are never changed on the way."""

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
    """One page of tools; no ``next_cursor`` means that it is the last (an empty string is a cursor)."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CallToolParams:
    """``input_responses`` maps a question's key to the bare answer, as plain JSON: see `InputRequiredResult`."""

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CallToolResult:
    """What a tool answered.

    ``structured_content`` is any JSON value, null included, hence `UNSET` for none. ``is_error`` marks a failure
    inside the tool, which the model should see; absence means success.
    """

    result_type: ClassVar[Literal["complete"]] = "complete"

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
