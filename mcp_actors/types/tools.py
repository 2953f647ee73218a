"""Tools, their calls and results (MCP 2026-07-28, Server Features, Tools)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.apps import app_uri_of, visibility_of
from mcp_actors.types.content import ContentBlock, Icon, text_of
from mcp_actors.types.records import UNSET, CacheScope, Vocabulary, not_negative, record

__all__ = [
    "CallToolParams",
    "CallToolResult",
    "ListToolsResult",
    "Tool",
    "ToolAnnotations",
    "ToolExecution",
]


@record(eq=False, repr=False)
class ToolAnnotations(Vocabulary):
    """Hints about a tool. A client must not rely on them unless it trusts the server.

    The defaults are: not read-only, destructive, not idempotent, open world.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ToolExecution(Vocabulary):
    """Execution as a task: ``task_support`` is ``"forbidden"`` (the default), ``"optional"`` or ``"required"``."""

    task_support: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class Tool(Vocabulary):
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

    @property
    def app_uri(self) -> str | None:
        """The URI of the page on which its results are shown, ``None`` without one (SEP-1865); see `Client.app`."""
        return app_uri_of(self.meta)

    @property
    def visibility(self) -> frozenset[str]:
        """The callers that it is for, out of ``"model"`` and ``"app"``; by default both (SEP-1865, Visibility)."""
        return visibility_of(self.meta)


@record(eq=False, repr=False)
class ListToolsResult(Vocabulary):
    """One page of tools. It is the last one if ``next_cursor`` is absent; an empty string is a cursor."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CallToolParams(Vocabulary):
    """Params of ``tools/call``.

    ``input_responses`` maps the key of a question to the answer as plain JSON: see `InputRequiredResult`.
    """

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CallToolResult(Vocabulary):
    """Result of ``tools/call``.

    ``structured_content`` is any JSON value, including null, or `UNSET` if there is none. ``is_error`` marks a failure
    inside the tool, which the model should see; if it is absent, the call succeeded.
    """

    result_type: ClassVar[Literal["complete"]] = "complete"

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    wrapped: bool = attrs.field(default=False, init=False, repr=False, eq=False)
    """Whether the tool's output schema says that its server put the value into an object, under ``result``.

    The client sets it where the tool was listed; it is not sent.
    """
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all text blocks and embedded text resources, each on a line of its own; empty without any."""
        return text_of(self.content)

    @property
    def data(self) -> Any:
        """The value that the tool returned, as JSON has it: the structured content, ``None`` if there is none.

        If it is ``wrapped``, what is under ``result``. ``call_tool(…, returns=Forecast)`` makes objects of it.
        """
        content = self.structured_content
        if content is UNSET:
            return None
        return content["result"] if self.wrapped else content
