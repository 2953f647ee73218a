"""The names on the wire and the constants of a class of the vocabulary, as the hooks need them.

Tables have the classes by their names in `mcp_actors.types`, which loads a class when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import attrs

from mcp_actors import types

__all__ = [
    "MAY_BE_ABSENT",
    "Hook",
    "are_questions",
    "constants_of",
    "is_constant",
    "is_union",
    "is_vocabulary",
    "named",
    "rows_of",
    "wire_name",
]

T = TypeVar("T")

Hook = Callable[..., Any]
"""Takes the value and, as cattrs calls it, optionally the type."""

# Class constants of the vocabulary that stand on the wire, with what a peer may leave out: `resultType` is absent from
# results of older servers and means "complete", an elicitation without `mode` is a form.
_CONSTANTS = ("type", "mode", "result_type")
MAY_BE_ABSENT = {"resultType": "complete", "mode": "form"}


def wire_name(attribute: str) -> str:
    """The name on the wire of an attribute: camelCase, except for ``meta``."""
    if attribute == "meta":
        return "_meta"
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def is_vocabulary(cls: Any) -> bool:
    """Whether it is a class of `mcp_actors.types` or made in their manner: ``extra`` is what tells them."""
    return isinstance(cls, type) and attrs.has(cls) and "extra" in attrs.fields_dict(cls)


def is_union(annotation: Any) -> bool:
    """Whether it is one of several classes of the vocabulary, and no class."""
    return get_origin(annotation) in (Union, UnionType) and all(map(is_vocabulary, get_args(annotation)))


def are_questions(parts: Iterable[Any]) -> bool:
    """Whether the classes of a union are questions of several methods: in JSON ``{method, params}``."""
    methods = {getattr(part, "method", None) for part in parts}
    return len(methods) > 1 and None not in methods


def named(name: str | type) -> Any:
    """The class or the union of that name; what is a class already is returned as it is."""
    return getattr(types, name) if isinstance(name, str) else name


def rows_of(table: Mapping[str, T], cls: type) -> list[T]:
    """The values of a table by names that are for a class, those for the class itself before those for its bases."""
    return [
        table[each.__name__]
        for each in cls.__mro__
        if each.__name__ in table and named(each.__name__) is each
    ]


def constants_of(cls: type, lacked: frozenset[str]) -> dict[str, str]:
    """The constant members of a class, by their names on the wire."""
    return {
        wire_name(name): getattr(cls, name)
        for name in _CONSTANTS
        if is_constant(cls, name) and name not in lacked
    }


def is_constant(cls: type, name: str) -> bool:
    """Whether ``name`` is a class constant, as the discriminators are, and no field of its objects."""
    return isinstance(getattr(cls, name, None), str) and name not in attrs.fields_dict(cls)
