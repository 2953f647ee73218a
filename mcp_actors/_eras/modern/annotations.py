"""Reads the ``x-mcp-header`` annotations of an input schema: the parameters that are also sent in headers (SEP-2243).

An annotation is allowed only at a string, an integer or a boolean that is reached from the root by ``properties``
alone. A tool with an annotation elsewhere, or with a malformed one, is invalid as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["ANNOTATION", "PARAM_PREFIX", "MirroredParam", "annotated_params"]

ANNOTATION = "x-mcp-header"
PARAM_PREFIX = "mcp-param-"

# The characters of a header name, RFC 9110 section 5.6.2.
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TYPES = ("string", "integer", "boolean")
# Levels of nesting: as many as the codec accepts in a message.
MAX_DEPTH = 128

# The keywords whose values are schemas, beside `properties`. The values of others (`default`, `enum`, …) are data.
_SCHEMA = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMAS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMAS_BY_NAME = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties")


class MirroredParam(NamedTuple):
    """A parameter that is also sent in a header."""

    header: str
    """The whole name of the header, in lower case."""
    path: tuple[str, ...]
    """The names of the properties that lead to the parameter."""


def annotated_params(input_schema: Mapping[str, Any]) -> tuple[MirroredParam, ...]:
    """Returns the mirrored parameters of a tool, in time linear in the size of its schema.

    Raises `ValueError`, which says what is wrong and where, for an annotation that is not allowed and for more than
    `MAX_DEPTH` levels of nesting.
    """
    found: list[MirroredParam] = []
    headers: set[str] = set()
    # Each entry: the schema, its path in words, and its path by properties, None if that has another step in it.
    todo: list[tuple[Any, tuple[str, ...], tuple[str, ...] | None]] = [(input_schema, (), ())]
    while todo:
        schema, where, path = todo.pop()
        if not isinstance(schema, Mapping):
            continue
        if len(where) > MAX_DEPTH:
            raise ValueError(f"the schema is nested more than {MAX_DEPTH} levels deep")
        if ANNOTATION in schema:
            param = _param(schema, where, path)
            if param.header in headers:
                raise ValueError(
                    f"{_at(where)}: another parameter has the {ANNOTATION} {schema[ANNOTATION]!r} too"
                )
            headers.add(param.header)
            found.append(param)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            for name, each in properties.items():
                todo.append((each, (*where, name), None if path is None else (*path, name)))
        for step, each in _elsewhere(schema):
            todo.append((each, (*where, step), None))
    return tuple(found)


def _elsewhere(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in schema.keys() & _ELSEWHERE:
        value = schema[keyword]
        if isinstance(value, Mapping):
            if keyword in _SCHEMAS_BY_NAME:
                for name, each in value.items():
                    yield f"{keyword}/{name}", each
            elif keyword in _SCHEMA:
                yield keyword, value
        elif isinstance(value, list) and keyword in _SCHEMAS:
            for each in value:
                yield keyword, each


_ELSEWHERE = frozenset({*_SCHEMA, *_SCHEMAS, *_SCHEMAS_BY_NAME})


def _param(schema: Mapping[str, Any], where: tuple[str, ...], path: tuple[str, ...] | None) -> MirroredParam:
    name = schema[ANNOTATION]
    if not path:
        raise ValueError(f"{_at(where)}: {ANNOTATION} may stand only on what `properties` alone lead to")
    if not isinstance(name, str):
        raise ValueError(f"{_at(where)}: {ANNOTATION} must be a string")
    if not name:
        raise ValueError(f"{_at(where)}: {ANNOTATION} is empty")
    if not re.fullmatch(_TOKEN, name):
        raise ValueError(f"{_at(where)}: {ANNOTATION} {name!r} cannot be part of a header's name")
    type = schema.get("type")
    if type not in _TYPES:
        raise ValueError(f"{_at(where)}: {ANNOTATION} needs a type of {', '.join(_TYPES)}, not {type!r}")
    return MirroredParam(PARAM_PREFIX + name.lower(), path)


def _at(where: tuple[str, ...]) -> str:
    return ".".join(where) or "the schema itself"
