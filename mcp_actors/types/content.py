"""Content blocks, of which the results of tools, prompts and models consist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.types.resources import (
    Annotations,
    BlobResourceContents,
    Resource,
    TextResourceContents,
    decoded,
)
from mcp_actors.types.vocabulary import Vocabulary

__all__ = [
    "BLOCKS",
    "AudioContent",
    "ContentBlock",
    "EmbeddedResource",
    "ImageContent",
    "ResourceLink",
    "TextContent",
    "text_of",
]


@attrs.define(eq=False, repr=False)
class TextContent(Vocabulary):
    """Plain text."""

    type: ClassVar[Literal["text"]] = "text"

    text: str
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class ImageContent(Vocabulary):
    """An image; ``data`` is base64."""

    type: ClassVar[Literal["image"]] = "image"

    data: str
    mime_type: str
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    def to_bytes(self) -> bytes:
        """Returns ``data`` decoded.

        Raises:
            RemoteProtocolError: It is no base64.
        """
        return decoded(self.data)


@attrs.define(eq=False, repr=False)
class AudioContent(Vocabulary):
    """Sound; ``data`` is base64."""

    type: ClassVar[Literal["audio"]] = "audio"

    data: str
    mime_type: str
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    def to_bytes(self) -> bytes:
        """Returns ``data`` decoded.

        Raises:
            RemoteProtocolError: It is no base64.
        """
        return decoded(self.data)


@attrs.define(eq=False, repr=False)
class ResourceLink(Resource):
    """Refers to a resource that the client may read; ``resources/list`` need not have it."""

    type: ClassVar[Literal["resource_link"]] = "resource_link"


@attrs.define(eq=False, repr=False)
class EmbeddedResource(Vocabulary):
    """The contents of a resource, inside a message."""

    type: ClassVar[Literal["resource"]] = "resource"

    resource: TextResourceContents | BlobResourceContents
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource

BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
"""The classes of `ContentBlock`, for `isinstance`."""


def text_of(blocks: Iterable[ContentBlock]) -> str:
    """Returns the text of all text blocks and embedded text resources, each on a line of its own."""
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, TextContent):
            texts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
            texts.append(block.resource.text)
    return "\n".join(texts)
