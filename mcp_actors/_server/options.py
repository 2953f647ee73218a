"""The options of tools, resources and prompts, written once for decorators, methods and type checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from mcp_actors.types import Annotations, Icon, ToolAnnotations

__all__ = ["PromptOptions", "ResourceOptions", "ToolOptions"]


class PromptOptions(TypedDict, total=False):
    """Everything is optional: the name comes from the function, the description from its docstring."""

    name: str
    """What clients call it."""
    title: str
    """What people see."""
    description: str
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    """The entry's ``_meta``."""
    inline: bool
    """Run a sync function on the event loop instead of in a worker thread; it must not block."""


class ToolOptions(PromptOptions, total=False):
    annotations: ToolAnnotations
    input_schema: Mapping[str, Any]
    """A raw JSON Schema: the function takes one dict."""
    output_schema: Mapping[str, Any]
    """Replaces what the return type says."""
    timeout: float
    """Seconds after which a call is cancelled; without it the tool may take as long as its client waits."""


class ResourceOptions(PromptOptions, total=False):
    mime_type: str
    size: int
    """In bytes, of a resource; a template has none."""
    annotations: Annotations
    list: Callable[..., Any]
    """For templates: a function that returns the resources of the family that exist now."""
