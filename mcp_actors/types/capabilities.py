"""What each side can do, and what it calls itself."""

from __future__ import annotations

from typing import Any

import attrs

from mcp_actors.types.icons import Icon

__all__ = [
    "ClientCapabilities",
    "ElicitationCapability",
    "Implementation",
    "PromptsCapability",
    "ResourcesCapability",
    "RootsCapability",
    "SamplingCapability",
    "ServerCapabilities",
    "ToolsCapability",
]


@attrs.define
class Implementation:
    """Name and version of a program, for display and diagnosis only: nothing may be decided by it."""

    name: str
    version: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    website_url: str | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class RootsCapability:
    """The client answers ``roots/list``; with ``list_changed`` it also tells of changes."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class SamplingCapability:
    """The client answers ``sampling/createMessage``; ``{}`` in a member means that it is supported."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ElicitationCapability:
    """The client answers ``elicitation/create``. Neither member means form only."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ClientCapabilities:
    """What a client can do. A member that is present counts, even when it is empty.

    ``extensions`` maps an extension's identifier to its settings; ``tasks`` is passed on as it is.
    """

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class PromptsCapability:
    """The server has prompts."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ResourcesCapability:
    """The server has resources; with ``subscribe`` it tells of changes of single ones."""

    subscribe: bool | None = None
    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ToolsCapability:
    """The server has tools."""

    list_changed: bool | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ServerCapabilities:
    """What a server can do. A member that is present counts, even when it is empty."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    completions: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    tasks: dict[str, Any] | None = None
    extensions: dict[str, Any] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
