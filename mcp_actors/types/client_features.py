"""The questions of servers to clients (MCP, Client Features): roots, sampling, and results that ask for input.

Roots are the directories and files that a client names to a server. By sampling, a server asks the client's model to
continue a conversation. In revisions without sessions, a result asks for input in place of an answer (SEP-2322).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.content import AudioContent, ContentBlock, ImageContent, Role, TextContent, text_of
from mcp_actors.types.elicitation import ElicitFormParams, ElicitResult, ElicitUrlParams
from mcp_actors.types.records import UNSET, Vocabulary, record
from mcp_actors.types.tools import Tool

__all__ = [
    "CreateMessageParams",
    "CreateMessageResult",
    "IncludeContext",
    "InputRequest",
    "InputRequiredResult",
    "InputResponse",
    "ListRootsParams",
    "ListRootsResult",
    "ModelHint",
    "ModelPreferences",
    "Root",
    "SamplingContent",
    "SamplingMessage",
    "ToolChoice",
    "ToolResultContent",
    "ToolUseContent",
]


# -- roots ---------------------------------------------------------------------------------------------


@record(eq=False, repr=False)
class Root(Vocabulary):
    """A ``file://`` URI. It is information for the server, which must check paths itself."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListRootsParams(Vocabulary):
    """Params of ``roots/list``."""

    method: ClassVar[Literal["roots/list"]] = "roots/list"

    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListRootsResult(Vocabulary):
    """Result of ``roots/list``."""

    roots: list[Root]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


# -- sampling ------------------------------------------------------------------------------------------

IncludeContext = Literal["none", "thisServer", "allServers"]
"""Which context of a session the client's model is given with a sampling request."""


@record(eq=False, repr=False)
class ToolUseContent(Vocabulary):
    """The model asks for the call of a tool; the `ToolResultContent` with its result has the same ``id``."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"

    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ToolResultContent(Vocabulary):
    """The result of a tool, for the model."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
"""A part of a message to or from the client's model."""


def _text(content: SamplingContent | list[SamplingContent]) -> str:
    blocks = content if isinstance(content, list) else [content]
    return text_of(
        part for each in blocks for part in (each.content if isinstance(each, ToolResultContent) else [each])
    )


@record(eq=False, repr=False)
class SamplingMessage(Vocabulary):
    """One message of the conversation, with one block or a list of blocks as it was received."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all text blocks, those of tool results included, each on a line of its own; empty without any."""
        return _text(self.content)


@record(eq=False, repr=False)
class ModelHint(Vocabulary):
    """A part of a model's name, such as ``"sonnet"``."""

    name: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ModelPreferences(Vocabulary):
    """Preferences for the choice of a model: hints in order of preference, and weights from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = None
    speed_priority: float | None = None
    intelligence_priority: float | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ToolChoice(Vocabulary):
    """Whether the model may, must or must not use tools. The default is ``"auto"``."""

    mode: Literal["auto", "required", "none"] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CreateMessageParams(Vocabulary):
    """Params of ``sampling/createMessage``: asks for the next message, of at most ``max_tokens`` tokens."""

    method: ClassVar[Literal["sampling/createMessage"]] = "sampling/createMessage"

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = attrs.field(default=None, kw_only=True)
    system_prompt: str | None = attrs.field(default=None, kw_only=True)
    include_context: IncludeContext | None = attrs.field(default=None, kw_only=True)
    temperature: float | None = attrs.field(default=None, kw_only=True)
    stop_sequences: list[str] | None = attrs.field(default=None, kw_only=True)
    metadata: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    tools: list[Tool] | None = attrs.field(default=None, kw_only=True)
    tool_choice: ToolChoice | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CreateMessageResult(Vocabulary):
    """The message of the model. ``stop_reason`` is ``endTurn``, ``stopSequence``, ``maxTokens``, ``toolUse``, other."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all text blocks, each on a line of its own; empty without any."""
        return _text(self.content)


# -- results that ask for input ------------------------------------------------------------------------

InputRequest = ElicitFormParams | ElicitUrlParams | CreateMessageParams | ListRootsParams
"""One question. In JSON it is the object ``{"method": ..., "params": ...}``."""

InputResponse = ElicitResult | CreateMessageResult | ListRootsResult
"""What a client answers to a question of a server."""


@record(eq=False, repr=False)
class InputRequiredResult(Vocabulary):
    """Asks the client to send the same request again, with answers to the questions and the unchanged state.

    At least one of the two members is present. Without ``input_requests`` the client only sends ``request_state``.
    """

    result_type: ClassVar[Literal["input_required"]] = "input_required"

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
