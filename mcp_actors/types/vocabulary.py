"""The base of the vocabulary: comparison and representation that all of its classes share.

attrs would compile both anew for each class, which takes half of the time that making a class takes. No program that
starts uses either.
"""

from __future__ import annotations

import reprlib
from typing import Any

import attrs

__all__ = ["Vocabulary"]


class Vocabulary:
    """An object of the protocol. It equals another one of the same class whose attributes are all equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(
            getattr(self, field.name) == getattr(other, field.name) for field in _fields_of(self) if field.eq
        )

    # The attributes may change.
    __hash__ = None  # type: ignore[assignment]

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
