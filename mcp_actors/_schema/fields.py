"""Reads the fields of dataclasses, attrs classes, msgspec structs, named tuples and typed dicts."""

from __future__ import annotations

import importlib
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import attrs
import msgspec

__all__ = ["NO_DEFAULT", "TypeField", "components", "read_fields", "read_hints", "record_kind", "strip"]

Kind = Literal["struct", "typeddict", "namedtuple", "dataclass", "attrs"]


class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()
"""The default of a field that has none."""

_ALIAS_TYPE: Any = getattr(typing, "TypeAliasType", ())
_QUALIFIERS = (typing.Required, typing.NotRequired, typing.Final, getattr(typing, "ReadOnly", typing.Final))


class TypeField(msgspec.Struct, frozen=True):
    """One field of a class.

    ``wire`` is its name in JSON and ``argument`` its name in the constructor. ``init`` is false for a field that the
    class computes itself: it is encoded and never decoded. ``shown`` is false for a field that is not always encoded.
    ``default`` is `NO_DEFAULT` without one, and where a factory makes it.
    """

    wire: str
    hint: Any
    required: bool
    argument: str
    default: Any = NO_DEFAULT
    init: bool = True
    shown: bool = True


def record_kind(tp: Any) -> Kind | None:
    """Returns the way in which the class (or generic alias) ``tp`` declares fields, ``None`` if it has none."""
    cls = typing.get_origin(tp) or tp
    if not isinstance(cls, type):
        return None
    if issubclass(cls, msgspec.Struct):
        return "struct"
    if typing.is_typeddict(cls):
        return "typeddict"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "namedtuple"
    if hasattr(cls, "__dataclass_fields__"):
        return "dataclass"
    return "attrs" if attrs.has(cls) else None


def read_fields(tp: Any) -> tuple[TypeField, ...]:
    """Returns the fields of a class that has a `record_kind`, in the order of their declaration.

    Raises `TypeError` for annotations that cannot be resolved and for what cannot be made from fields alone.
    """
    kind = record_kind(tp)
    cls: Any = typing.get_origin(tp) or tp
    hints = {name: _substituted(hint, _arguments(tp)) for name, hint in read_hints(cls).items()}
    assert kind is not None
    return tuple(_READERS[kind](cls, hints))


def _struct(cls: Any, hints: dict[str, Any]) -> Iterator[TypeField]:
    omitted = cls.__struct_config__.omit_defaults
    for field in msgspec.structs.fields(cls):
        default = NO_DEFAULT if field.default in (msgspec.NODEFAULT, msgspec.UNSET) else field.default
        shown = field.required or not (omitted or field.default is msgspec.UNSET)
        yield TypeField(
            field.encode_name, hints[field.name], field.required, field.name, default, True, shown
        )


def _typeddict(cls: Any, hints: dict[str, Any]) -> Iterator[TypeField]:
    for name, hint in hints.items():
        required = name in cls.__required_keys__
        yield TypeField(name, hint, required, name, shown=required)


def _namedtuple(cls: Any, hints: dict[str, Any]) -> Iterator[TypeField]:
    for name in cls._fields:
        default = cls._field_defaults.get(name, NO_DEFAULT)
        yield TypeField(name, hints.get(name, Any), default is NO_DEFAULT, name, default)


def _dataclass(cls: Any, hints: dict[str, Any]) -> Iterator[TypeField]:
    # Imported where it is used: whoever has such a class has loaded it.
    dataclasses = importlib.import_module("dataclasses")
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise TypeError(
            f"{cls.__qualname__} has an InitVar, and no field of a JSON object can give its value"
        )
    for field in dataclasses.fields(cls):
        default = NO_DEFAULT if field.default is dataclasses.MISSING else field.default
        required = default is NO_DEFAULT and field.default_factory is dataclasses.MISSING
        yield TypeField(field.name, hints[field.name], required, field.name, default, field.init)


def _attrs(cls: Any, hints: dict[str, Any]) -> Iterator[TypeField]:
    for field in attrs.fields(cls):
        made = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
        default = NO_DEFAULT if made or field.default is attrs.NOTHING else field.default
        # A private field is decoded under its alias and never encoded.
        shown = not field.name.startswith("_")
        hint = hints.get(field.name, Any if field.type is None else field.type)
        yield TypeField(
            field.name if shown else field.alias or field.name,
            hint,
            field.default is attrs.NOTHING,
            field.alias or field.name,
            default,
            field.init,
            shown,
        )


_READERS: dict[Kind, Callable[[Any, dict[str, Any]], Iterator[TypeField]]] = {
    "struct": _struct,
    "typeddict": _typeddict,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "attrs": _attrs,
}


def read_hints(annotated: Any) -> dict[str, Any]:
    """Returns the annotations of a function or class, with those that are strings resolved.

    A name that the module does not have is looked up in the functions that are being executed, innermost first, where
    types are found that were declared inside a function. Raises `TypeError` if it is defined nowhere.
    """
    found: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(annotated, localns=found or None, include_extras=True)
        except NameError as error:
            name = error.name
            if name is None or name in found or not _look_up(name, found):
                where = getattr(annotated, "__qualname__", repr(annotated))
                raise TypeError(
                    f"the annotations of {where} use a name that is not defined: {error.name}; "
                    "import it, also at run time, or define it before"
                ) from None


def _look_up(name: str, found: dict[str, Any]) -> bool:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if name in frame.f_locals and not frame.f_globals.get("__name__", "").startswith("mcp_actors._"):
            found[name] = frame.f_locals[name]
            return True
        frame = frame.f_back
    return False


def strip(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """Removes what does not change the form of the data: aliases, ``NewType``, qualifiers and ``Annotated``.

    Returns the bare type, and the metadata of all ``Annotated`` round it, the innermost first.
    """
    metadata: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(tp)
        if origin is typing.Annotated:
            metadata = tp.__metadata__ + metadata
            tp = tp.__origin__
        elif origin in _QUALIFIERS:
            tp = tp.__args__[0]
        elif hasattr(tp, "__supertype__"):
            tp = tp.__supertype__
        elif _ALIAS_TYPE and isinstance(tp, _ALIAS_TYPE):
            tp = tp.__value__
        elif _ALIAS_TYPE and isinstance(origin, _ALIAS_TYPE):
            tp = origin.__value__[tp.__args__]
        elif isinstance(tp, TypeVar):
            tp = typing.Union[tp.__constraints__] if tp.__constraints__ else tp.__bound__ or Any  # noqa: UP007
        else:
            return (type(None) if tp is None else tp), metadata


def components(tp: Any) -> tuple[Any, ...]:
    """Returns the types that a type, which `strip` returned, directly consists of."""
    if record_kind(tp) is not None:
        return tuple(field.hint for field in read_fields(tp))
    if typing.get_origin(tp) is Literal:
        return ()
    return tuple(each for each in typing.get_args(tp) if each is not ...)


def _arguments(tp: Any) -> dict[Any, Any]:
    """The values of the type variables of ``tp`` and of the generic classes that it inherits from."""
    bound: dict[Any, Any] = {}
    pending = [tp]
    while pending:
        each = pending.pop()
        cls = typing.get_origin(each) or each
        for variable, value in zip(getattr(cls, "__parameters__", ()), typing.get_args(each), strict=False):
            bound[variable] = _substituted(value, bound)
        if isinstance(cls, type):
            pending.extend(cls.__dict__.get("__orig_bases__", cls.__bases__))
    return bound


def _substituted(hint: Any, bound: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    if not bound or not variables or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(variable, variable) for variable in variables)]
