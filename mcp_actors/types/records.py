"""The bases of the vocabulary: records, the marker of an absent member, and what results that may be cached share.

All records share their comparison, hash and representation. attrs would compile these anew for each class, which takes
more than half of the time that making a class takes, and no program that starts uses any of them.
"""

from __future__ import annotations

import enum
import reprlib
from typing import Annotated, Any, Final, Literal

import attrs
from msgspec import Meta

__all__ = ["UNSET", "CacheScope", "Number", "Unset", "ValueRecord", "Vocabulary", "not_negative"]


class ValueRecord:
    """The base of attrs classes that are made with ``eq=False, repr=False``, because these methods are here.

    A record equals another one of the same class whose attributes are all equal. One whose attributes may change says
    ``__hash__ = None``.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(
            getattr(self, field.name) == getattr(other, field.name) for field in _fields_of(self) if field.eq
        )

    def __hash__(self) -> int:
        return hash((self.__class__, *(getattr(self, field.name) for field in _fields_of(self) if field.eq)))

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        shown = []
        for field in _fields_of(self):
            if field.repr:
                show = repr if field.repr is True else field.repr
                shown.append(f"{field.name}={show(getattr(self, field.name))}")
        return f"{type(self).__qualname__.rpartition('>.')[2]}({', '.join(shown)})"


def _fields_of(value: object) -> tuple[attrs.Attribute[Any], ...]:
    cls: Any = type(value)
    fields: tuple[attrs.Attribute[Any], ...] = cls.__attrs_attrs__
    return fields


_MOST = 2**63 - 1
Number = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
"""A count in a record that also travels to other processes: a larger one breaks what divides by it or writes it."""


class Unset(enum.Enum):
    """The type of `UNSET`. It is an enum, so that type checkers narrow ``value is UNSET``."""

    UNSET = "UNSET"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Marks an absent member. It is the default of members for which JSON ``null`` is a legal value."""


class Vocabulary(ValueRecord):
    """An object of the protocol. Its attributes may change, so it has no hash."""

    __slots__ = ()

    __hash__ = None  # type: ignore[assignment]


CacheScope = Literal["public", "private"]
"""Who may share a result that a client keeps (MCP 2026-07-28, Caching)."""


def not_negative(instance: object, field: Any, value: int | None) -> None:
    """Validates ``ttl_ms`` of a result that a program makes; what a peer sends is read as 0 if it is less.

    Raises:
        ValueError: The value is negative.
    """
    if value is not None and value < 0:
        raise ValueError(f"{field.name}={value!r}: write a number of milliseconds, or 0 to promise nothing")
