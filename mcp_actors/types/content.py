"""Content blocks, of which the results of tools, prompts and models consist, with icons and contents of resources."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.errors import RemoteProtocolError
from mcp_actors.types.records import Vocabulary, record

__all__ = [
    "BLOCKS",
    "Annotations",
    "AudioContent",
    "BlobResourceContents",
    "ContentBlock",
    "EmbeddedResource",
    "Icon",
    "ImageContent",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "Role",
    "TextContent",
    "TextResourceContents",
    "decoded",
    "is_icon_source",
    "text_of",
]


@record(eq=False, repr=False)
class Icon(Vocabulary):
    """An image for a server, tool, prompt or resource. It comes from the peer, so it is untrusted.

    ``src`` is an https, http or ``data:`` URI; an icon of the peer with another one is left out. ``sizes`` are like
    ``"48x48"`` or ``"any"``, ``theme`` is ``"light"`` or ``"dark"`` (any text is accepted, so that a wrong icon does
    not make a list unreadable).
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


# MCP 2025-11-25, Icons, Security Considerations: clients must reject schemes that could run something, such as
# ``javascript:`` and ``file:``. Who shows an icon hands its source to a browser as it is.
_ICON_SCHEMES = ("https:", "http:", "data:")


def is_icon_source(source: object) -> bool:
    """Whether it is a URI from which an icon may be shown: one of https, http or data."""
    return isinstance(source, str) and source.lower().startswith(_ICON_SCHEMES)


Role = Literal["user", "assistant"]
"""Who says a message: the person, or the model."""


@record(eq=False, repr=False)
class Annotations(Vocabulary):
    """Hints for displaying content: its audience, its priority from 0 to 1, the time of its last change (ISO 8601)."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
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


@record(eq=False, repr=False)
class TextResourceContents(Vocabulary):
    """Contents as text. ``uri`` may be that of a sub-resource of the one that was read."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
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
            RemoteProtocolError: It is not base64.
        """
        return decoded(self.blob)


ResourceContents = TextResourceContents | BlobResourceContents
"""One part of a resource: text, or bytes in Base64."""


def decoded(data: str) -> bytes:
    """Returns the bytes of what a peer wrote in base64; raises `RemoteProtocolError` if it is malformed."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise RemoteProtocolError(f"the data is no base64: {error}") from None


@record(eq=False, repr=False)
class TextContent(Vocabulary):
    """Plain text."""

    type: ClassVar[Literal["text"]] = "text"

    text: str
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@record(eq=False, repr=False)
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
            RemoteProtocolError: It is not base64.
        """
        return decoded(self.data)


@record(eq=False, repr=False)
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
            RemoteProtocolError: It is not base64.
        """
        return decoded(self.data)


@record(eq=False, repr=False)
class ResourceLink(Resource):
    """Refers to a resource that the client may read; ``resources/list`` need not have it."""

    type: ClassVar[Literal["resource_link"]] = "resource_link"


@record(eq=False, repr=False)
class EmbeddedResource(Vocabulary):
    """The contents of a resource, inside a message."""

    type: ClassVar[Literal["resource"]] = "resource"

    resource: TextResourceContents | BlobResourceContents
    annotations: Annotations | None = attrs.field(default=None, kw_only=True)
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
"""A part of a tool's result or of a prompt's message."""

BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
"""The classes of `ContentBlock`, for `isinstance`."""


def text_of(blocks: Iterable[object]) -> str:
    """Returns the text of all text blocks and embedded text resources, each on a line of its own."""
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, TextContent):
            texts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
            texts.append(block.resource.text)
    return "\n".join(texts)
