"""Resources, their templates and contents."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.icons import Icon

__all__ = [
    "Annotations",
    "BlobResourceContents",
    "CacheScope",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "Resource",
    "ResourceContents",
    "ResourceTemplate",
    "ResourceUpdatedParams",
    "Role",
    "SubscribeParams",
    "TextResourceContents",
    "UnsubscribeParams",
]

Role = Literal["user", "assistant"]
CacheScope = Literal["public", "private"]


@attrs.define
class Annotations:
    """Hints for whoever shows content: for whom, how important from 0 to 1, changed when (ISO 8601)."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class Resource:
    """Something that can be read under ``uri``; ``size`` counts bytes before any encoding."""

    uri: str
    name: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    mime_type: str | None = attrs.field(default=None, kw_only=True)
    size: int | None = attrs.field(default=None, kw_only=True)
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ResourceTemplate:
    """A family of resources; ``uri_template`` is RFC 6570."""

    uri_template: str
    name: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    mime_type: str | None = attrs.field(default=None, kw_only=True)
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class TextResourceContents:
    """Contents that are text. ``uri`` may be a sub-resource of the one that was read."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class BlobResourceContents:
    """Contents that are bytes; ``blob`` is base64."""

    uri: str
    blob: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ResourceContents = TextResourceContents | BlobResourceContents


@attrs.define
class ListResourcesResult:
    """One page of resources; no ``next_cursor`` means that it is the last (an empty string is a cursor)."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resources: list[Resource]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ListResourceTemplatesResult:
    """One page of resource templates."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ReadResourceParams:
    """``input_responses`` maps a question's key to the bare answer, as plain JSON: see `InputRequiredResult`."""

    uri: str
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ReadResourceResult:
    """The contents of one resource, or of several where one was asked for (a directory)."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    contents: list[ResourceContents]
    ttl_ms: int | None = attrs.field(default=None, kw_only=True)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class SubscribeParams:
    """Asks for ``notifications/resources/updated`` about ``uri`` (revisions with sessions)."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class UnsubscribeParams:
    """Ends what `SubscribeParams` began."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class ResourceUpdatedParams:
    """A resource changed; read it again for what it holds now. ``uri`` may be below a subscribed one."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
