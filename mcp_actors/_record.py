"""The base of records: comparison, hash and representation that all of its classes share.

attrs would compile them anew for each class, which takes more than half of the time that making a class takes. No
program that starts uses any of them.
"""

from __future__ import annotations

import reprlib
from typing import Any

import attrs

__all__ = ["ValueRecord"]


class ValueRecord:
    """A class of attrs that is made with ``eq=False, repr=False``, since this has them.

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
