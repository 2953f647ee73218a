"""Prints what a server sent, as text for people or as the JSON of the wire.

Everything a server sends is untrusted: on a terminal control characters, marks of direction and characters without a
width are spelled out. Into pipes and files the text goes as it is.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable
from typing import Any

import attrs
import click

from mcp_actors import types
from mcp_actors.supervision.printable import safe, safe_json

__all__ = ["block_text", "blocks_text", "echo_json", "echo_text", "plain", "safe"]

_FIXED_NAMES = {"meta": "_meta", "from_": "from"}


def echo_text(text: str, *, err: bool = False) -> None:
    """Prints one text and a newline; on a terminal it is cleaned, and red if ``err``."""
    stream = sys.stderr if err else sys.stdout
    shown = safe(text) if stream.isatty() else text
    if err and stream.isatty():
        shown = click.style(shown, fg="red")
    click.echo(shown, err=err, nl=not text.endswith("\n"))


def echo_json(value: Any) -> None:
    """Prints ``value`` as JSON, indented by two; only characters that a terminal would obey are escaped."""
    click.echo(safe_json(json.dumps(plain(value), indent=2, ensure_ascii=False)))


def plain(value: Any) -> Any:
    """Returns a typed value as plain JSON with the names of the wire; absent members are left out."""
    if attrs.has(type(value)):
        return _plain_object(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _plain_object(value: Any) -> dict[str, Any]:
    kind = getattr(type(value), "type", None)
    members: dict[str, Any] = {"type": kind} if isinstance(kind, str) else {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        if field.name == "extra" or item is types.UNSET:
            continue
        if item is None and field.default is None:
            continue
        members[_wire_name(field.name)] = plain(item)
    members.update(plain(getattr(value, "extra", {})))
    return members


def _wire_name(name: str) -> str:
    if name in _FIXED_NAMES:
        return _FIXED_NAMES[name]
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def blocks_text(blocks: Iterable[Any]) -> str:
    """Returns content blocks as text, one below the other."""
    return "\n".join(block_text(block) for block in blocks)


def block_text(block: Any) -> str:
    """Returns one content block: its text, or a description of it in brackets."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.mime_type}, {_size(block.data)} bytes; --json shows them]"
        case types.ResourceLink():
            return f"[resource {block.uri}{f': {block.description}' if block.description else ''}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as inner):
            return inner.text
        case types.EmbeddedResource(resource=types.BlobResourceContents() as inner):
            return f"[resource {inner.uri}, {_size(inner.blob)} bytes; --json shows them]"
        case _:
            return json.dumps(plain(block), ensure_ascii=False)


def _size(data: str | bytes) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=") if isinstance(data, str) else len(data)
