"""Completion of the arguments of prompts and resource templates."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "CompletionReference",
    "PromptReference",
    "ResourceTemplateReference",
]


@attrs.define(eq=False, repr=False)
class PromptReference(Vocabulary):
    """Refers to a prompt by its name."""

    type: ClassVar[Literal["ref/prompt"]] = "ref/prompt"

    name: str
    title: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ResourceTemplateReference(Vocabulary):
    """Refers to a resource template; ``uri`` is the text of the template."""

    type: ClassVar[Literal["ref/resource"]] = "ref/resource"

    uri: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


CompletionReference = PromptReference | ResourceTemplateReference


@attrs.define(eq=False, repr=False)
class CompletionArgument(Vocabulary):
    """The argument that is being typed, and the part of its value that was typed so far."""

    name: str
    value: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class CompletionContext(Vocabulary):
    """The values of the arguments that were completed before."""

    arguments: dict[str, str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class CompleteParams(Vocabulary):
    """Params of ``completion/complete``, which asks for values of one argument."""

    ref: CompletionReference
    argument: CompletionArgument
    context: CompletionContext | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class Completion(Vocabulary):
    """At most 100 values, the best first. ``total`` also counts those that were not sent."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class CompleteResult(Vocabulary):
    """Result of ``completion/complete``."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    completion: Completion
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
