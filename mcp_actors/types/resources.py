"""Resources, their templates and contents."""

from __future__ import annotations

import base64
from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.errors import RemoteProtocolError
from mcp_actors.types.caching import CacheScope, not_negative
from mcp_actors.types.icons import Icon
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "Annotations",
    "BlobResourceContents",
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
    "decoded",
]

Role = Literal["user", "assistant"]


@attrs.define(eq=False, repr=False)
class Annotations(Vocabulary):
    """Hints for displaying content: its audience, its priority from 0 to 1, the time of its last change (ISO 8601)."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class Resource(Vocabulary):
    """A resource that can be read by its ``uri``. ``size`` is in bytes, before any encoding."""

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


@attrs.define(eq=False, repr=False)
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


@attrs.define(eq=False, repr=False)
class TextResourceContents(Vocabulary):
    """Contents as text. ``uri`` may be that of a sub-resource of the one that was read."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class BlobResourceContents(Vocabulary):
    """Contents as bytes; ``blob`` is base64."""

    uri: str
    blob: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    def to_bytes(self) -> bytes:
        """Returns ``blob`` decoded.

        Raises:
            RemoteProtocolError: It is no base64.
        """
        return decoded(self.blob)


ResourceContents = TextResourceContents | BlobResourceContents


@attrs.define(eq=False, repr=False)
class ListResourcesResult(Vocabulary):
    """One page of resources. It is the last one if ``next_cursor`` is absent; an empty string is a cursor."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resources: list[Resource]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ListResourceTemplatesResult(Vocabulary):
    """One page of resource templates."""

    result_type: ClassVar[Literal["complete"]] = "complete"

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    ttl_ms: int | None = attrs.field(default=None, kw_only=True, validator=not_negative)
    cache_scope: CacheScope | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ReadResourceParams(Vocabulary):
    """Params of ``resources/read``.

    ``input_responses`` maps the key of a question to the answer as plain JSON: see `InputRequiredResult`.
    """

    uri: str
    input_responses: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    request_state: str | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
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
            RemoteProtocolError: A blob is no base64.
        """
        return b"".join(
            each.text.encode() if isinstance(each, TextResourceContents) else each.to_bytes()
            for each in self.contents
        )


@attrs.define(eq=False, repr=False)
class SubscribeParams(Vocabulary):
    """Params of ``resources/subscribe`` (revisions with sessions)."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class UnsubscribeParams(Vocabulary):
    """Params of ``resources/unsubscribe`` (revisions with sessions)."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ResourceUpdatedParams(Vocabulary):
    """Params of ``notifications/resources/updated``. ``uri`` may be that of a sub-resource of the subscribed one."""

    uri: str
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


def decoded(data: str) -> bytes:
    """Returns the bytes of what a peer wrote in base64; raises `RemoteProtocolError` if it is none."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(f"the data is no base64: {error}") from None
