"""Converts JSON values to Python types and back, strictly, by what is compiled once for each type.

msgspec does nearly all of it. Where it cannot, a converter of this module does: `custom_type` makes a class that stands
for the converter in an annotation. msgspec does not know the class and hands its values to `decode`, which asks the
converter. Which types need one is decided in ``adapt.py``.
"""

from __future__ import annotations

import collections.abc
import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Protocol

import msgspec

from mcp_actors._schema.explain import Problem, json_type
from mcp_actors._schema.fields import TypeField
from mcp_actors._schema.pydantic_types import ConversionError, dump, pydantic_type
from mcp_actors._schema.validate import compile_schema

__all__ = [
    "Converter",
    "MappingConverter",
    "PatternConverter",
    "PatternMatcher",
    "UnionConverter",
    "ValueConverter",
    "conversion_to",
    "convert",
    "custom_type",
    "decode",
    "is_custom",
    "problems_of",
    "record_struct",
    "to_json_value",
    "whole_numbers",
]


class Converter(Protocol):
    """Makes the Python value of a JSON value.

    Raises `ValueError` for a value that does not fit; `ConversionError` if several things are wrong with it.
    """

    def convert(self, value: Any) -> Any: ...


class _CustomTypeMeta(type):
    """Accepts every object as an instance: msgspec checks what its hook returned against the annotation, and the
    converter has checked it already."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class _CustomType(metaclass=_CustomTypeMeta):
    converter: ClassVar[Converter]


def custom_type(converter: Converter | None = None) -> Any:
    """Makes a class that stands for a converter in annotations; it may be given its converter later."""
    return _CustomTypeMeta("Custom", (_CustomType,), {} if converter is None else {"converter": converter})


def is_custom(tp: Any) -> bool:
    """Whether an adapted type stands for a converter."""
    return isinstance(tp, _CustomTypeMeta)


def decode(tp: Any, value: Any) -> Any:
    """Makes the values of types that msgspec does not know: paths, custom types, pydantic models."""
    if issubclass(tp, _CustomType):
        return tp.converter.convert(value)
    if issubclass(tp, pathlib.PurePath):
        if not isinstance(value, str):
            raise ValueError(f"expected string, got {json_type(value)}")
        return tp(value)
    return pydantic_type(tp).convert(value)


def convert(value: Any, tp: Any) -> Any:
    """Makes a value of an adapted type; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, tp, strict=True, str_keys=True, dec_hook=decode)


def conversion_to(members: Iterable[Any]) -> Callable[[Any, Any], Any]:
    """Returns `convert`, or `msgspec.convert` for a record of JSON scalars only, where it does the same.

    Passing the options and the hook costs msgspec more than the conversion of a small record.
    """
    return msgspec.convert if all(map(_is_scalar, members)) else convert


def _is_scalar(tp: Any) -> bool:
    if typing.get_origin(tp) is Annotated:
        return _is_scalar(typing.get_args(tp)[0])
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        return all(map(_is_scalar, typing.get_args(tp)))
    return tp in (str, int, float, bool, type(None))


def to_json_value(value: Any) -> Any:
    """Returns the JSON value of a Python value; raises `TypeError` for one that has none."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
    except RecursionError:
        raise TypeError(f"{type(value).__name__} holds itself or is nested too deep for JSON") from None


def _encode(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if hasattr(type(value), "__pydantic_serializer__"):
        return dump(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if isinstance(value, (collections.abc.Sequence, collections.abc.Set, collections.deque)):
        return list(value)
    raise TypeError(
        f"{type(value).__qualname__} has no form in JSON; return a dataclass, a dict or another type that has one"
    )


def whole_numbers(value: Any) -> Any:
    """Returns a JSON value in which ``1.0`` is ``1``: for JSON Schema they are one number, and peers write both."""
    kind = value.__class__
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return {name: whole_numbers(each) for name, each in value.items()}
    if kind is list:
        return [whole_numbers(each) for each in value]
    return value


class PatternMatcher:
    """A pattern in the engine whose time is linear in the length of the string.

    msgspec would match it with Python's, which may need exponential time for a string that a peer made up.

    Raises `TypeError` for a pattern that is malformed, too big, or needs backtracking.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self.matches = compile_schema({"pattern": pattern}).is_valid
        except ValueError as error:
            raise TypeError(str(error)) from None


