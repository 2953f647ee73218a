"""``key=text`` and ``key:=json`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from mcp_actors.cli.schema_text import value_of

__all__ = ["fitted", "may_need_schema", "text_arguments", "tool_arguments"]


def tool_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Parses ``a=1`` as the text ``"1"`` and ``a:=1`` as the number 1.

    Raises:
        click.UsageError: a word is neither, its JSON is malformed, or a key is empty or given twice.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        key, text = _split(word)
        value: Any = text
        if key.endswith(":"):
            key = key[:-1]
            value = _json(key, text)
        _put(arguments, key, value, word)
    return arguments


def may_need_schema(words: Sequence[str]) -> bool:
    """Whether the text of one of the words reads as a number, true, false, null, a list or an object."""
    return any(_reads_as_json(word.partition("=")[2]) for word in words if _is_text(word))


def fitted(arguments: dict[str, Any], words: Sequence[str], schema: Any) -> dict[str, Any]:
    """Makes of each ``a=1`` what the schema of the tool demands there; ``a:=1`` stays what it is."""
    texts = {word.partition("=")[0] for word in words if _is_text(word)}
    return {key: value_of(value, key, schema) if key in texts else value for key, value in arguments.items()}


def _is_text(word: str) -> bool:
    return not word.partition("=")[0].endswith(":")


def _reads_as_json(text: str) -> bool:
    try:
        return not isinstance(json.loads(text), str)
    except ValueError:
        return False


def text_arguments(words: Sequence[str]) -> dict[str, str]:
    """Parses ``a=1`` for prompts, whose arguments are always text. The key ends at the first ``=``.

    Raises:
        click.UsageError: a word is nothing like that, or a key is empty or given twice.
    """
    arguments: dict[str, str] = {}
    for word in words:
        key, text = _split(word)
        if key.endswith(":"):
            raise click.UsageError(f"prompt arguments are text: write {key[:-1]}={text}")
        _put(arguments, key, text, word)
    return arguments


def _split(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals:
        raise click.UsageError(f"{word!r} is no argument: write key=text or key:=json")
    return key, text


def _json(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(
            f"{key}:={text} is not JSON ({error}); for plain text write {key}={text}"
        ) from None


def _put(arguments: dict[str, Any], key: str, value: Any, word: str) -> None:
    if not key:
        raise click.UsageError(f"{word!r} has no key")
    if key in arguments:
        raise click.UsageError(f"{key!r} is given twice")
    arguments[key] = value
