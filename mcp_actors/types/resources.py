"""Resource templates, and the requests, results and notifications about resources."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.content import Annotations, Icon, Resource, ResourceContents, TextResourceContents
from mcp_actors.types.records import CacheScope, Vocabulary, not_negative, record

__all__ = [
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ReadResourceParams",
    "ReadResourceResult",
    "ResourceTemplate",
    "ResourceUpdatedParams",
    "SubscribeParams",
    "UnsubscribeParams",
]


@record(eq=False, repr=False)
class ResourceTemplate(Vocabulary):
    """A set of resources whose URIs have the form of ``uri_template`` (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    mime_type: str | None = attrs.field(default=None, kw_only=True)
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    icons: list[Icon] | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListResourcesResult(Vocabulary):
    """One page of resources. It is the last one if ``next_cursor`` is absent; an empty string is a cursor."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resources: list[Resource]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ListResourceTemplatesResult(Vocabulary):
    """One page of resource templates."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ReadResourceParams(Vocabulary):
    """Params of ``resources/read``.

    ``input_responses`` maps the key of a question to the answer as plain JSON: see `InputRequiredResult`.
    """

    uri: str
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ReadResourceResult(Vocabulary):
    """Result of ``resources/read``: the contents of one resource, or of several for a resource like a directory."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    contents: list[ResourceContents]
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    @property
    def text(self) -> str:
        """The text of all contents that are text, each on a line of its own; empty if there is none."""
        return "\n".join(each.text for each in self.contents if isinstance(each, TextResourceContents))

    def to_bytes(self) -> bytes:
        """Returns the bytes of all contents, one after the other: blobs decoded, text in UTF-8.

        Raises:
            RemoteProtocolError: A blob is not base64.
        """
        return b"".join(
            each.text.encode() if isinstance(each, TextResourceContents) else each.to_bytes()
            for each in self.contents
        )


@record(eq=False, repr=False)
class SubscribeParams(Vocabulary):
    """Params of ``resources/subscribe`` (revisions with sessions)."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class UnsubscribeParams(Vocabulary):
    """Params of ``resources/unsubscribe`` (revisions with sessions)."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
class ResourceUpdatedParams(Vocabulary):
    """Params of ``notifications/resources/updated``. ``uri`` may be that of a sub-resource of the subscribed one."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
