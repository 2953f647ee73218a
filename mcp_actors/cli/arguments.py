"""Reads ``key=text`` and ``key:=json`` on the command line, and shows in lines what a tool takes.

The schema of a tool decides which value the text of an argument means; `signature` and `argument_lines` show it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import click

__all__ = [
    "NumberRange",
    "argument_lines",
    "fitted",
    "may_need_schema",
    "signature",
    "text_arguments",
    "tool_arguments",
    "value_of",
]


class NumberRange(click.FloatRange):
    """A range of numbers. NaN is in none, though no comparison with its ends says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


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


# -- Schemas: what a tool takes in lines for people, and the value that a text means -------------------

# Levels of nested objects that are shown, and references that are followed: a schema may contain itself.
MAX_NESTING = 4
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "{} characters or more",
    "maxLength": "{} characters or fewer",
    "pattern": "like {}",
    "format": "{}",
    "minItems": "{} items or more",
    "maxItems": "{} items or fewer",
}


def signature(schema: Any) -> str:
    """The arguments of a tool in one line: ``city: string, days?: integer``."""
    return ", ".join(
        f"{_name(name, schema)}: {_type(field, schema)}" for name, field in _properties(schema).items()
    )


def argument_lines(schema: Any) -> Iterator[str]:
    """A line for each argument about which there is more to say than `signature` does, and for what is inside it."""
    yield from _lines(schema, schema, 0)


def value_of(text: str, name: str, schema: Any) -> Any:
    """The value of the argument ``name=text``: what the schema demands if the text is that, and else the text."""
    field = _properties(schema).get(name)
    kinds = set(_kinds(field, schema, 0))
    if not kinds or "string" in kinds:
        return text
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text
    return value if _kind(value) & kinds else text


def _no_constant(name: str) -> None:
    """Infinity and NaN are not JSON, though Python reads them."""
    raise ValueError(name)


def _list(value: Any) -> list[Any]:
    """``value`` where a schema has to have a list, for a server may send anything."""
    return value if isinstance(value, list) else []


def _kind(value: Any) -> set[str]:
    """The names that JSON Schema has for the type of a value."""
    if value is None or isinstance(value, bool):
        return {"null" if value is None else "boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def _kinds(field: Any, root: Any, depth: int) -> Iterator[str]:
    """The types that a schema allows; none if it does not say."""
    field = _resolved(field, root)
    if depth > MAX_NESTING:
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for each in _list(field.get(key)):
            yield from _kinds(each, root, depth + 1)
    for value in _list(field.get("enum")):
        yield from _kind(value)
    if "const" in field:
        yield from _kind(field["const"])
    kind = field.get("type")
    yield from [kind] if isinstance(kind, str) else map(str, _list(kind))
    if "properties" in field:
        yield "object"


def _resolved(field: Any, root: Any) -> dict[str, Any]:
    """The schema itself, where ``field`` refers to a definition of the same schema."""
    for _ in range(MAX_NESTING):
        reference = field.get("$ref") if isinstance(field, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        field = (
            {**found, **{k: v for k, v in field.items() if k != "$ref"}} if isinstance(found, dict) else {}
        )
    return field if isinstance(field, dict) else {}


def _properties(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _name(name: str, schema: dict[str, Any]) -> str:
    return name if name in _list(schema.get("required")) else f"{name}?"


def _lines(schema: Any, root: Any, depth: int) -> Iterator[str]:
    if depth >= MAX_NESTING:
        return
    for name, part in _properties(schema).items():
        field = _resolved(part, root)
        remark = _remark(field)
        inside = list(_lines(_object_in(field, root), root, depth + 1))
        if remark or inside or depth:
            yield f"{'  ' * depth}{_name(name, schema)}: {_type(field, root)}{remark}"
        yield from inside


def _object_in(field: dict[str, Any], root: Any) -> dict[str, Any]:
    """Returns the schema of the object that a value is, may be, or is a list of; empty without one."""
    if "properties" in field:
        return field
    inner = [field.get("items"), *_list(field.get("anyOf")), *_list(field.get("oneOf"))]
    resolved = (_resolved(each, root) for each in inner)
    return next((each for each in resolved if "properties" in each), {})


def _remark(field: dict[str, Any]) -> str:
    limits = [text.format(field[key]) for key, text in _LIMITS.items() if key in field]
    items = field.get("items")
    if isinstance(items, dict):
        limits += [f"each {text.format(items[key])}" for key, text in _LIMITS.items() if key in items]
    if field.get("default") is not None:
        limits.append(f"default {json.dumps(field['default'], ensure_ascii=False)}")
    description = " ".join(str(field.get("description") or "").split())
    return (f", {', '.join(limits)}" if limits else "") + (f" - {description}" if description else "")


def _type(schema: Any, root: Any, depth: int = 0) -> str:
    """A schema in a word: enough to know what to type."""
    if not isinstance(schema, dict) or depth > MAX_NESTING:
        return "any"
    schema = _resolved(schema, root)
    if choices := _list(schema.get("enum")):
        return "|".join(map(str, choices))
    if "const" in schema:
        return str(schema["const"])
    for key in ("anyOf", "oneOf"):
        if choices := _list(schema.get(key)):
            return "|".join(dict.fromkeys(_type(each, root, depth + 1) for each in choices))
    kind = schema.get("type", "object" if "properties" in schema else "any")
    if isinstance(kind, list):
        return "|".join(str(each) for each in kind)
    if kind == "array":
        each = _type(schema.get("items", {}), root, depth + 1)
        return f"({each})[]" if "|" in each else f"{each}[]"
    return str(kind)
