"""The bases of the vocabulary: records, the marker of an absent member, and what results that may be cached share.

All records share their comparison, hash and representation. attrs would compile these anew for each class, which takes
more than half of the time that making a class takes, and no program that starts uses any of them. The constructor
takes most of the rest: `record` and `frozen_record` have attrs compile it for the first object of a class.
"""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import attrs
from attrs import define as record
from attrs import frozen as frozen_record
from msgspec import Meta

__all__ = [
    "UNSET",
    "CacheScope",
    "Number",
    "Unset",
    "ValueRecord",
    "Vocabulary",
    "frozen_record",
    "not_negative",
    "record",
]


class ValueRecord:
    """The base of records, which are made with ``eq=False, repr=False``, because these methods are here.

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


# -- classes that attrs completes when they are first used ---------------------------------------------------------

C = TypeVar("C", bound=type)

# What attrs adds to a class, and what may be asked for before there is an object: by `attrs.fields`, by patterns, and
# where an object is made of its pickled state.
_ADDED = ("__init__", "__attrs_attrs__", "__getstate__", "__setstate__", "__match_args__")


class _Declaration:
    """The fields and options of a class, until attrs completes it."""

    __slots__ = ("cls", "fields", "frozen", "options")

    def __init__(self, fields: dict[str, Any], options: dict[str, Any], *, frozen: bool) -> None:
        self.fields = fields
        self.options = options
        self.frozen = frozen
        self.cls: type = object

    def complete(self) -> None:
        """Has attrs add what is missing, in place. Two threads at the same time add the same twice, which is harmless.

        For that, nothing is taken away first, and attrs is told not to look at what is there.
        """
        attrs.define(
            self.cls,
            these={name: _as_field(value) for name, value in self.fields.items()},
            init=True,
            slots=False,
            getstate_setstate=True,
            match_args=False,
            auto_detect=False,
            on_setattr=attrs.setters.frozen if self.frozen else None,
            **self.options,
        )
        matched = [field.name for field in attrs.fields(self.cls) if field.init and not field.kw_only]
        added: dict[str, Any] = {"__match_args__": tuple(matched)}
        if self.frozen:
            added |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
        for name, value in added.items():
            setattr(self.cls, name, value)


class _Added:
    """Stands for something that attrs adds, and has the class completed when it is asked for."""

    __slots__ = ("declaration", "name")

    def __init__(self, declaration: _Declaration, name: str) -> None:
        self.declaration = declaration
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self.declaration.complete()
        return getattr(owner if instance is None else instance, self.name)


def _as_field(value: Any) -> Any:
    return value if isinstance(value, _FIELD) else attrs.field(default=value)


_FIELD: type = type(attrs.field())


def _refuse_change(instance: object, name: str, value: object = None) -> None:
    raise attrs.exceptions.FrozenInstanceError


def _declared(cls: C, options: dict[str, Any], *, frozen: bool) -> C:
    """Returns the class with slots for its fields, as attrs makes it, and with the rest to be added later."""
    body = dict(cls.__dict__)
    names = [name for name, hint in body["__annotations__"].items() if not hint.startswith("ClassVar")]
    declaration = _Declaration(
        {name: body.pop(name, attrs.NOTHING) for name in names}, options, frozen=frozen
    )
    body.pop("__dict__", None)
    # Objects can be referred to weakly, as those of attrs can.
    slots = names if body.pop("__weakref__", None) is None else [*names, "__weakref__"]
    body["__slots__"] = tuple(slots)
    for name in _ADDED:
        body[name] = _Added(declaration, name)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    declaration.cls = made
    return made


def _record(**options: Any) -> Callable[[C], C]:
    """Decorator: `attrs.define`, with what attrs compiles for a class left until the class is first used.

    Most classes of a program are never used, and nearly none before the first answer of a server. The class is a
    `ValueRecord`, its annotations are text, and its methods do without ``super()``, as the class is made anew.
    """
    return lambda cls: _declared(cls, options, frozen=False)


def _frozen_record(**options: Any) -> Callable[[C], C]:
    """Decorator: `attrs.frozen`, as `record` is `attrs.define`."""
    return lambda cls: _declared(cls, options, frozen=True)


# Type checkers know the decorators of attrs by their names, and take these for them.
globals().update(record=_record, frozen_record=_frozen_record)

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
