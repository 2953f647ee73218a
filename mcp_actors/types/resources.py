"""Resources and their contents, which content blocks have too."""

from __future__ import annotations

import base64
from typing import Any, Literal

import attrs

from mcp_actors.errors import RemoteProtocolError
from mcp_actors.types.icons import Icon
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "Annotations",
    "BlobResourceContents",
    "Resource",
    "ResourceContents",
    "Role",
    "TextResourceContents",
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


def decoded(data: str) -> bytes:
    """Returns the bytes of what a peer wrote in base64; raises `RemoteProtocolError` if it is none."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(f"the data is no base64: {error}") from None
