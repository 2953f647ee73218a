"""Images, sounds and files for functions to return: from a path or from bytes, with the media type guessed."""

from __future__ import annotations

import base64
import importlib
import os
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from mcp_actors.types.content import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextResourceContents,
)

__all__ = ["MEDIA", "Audio", "File", "Image", "Media"]

LONGEST_FILE = 12 * 1024 * 1024
"""Bytes of a file that is read: in base64 they fill the longest message that every transport carries by default."""

# The bytes by which formats are known: their offset, the bytes, and the media type.
_BEGINNINGS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AIFF", "audio/aiff"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"\xff\xf2", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (4, b"ftypM4A", "audio/mp4"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
)
# Names that the standard library has for types that are registered under other ones.
_REGISTERED = {"audio/x-wav": "audio/wav", "audio/x-aiff": "audio/aiff", "image/x-ms-bmp": "image/bmp"}
_TEXTS = frozenset({"application/json", "application/xml", "application/javascript", "image/svg+xml"})


class Media:
    """A path or bytes, of which a content block is made: the part that `Image`, `Audio` and `File` have in common.

    Raises:
        TypeError: ``source`` is neither a path nor bytes.
    """

    __slots__ = ("annotations", "meta", "mime_type", "source")

    kind: ClassVar[str] = ""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        *,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        if not isinstance(source, str | os.PathLike | bytes):
            raise TypeError(
                f"{type(self).__name__} takes a path or the bytes themselves, not a {type(source).__name__}"
            )
        self.source: Path | bytes = source if isinstance(source, bytes) else Path(source)
        self.mime_type = mime_type
        self.annotations = annotations
        self.meta = meta

    def __repr__(self) -> str:
        shown = f"{len(self.source)} bytes" if isinstance(self.source, bytes) else repr(str(self.source))
        return f"<{type(self).__name__} {shown}>"

    @property
    def name(self) -> str | None:
        """The name of the file, without its folder; ``None`` for bytes."""
        return None if isinstance(self.source, bytes) else self.source.name

    def to_block(self) -> ContentBlock:
        """Returns the content block. It reads the file, if there is one, and blocks while it does.

        Raises:
            OSError: The file cannot be read.
            ValueError: The media type can be guessed neither by the name nor by the content, is of another kind, or the
                file is longer than 12 MiB.
        """
        data = self._read()
        return self._block(data, self._type_of(data))

    def _read(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        with self.source.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise ValueError(
                f"{self.source.name} is longer than {LONGEST_FILE} bytes, which fit into a message: read it, and give "
                "the bytes, if the transport carries longer ones"
            )
        return data

    def _type_of(self, data: bytes) -> str:
        guessed = self.mime_type or _type_by_content(data, self.kind) or _type_by_name(self.name)
        if guessed is None or not guessed.startswith(self.kind):
            what = f"{guessed} is no" if guessed else "nothing tells the"
            raise ValueError(f"{what} type of {self!r}: give it mime_type='{self.kind}…'")
        return guessed

    def _block(self, data: bytes, mime_type: str) -> ContentBlock:
        raise NotImplementedError


class Image(Media):
    """An image that a tool or a prompt returns: ``return Image("plot.png")``, or ``Image(data)`` with bytes.

    It may be in a list with text and other content. A file is read after the function has returned, in a worker
    thread; it has at most 12 MiB.

    Args:
        source: The path of a file, or the bytes themselves.
        mime_type: The media type; by default the one that the first bytes show, or else the name of the file.
        annotations: For whom it is, and how important.
        meta: The block's ``_meta``.

    Raises:
        TypeError: ``source`` is neither a path nor bytes.
    """

    __slots__ = ()
    kind = "image/"

    def _block(self, data: bytes, mime_type: str) -> ImageContent:
        return ImageContent(_base64(data), mime_type, annotations=self.annotations, meta=self.meta)


class Audio(Media):
    """A sound that a tool or a prompt returns, as `Image` is an image; the arguments are the same."""

    __slots__ = ()
    kind = "audio/"

    def _block(self, data: bytes, mime_type: str) -> AudioContent:
        return AudioContent(_base64(data), mime_type, annotations=self.annotations, meta=self.meta)


class File(Media):
    """A file that a tool or a prompt returns: a resource inside of the message, as text if it is text, else as bytes.

    ``File("report.csv")``, or ``File(data, name="report.csv")`` with bytes. It is read as `Image` says.

    Args:
        source: The path of a file, or the bytes themselves.
        name: The name for clients; by default that of the file, without its folder.
        uri: The URI for clients; by default ``file:///`` with the name, which tells nothing of the server's folders.
        mime_type: The media type; by default the one that the name says, or else the first bytes.
        annotations: For whom it is, and how important.
        meta: The block's ``_meta``.

    Raises:
        TypeError: ``source`` is neither a path nor bytes.
    """

    __slots__ = ("_name", "uri")

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        *,
        name: str | None = None,
        uri: str | None = None,
        mime_type: str | None = None,
        annotations: Annotations | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(source, mime_type=mime_type, annotations=annotations, meta=meta)
        self._name = name
        self.uri = uri

    @property
    def name(self) -> str | None:
        """The name for clients; ``None`` for bytes without one."""
        return super().name if self._name is None else self._name

    def _type_of(self, data: bytes) -> str:
        guessed = self.mime_type or _type_by_name(self.name) or _type_by_content(data, "")
        if guessed is None:
            guessed = "application/octet-stream" if _text(data) is None else "text/plain"
        return guessed

    def _block(self, data: bytes, mime_type: str) -> EmbeddedResource:
        uri = self.uri or f"file:///{quote(self.name or 'file')}"
        text = _text(data) if _is_text(mime_type) else None
        contents = (
            BlobResourceContents(uri, _base64(data), mime_type)
            if text is None
            else TextResourceContents(uri, text, mime_type)
        )
        return EmbeddedResource(contents, annotations=self.annotations, meta=self.meta)


MEDIA = (Image, Audio, File)
"""The classes that become content blocks, for `isinstance`."""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _type_by_content(data: bytes, kind: str) -> str | None:
    return next(
        (
            found
            for place, beginning, found in _BEGINNINGS
            if found.startswith(kind) and data.startswith(beginning, place)
        ),
        None,
    )


def _type_by_name(name: str | None) -> str | None:
    if name is None:
        return None
    # Loaded where it is used: most servers return no files.
    found, encoding = importlib.import_module("mimetypes").guess_type(f"file:///{quote(name)}", strict=False)
    if encoding is not None:
        # The type is that of what is packed.
        return "application/gzip" if encoding == "gzip" else "application/octet-stream"
    return None if found is None else _REGISTERED.get(found, found)


def _is_text(mime_type: str) -> bool:
    plain = mime_type.partition(";")[0].strip().lower()
    return plain.startswith("text/") or plain in _TEXTS or plain.endswith(("+json", "+xml"))


def _text(data: bytes) -> str | None:
    """The bytes as text, ``None`` if they are not UTF-8 or hold a zero, which no text does."""
    if b"\x00" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
