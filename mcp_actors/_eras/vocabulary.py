"""The names on the wire and the constants of a class of the vocabulary, as the hooks need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

__all__ = ["MAY_BE_ABSENT", "Hook", "constants_of", "is_constant", "is_vocabulary", "wire_name"]

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
