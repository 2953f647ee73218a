"""Completion of the arguments of prompts and resource templates."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

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


@attrs.define
class PromptReference:
    """Names a prompt."""

    type: ClassVar[Literal["ref/prompt"]] = "ref/prompt"

    name: str
    title: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ResourceTemplateReference:
    """Names a resource template; ``uri`` is the template's text."""

    type: ClassVar[Literal["ref/resource"]] = "ref/resource"

    uri: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


CompletionReference = PromptReference | ResourceTemplateReference


@attrs.define
class CompletionArgument:
    """The argument being typed and what is typed of it so far."""

    name: str
    value: str
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CompletionContext:
    """The values of the arguments that were settled before."""

    arguments: dict[str, str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CompleteParams:
    """Asks for values of one argument."""

    ref: CompletionReference
    argument: CompletionArgument
    context: CompletionContext | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class Completion:
    """At most 100 values, best first; ``total`` may count more than were sent."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class CompleteResult:
    """The answer to `CompleteParams`."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    completion: Completion
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
