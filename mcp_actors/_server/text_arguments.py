"""Arguments that arrive as text: those of prompts, and the variables of resource templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["TextArgument", "text_arguments"]


class TextArgument(msgspec.Struct, frozen=True):
    """``choices`` are the only values it takes, when its annotation lists them (``Literal``, enums)."""

    name: str
    title: str | None
    description: str | None
    required: bool
    choices: tuple[str, ...]


def text_arguments(schema: Mapping[str, Any], *, of: str) -> tuple[TextArgument, ...]:
    """The arguments that ``schema``, read from the signature of ``of``, declares.

    Raises `TypeError` when one of them can take no text: such a function could never be called.
    """
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    found = []
    for name, member in schema.get("properties", {}).items():
        forms = _forms(member, definitions)
        if not any(_takes_text(form) for form in forms):
            raise TypeError(
                f"{of}: the parameter {name!r} must be annotated with str (or Literal of strings)"
            )
        found.append(
            TextArgument(
                name, member.get("title"), member.get("description"), name in required, _choices(forms)
            )
        )
    return tuple(found)


def _forms(schema: Any, definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives that a parameter's schema allows, references followed."""
    if not isinstance(schema, Mapping):
        return [{}]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _forms(definitions.get(reference.rpartition("/")[2], {}), definitions)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return [form for each in schema[union] for form in _forms(each, definitions)]
    return [schema]


def _choices(forms: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The values that all alternatives together allow; none when one of them allows any text."""
    choices: list[Any] = []
    for form in forms:
        if _is_null(form):
            continue
        if "const" in form:
            choices.append(form["const"])
        elif "enum" in form:
            choices += form["enum"]
        else:
            return ()
    return tuple(choice for choice in choices if isinstance(choice, str))


def _is_null(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "null" or form.get("enum") == [None]


def _takes_text(form: Mapping[str, Any]) -> bool:
    if "const" in form:
        return isinstance(form["const"], str)
    if "enum" in form:
        return any(isinstance(value, str) for value in form["enum"])
    type_ = form.get("type", "string")
    return type_ == "string" or (isinstance(type_, list) and "string" in type_)
