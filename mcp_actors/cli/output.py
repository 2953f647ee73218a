"""The one door of the commands to the terminal, and what a server sent as text for people or as the JSON of the wire.

Everything a server sends is untrusted, and so is what a file, an upstream or a user of the server chose. What a
terminal would obey, hide or turn round is spelled out here, whoever wrote it; only the styles that `styled` gives go
through. Nothing else in the commands writes to a standard stream, which tests/cli/test_terminal.py looks for.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import IO, Any

import attrs
import click

from mcp_actors import types
from mcp_actors.cli.start import asking
from mcp_actors.supervision.printable import safe, safe_json

__all__ = [
    "block_text",
    "blocks_text",
    "confirmed",
    "echo",
    "echo_bytes",
    "echo_json",
    "echo_text",
    "overwrite",
    "plain",
    "rendered",
    "safe",
    "styled",
]

_FIXED_NAMES = {"meta": "_meta", "from_": "from"}

# Styles are written with a mark that no peer knows, so that styles of its own are not taken for ours.
_MARK = f"\x1b{os.urandom(8).hex()}"
_STYLES = re.compile(rf"{_MARK}(\[[0-9;]*m)")


def styled(text: str, **style: Any) -> str:
    """Returns a text with the styles of `click.style`, to be part of what `echo` prints."""
    begin = click.style("", reset=False, **style).replace("\x1b", _MARK)
    return f"{begin}{text}{_MARK}[0m" if begin else text


def rendered(text: str) -> str:
    """Returns a text as a terminal may have it: with the styles of `styled`, and everything else spelled out."""
    found = _STYLES.split(text)
    return "".join(f"\x1b{each}" if at % 2 else safe(each) for at, each in enumerate(found))


def echo(text: str = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Prints a text as `rendered` returns it; without styles into pipes, into files and under ``NO_COLOR``."""
    click.echo(rendered(text), err=err, nl=nl, file=file)


def confirmed(question: str) -> bool:
    """Asks a person on standard error whether to go on, which is not so by default.

    Raises:
        click.Abort: The person ended the input.
        KeyboardInterrupt: The person pressed Ctrl-C.
    """
    with asking():
        return click.confirm(rendered(question), default=False, err=True)


def overwrite(text: str, width: int) -> None:
    """Writes a text to standard error over ``width`` characters of the line; what comes next is written over it.

    Spaces instead of a control sequence: they work on every terminal, without colours too.
    """
    click.echo(f"\r{rendered(text).ljust(width)}\r", err=True, nl=False)


def echo_bytes(data: bytes) -> None:
    """Writes bytes to standard output as they are; the caller has seen that it is no terminal."""
    click.echo(data, nl=False)


def echo_text(text: str, *, err: bool = False) -> None:
    """Prints one text and a newline. Into pipes and files it goes as it is; on a terminal it is red if ``err``."""
    stream = sys.stderr if err else sys.stdout
    nl = not text.endswith("\n")
    if stream.isatty():
        echo(styled(text, fg="red") if err else text, err=err, nl=nl)
    else:
        click.echo(text, err=err, nl=nl)


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
        # What no constructor takes was not sent: the client has found it out.
        if field.name == "extra" or item is types.UNSET or not field.init:
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