class PatternConverter:
    """A string that must match patterns; ``inner`` is the type without them."""

    def __init__(self, inner: Any, patterns: Sequence[PatternMatcher]) -> None:
        self._inner = inner
        self._patterns = patterns

    def convert(self, value: Any) -> str:
        """Raises `ConversionError` for what is no string or of the wrong length, `ValueError` for the patterns."""
        if self._inner is not str or value.__class__ is not str:
            try:
                value = convert(value, self._inner)
            except msgspec.ValidationError as error:
                raise ConversionError(problems_of(error)) from None
        for each in self._patterns:
            if not each.matches(value):
                raise ValueError(f'must match the pattern "{each.pattern}"')
        return typing.cast(str, value)


class MappingConverter:
    """A dict whose keys need a converter, which msgspec never asks for those."""

    def __init__(self, key: Any, value: Any) -> None:
        self._key = key
        self._values = dict[str, value]

    def convert(self, value: Any) -> dict[Any, Any]:
        """Raises `ConversionError` for an object with a wrong name or value."""
        try:
            made = convert(value, self._values)
            return {convert(name, self._key): each for name, each in made.items()}
        except msgspec.ValidationError as error:
            raise ConversionError(problems_of(error)) from None


class UnionConverter:
    """A union whose members msgspec cannot tell apart.

    The value is made by the first member that it fits; an object by the member that knows most of its members.
    ``members`` has each adapted type with the names that it knows, ``declared`` says what they are called.
    """

    def __init__(self, members: Sequence[tuple[Any, frozenset[str]]], declared: Sequence[Any]) -> None:
        self._members = members
        self._names = " or ".join(getattr(tp, "__name__", repr(tp)) for tp in declared)

    def convert(self, value: Any) -> Any:
        """Raises `ValueError` for a value that fits no member."""
        best, most = None, -1
        for member, names in self._members:
            try:
                made = convert(value, member)
            except msgspec.ValidationError:
                continue
            score = len(names.intersection(value)) if isinstance(value, dict) else 0
            if score > most:
                best, most = made, score
        if most < 0:
            raise ValueError(f"fits none of the alternatives {self._names}")
        return best


class ValueConverter:
    """One of some values. Equal values of different types are different: ``1`` is neither ``1.0`` nor ``True``."""

    def __init__(self, by_value: dict[Any, Any]) -> None:
        self._by_value = {(type(value), value): made for value, made in by_value.items()}

    def convert(self, value: Any) -> Any:
        """Raises `ValueError` for any other value."""
        try:
            return self._by_value[type(value), value]
        except (KeyError, TypeError):
            raise ValueError("is none of the values that are allowed") from None


def record_struct(
    fields: Sequence[tuple[TypeField, Any]],
    *,
    array_like: bool = False,
    closed: bool = False,
    tag: str | int | None = None,
    tag_field: str | None = None,
) -> type[msgspec.Struct]:
    """Makes a class for msgspec that holds the fields; those that were not given are ``UNSET``.

    ``closed`` refuses members that are not among the fields; ``tag`` and ``tag_field`` are those of a tagged struct.
    """
    ordered = fields if array_like else sorted(fields, key=lambda each: not each[0].required)
    return msgspec.defstruct(
        "Fields",
        [
            (field.argument, tp) if field.required else (field.argument, tp, msgspec.UNSET)
            for field, tp in ordered
        ],
        rename={field.argument: field.wire for field, _ in fields},
        array_like=array_like,
        forbid_unknown_fields=closed,
        tag=tag,
        tag_field=tag_field,
    )


_PLACE = r"(?s) - at (?:`key` in )?`\$?(.*)`\Z"
_QUOTED = re.compile(r"`([^`]*)`")
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def problems_of(error: msgspec.ValidationError) -> list[Problem]:
    """Returns the first thing that msgspec found wrong, or all that a converter within it found."""
    text = str(error)
    place = re.search(_PLACE, text)
    path = place[1].removeprefix(".") if place else ""
    if isinstance(error.__cause__, ConversionError):
        return [Problem(_joined(path, each.path), each.text) for each in error.__cause__.problems]
    text = text[: place.start()] if place else text
    text = _QUOTED.sub(
        lambda found: " or ".join(_JSON_NAMES.get(each, each) for each in found[1].split(" | ")), text
    )
    return [Problem(path, text[:1].lower() + text[1:])]


def _joined(outer: str, inner: str) -> str:
    return outer + inner if not outer or not inner or inner.startswith("[") else f"{outer}.{inner}"
