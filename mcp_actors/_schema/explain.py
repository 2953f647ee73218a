"""Explains in words why a JSON value does not fit a JSON Schema, for a model or a person who has to correct it.

The validator's own messages quote whole values and never say what an alternative expected. These name the path, what
is expected and what was found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["Problem", "explain", "json_type", "path_text"]

# Characters of a quoted value and entries of a list: more does not help to correct a call.
MAX_QUOTED = 80
MAX_LISTED = 20

_PLAIN_NAME = r"[A-Za-z_][A-Za-z0-9_-]*\Z"


class SchemaError(Protocol):
    """One error of the validator, which is loaded late: see ``validate.py``."""

    @property
    def kind(self) -> Any: ...
    @property
    def instance(self) -> Any: ...
    @property
    def instance_path(self) -> Sequence[str | int]: ...


class Problem(NamedTuple):
    """One thing that is wrong: ``path`` is where (``"city.names[0]"``, empty for the whole value), ``text`` is what."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def path_text(steps: Iterable[str | int], start: str = "") -> str:
    """Writes a path as in a program: ``rooms[0].name``, ``prices["big one"]``. ``start`` goes before it."""
    text = start
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.match(_PLAIN_NAME, step):
            text += f".{step}" if text else step
        else:
            text += f"[{_quoted(step)}]"
    return text


def json_type(value: Any) -> str:
    """Returns the JSON name of the type of a Python value: ``"integer"``, ``"null"``, ``"object"``…"""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (dict, "object"),
    ((list, tuple), "array"),
)


def explain(errors: Iterable[SchemaError], start: str = "") -> Iterator[Problem]:
    """Turns the validator's errors into problems, one for each offending value."""
    for error in errors:
        kind = error.kind
        here = path_text(error.instance_path, start)
        if kind.name in ("anyOf", "oneOf") and hasattr(kind, "context"):
            yield from _explain_alternatives(error, kind.context, start)
        elif kind.name == "required":
            yield Problem(path_text([kind.property], here), "is required but missing")
        elif kind.name in ("additionalProperties", "unevaluatedProperties"):
            for name in kind.unexpected[:MAX_LISTED]:
                yield Problem(path_text([name], here), "is not known here")
        else:
            word = _EXPLANATIONS.get(kind.name)
            yield Problem(here, word(error, kind) if word else f"breaks the rule {kind.name!r} of the schema")


def _explain_alternatives(
    error: SchemaError,
    context: Sequence[Sequence[SchemaError]],
    start: str,
) -> Iterator[Problem]:
    """Explains only the alternatives that the value was probably meant for, which are those of its own type."""
    here = path_text(error.instance_path, start)
    if not any(context):
        yield Problem(here, "fits more than one alternative where exactly one is allowed")
        return
    wanted: list[str] = []
    meant: list[Sequence[SchemaError]] = []
    for branch in context:
        mismatch = next((e for e in branch if _is_about(e, error) and e.kind.name == "type"), None)
        if mismatch is None:
            meant.append(branch)
        else:
            wanted += mismatch.kind.types
    if len(meant) == 1:
        yield from explain(meant[0], start)
    elif not meant:
        names = " or ".join(dict.fromkeys(wanted))
        yield Problem(here, f"expected {names}, got {json_type(error.instance)}")
    else:
        firsts = [
            next(explain(branch, start), Problem(here, "does not fit")) for branch in meant[:MAX_LISTED]
        ]
        reasons = list(dict.fromkeys(firsts))
        if len(reasons) == 1:
            yield reasons[0]
        else:
            yield Problem(here, f"fits none of the alternatives: {' / '.join(map(str, reasons))}")


def _is_about(inner: SchemaError, outer: SchemaError) -> bool:
    return len(inner.instance_path) == len(outer.instance_path)


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"


def _listed(values: Sequence[Any]) -> str:
    text = ", ".join(_quoted(value) for value in values[:MAX_LISTED])
    return text if len(values) <= MAX_LISTED else f"{text} and {len(values) - MAX_LISTED} more"


def _wrong_type(error: SchemaError, kind: Any) -> str:
    return f"expected {' or '.join(kind.types)}, got {json_type(error.instance)}"


def _bound(words: str) -> Callable[[SchemaError, Any], str]:
    return lambda error, kind: f"must be {words} {_quoted(kind.limit)}, got {_quoted(error.instance)}"


def _count(words: str, unit: str) -> Callable[[SchemaError, Any], str]:
    def explanation(error: SchemaError, kind: Any) -> str:
        value = error.instance
        came = f", has {len(value)}" if isinstance(value, (str, list, dict)) else ""
        return f"must have {words} {kind.limit} {unit}{came}"

    return explanation


_EXPLANATIONS: dict[str, Callable[[SchemaError, Any], str]] = {
    "type": _wrong_type,
    "enum": lambda error, kind: f"must be one of {_listed(kind.options)}, got {_quoted(error.instance)}",
    "const": lambda error, kind: f"must be {_quoted(kind.expected_value)}, got {_quoted(error.instance)}",
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("greater than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": lambda error, kind: (
        f"must be a multiple of {kind.multiple_of}, got {_quoted(error.instance)}"
    ),
    "minLength": _count("at least", "characters"),
    "maxLength": _count("at most", "characters"),
    "minItems": _count("at least", "items"),
    "maxItems": _count("at most", "items"),
    "additionalItems": _count("at most", "items"),
    "minProperties": _count("at least", "members"),
    "maxProperties": _count("at most", "members"),
    "pattern": lambda error, kind: (
        f"must match the pattern {_quoted(kind.pattern)}, got {_quoted(error.instance)}"
    ),
    "format": lambda error, kind: f"must be a valid {kind.format}, got {_quoted(error.instance)}",
    "uniqueItems": lambda error, kind: "has items that repeat",
    "contains": lambda error, kind: "lacks an item of the kind that must be among them",
    "falseSchema": lambda error, kind: "is not allowed here",
    "not": lambda error, kind: f"is one of the values that are ruled out: {_quoted(error.instance)}",
    "propertyNames": lambda error, kind: f"has a member name that is wrong: {next(explain([kind.error]))}",
    "unevaluatedItems": lambda error, kind: "has more items than are allowed",
}
