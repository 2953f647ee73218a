"""Prompts, and the completion of arguments (MCP 2026-07-28, Server Features, Prompts)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.content import ContentBlock, Icon, Role, text_of
from mcp_actors.types.records import CacheScope, Vocabulary, not_negative, record

__all__ = [
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "CompletionReference",
    "GetPromptParams",
    "GetPromptResult",
    "ListPromptsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "ResourceTemplateReference",
]


@record(eq=False, repr=False)
class PromptArgument(Vocabulary):
    """An argument of a prompt, whose value is always text. It may be left out unless ``required`` is true."""

    name: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    required: bool | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class Prompt(Vocabulary):
    """The description of a prompt in ``prompts/list``."""

    name: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    arguments: list[PromptArgument] | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListPromptsResult(Vocabulary):
    """One page of prompts. It is the last one if ``next_cursor`` is absent; an empty string is a cursor."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    prompts: list[Prompt]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class GetPromptParams(Vocabulary):
    """Params of ``prompts/get``.

    ``input_responses`` maps the key of a question to the answer as plain JSON: see `InputRequiredResult`.
    """

    name: str
    arguments: dict[str, str] | None = None
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class PromptMessage(Vocabulary):
    """One message of a prompt, with exactly one block."""

    role: Role
    content: ContentBlock
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class GetPromptResult(Vocabulary):
    """Result of ``prompts/get``: the prompt with its arguments filled in."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    messages: list[PromptMessage]
    description: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all messages, each on a line of its own; empty if there is none."""
        return text_of(each.content for each in self.messages)


# -- completion of the arguments of prompts and resource templates -------------------------------------


@record(eq=False, repr=False)
class PromptReference(Vocabulary):
    """Refers to a prompt by its name."""

    type: ClassVar[Literal["ref/prompt"]] = "ref/prompt"

    name: str
    title: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ResourceTemplateReference(Vocabulary):
    """Refers to a resource template; ``uri`` is the text of the template."""

    type: ClassVar[Literal["ref/resource"]] = "ref/resource"

    uri: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


CompletionReference = PromptReference | ResourceTemplateReference
"""What is completed: an argument of a prompt, or a variable of a resource template."""


@record(eq=False, repr=False)
class CompletionArgument(Vocabulary):
    """The argument that is being typed, and the part of its value that was typed so far."""

    name: str
    value: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CompletionContext(Vocabulary):
    """The values of the arguments that were completed before."""

    arguments: dict[str, str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CompleteParams(Vocabulary):
    """Params of ``completion/complete``, which asks for values of one argument."""

    ref: CompletionReference
    argument: CompletionArgument
    context: CompletionContext | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class Completion(Vocabulary):
    """At most 100 values, the best first. ``total`` also counts those that were not sent."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class CompleteResult(Vocabulary):
    """Result of ``completion/complete``."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    completion: Completion
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
