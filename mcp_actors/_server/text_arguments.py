"""Arguments that arrive as text: those of prompts (MCP, Prompts) and the variables of resource templates.

The protocol has nothing but text for them, so a person who fills in a form can give any. A function may take other
types all the same: text is read as `mcp_actors._schema.repair` reads what models write in place of a number, a truth
value, an array or an object, and the function is handed what its annotation says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mcp_actors._schema.repair import Repair
from mcp_actors._schema.signature import Signature

__all__ = ["TextArgument", "TextArguments"]


class TextArgument(msgspec.Struct, frozen=True):
    """``choices`` are the only values it takes, when its annotation lists them (``Literal``, enums, ``bool``)."""

    name: str
    title: str | None
    description: str | None
    required: bool
    choices: tuple[str, ...]
    is_text: bool
    """Whether the function takes the text as it is; if not, the text is read as JSON."""


class TextArguments:
    """The arguments of one function.

    Args:
        signature: That of the function.
        of: Names the function in errors.

    Raises:
        TypeError: An argument takes nothing that could be written as text, so that the function could never be called.
    """

    def __init__(self, signature: Signature, *, of: str) -> None:
        schema = signature.input_schema
        definitions, required = schema.get("$defs", {}), schema.get("required", ())
        self.by_name: dict[str, TextArgument] = {}
        for name, member in schema.get("properties", {}).items():
            forms = [form for form in _forms(member, definitions) if not _is_null(form)]
            if not forms:
                raise TypeError(f"{of}: the parameter {name!r} takes nothing that can be written as text")
            kinds = set().union(*map(_kinds, forms))
            is_text = "string" in kinds
            title, description = member.get("title"), member.get("description")
            if not is_text:
                description = f"{description or title or name} ({_hint(kinds)})"
            self.by_name[name] = TextArgument(
                name, title, description, name in required, _choices(forms), is_text
            )
        self._bind = signature.bind
        self._others = [each for each in self.by_name.values() if not each.is_text]
        self._read = Repair(schema) if self._others else None

    def bind(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments of the function. An empty text for an optional number and its like is none.

        Raises:
            InvalidArguments: A text is not what the function takes.
        """
        if self._read is None:
            return self._bind(texts)
        empty = {each.name for each in self._others if not each.required and texts.get(each.name) == ""}
        given = {name: text for name, text in texts.items() if name not in empty}
        read = self._read(given)
        return self._bind(given if read is None else read.arguments)


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


def _is_null(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "null" or form.get("enum") == [None]


def _kinds(form: Mapping[str, Any]) -> set[str]:
    """The JSON types of an alternative; that of text where it does not say."""
    if "const" in form or "enum" in form:
        return {_TYPES.get(type(each), "string") for each in form.get("enum", [form.get("const")])}
    kind = form.get("type", "string")
    return {kind} if isinstance(kind, str) else set(kind)


_TYPES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
_HINTS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a JSON array",
    "object": "a JSON object",
}


def _hint(kinds: set[str]) -> str:
    """Says what to write, for people: clients show the description of an argument and nothing else of its type."""
    return " or ".join(hint for kind, hint in _HINTS.items() if kind in kinds)


def _choices(forms: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """The texts that all alternatives together allow; none when one of them allows any text."""
    choices: list[Any] = []
    for form in forms:
        if "const" in form:
            choices.append(form["const"])
        elif "enum" in form:
            choices += form["enum"]
        elif form.get("type") == "boolean":
            choices += (True, False)
        else:
            return ()
    return tuple(
        choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
        for choice in choices
        if choice is not None
    )
