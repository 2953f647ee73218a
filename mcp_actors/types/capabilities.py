"""The capabilities of servers, and the names of programs."""

from __future__ import annotations

from typing import Any

import attrs

from mcp_actors.types.icons import Icon
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "Implementation",
    "PromptsCapability",
    "ResourcesCapability",
    "ServerCapabilities",
    "ToolsCapability",
]


@attrs.define(eq=False, repr=False)
class Implementation(Vocabulary):
    """The name and version of a program, for display and diagnosis only: no behaviour may depend on it."""

    name: str
    version: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    website_url: str | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class PromptsCapability(Vocabulary):
    """The server has prompts."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ResourcesCapability(Vocabulary):
    """The server has resources; with ``subscribe`` it also notifies clients of changes of a single one."""

    subscribe: bool | None = None
    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ToolsCapability(Vocabulary):
    """The server has tools."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ServerCapabilities(Vocabulary):
    """The capabilities of a server. A member that is present is declared, even if it is empty."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
