"""Converts JSON values to Python types and back, strictly, by what is compiled once for each type.

msgspec does nearly all of it. Where it cannot, a converter of this module does: `custom_type` makes a class that
represents the converter in an annotation. msgspec does not know the class and hands its values to `decode`, which asks
the converter. `adapt` decides which types need one.
"""

from __future__ import annotations

import collections.abc
import enum
import pathlib
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from mcp_actors._schema.fields import NO_DEFAULT, TypeField, components, read_fields, record_kind, strip
from mcp_actors._schema.validate import Problem, compile_schema, json_type, path_text

__all__ = [
    "ConversionError",
    "Converter",
    "MappingConverter",
    "PatternConverter",
    "PatternMatcher",
    "PydanticType",
    "UnionConverter",
    "ValueConverter",
    "adapt",
    "conversion_to",
    "convert",
    "custom_type",
    "decode",
    "dump",
    "has_pydantic_metadata",
    "is_custom",
    "is_pydantic_model",
    "is_pydantic_type",
    "problems_of",
    "pydantic_type",
    "record_struct",
    "to_json_value",
    "whole_numbers",
]


# -- Types that pydantic validates: its models and dataclasses, and annotations with its constraints ---
#
# Pydantic is never imported here: a program that uses its types has imported it.

_PYDANTIC_ATTRIBUTES = ("__pydantic_core_schema__", "__pydantic_validator__", "__get_pydantic_core_schema__")
_PYDANTIC_PACKAGES = ("pydantic", "annotated_types")

_encode_for_pydantic = msgspec.json.Encoder().encode


class ConversionError(ValueError):
    """A value does not fit a type. The paths of ``problems`` are relative to that value."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def is_pydantic_type(tp: Any) -> bool:
    """Whether pydantic validates ``tp`` by what the class itself defines."""
    return isinstance(tp, type) and any(hasattr(tp, name) for name in _PYDANTIC_ATTRIBUTES)


def is_pydantic_model(tp: Any) -> bool:
    """Whether ``tp`` is a pydantic model. msgspec passes those to its hooks without any help."""
    return isinstance(tp, type) and hasattr(tp, "model_fields") and hasattr(tp, "__pydantic_validator__")


def has_pydantic_metadata(metadata: tuple[Any, ...]) -> bool:
    """Whether a part of the metadata of an ``Annotated`` is meant for pydantic."""
    return any(
        type(each).__module__.partition(".")[0] in _PYDANTIC_PACKAGES
        or hasattr(each, "__get_pydantic_core_schema__")
        for each in metadata
    )


class PydanticType:
    """A type compiled by pydantic. Raises `TypeError` for a type that pydantic refuses, or if it is not imported."""

    def __init__(self, tp: Any) -> None:
        pydantic = sys.modules.get("pydantic")
        if pydantic is None:
            raise TypeError(
                f"{tp!r} carries constraints for pydantic, which is not imported; use Meta instead"
            )
        try:
            self._adapter: Any = pydantic.TypeAdapter(tp)
        except Exception as error:  # pydantic's own errors, which cannot be named without importing it
            raise TypeError(f"pydantic cannot use {tp!r}: {error}") from error

    def convert(self, value: Any) -> Any:
        """Validates a JSON value strictly: no string becomes a number, but dates are read from strings.

        Raises `ConversionError` for a value that does not fit.
        """
        try:
            return self._adapter.validate_json(_encode_for_pydantic(value), strict=True)
        except ValueError as error:
            if not hasattr(error, "errors"):
                raise
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise ConversionError(
                [Problem(path_text(each["loc"]), _uncapitalized(each["msg"])) for each in found]
            ) from None

    def encode(self, value: Any) -> Any:
        """Returns the JSON value of an instance."""
        return self._adapter.dump_python(value, mode="json", by_alias=True)

    def schema(self, *, output: bool, definitions: str) -> dict[str, Any]:
        """Returns its JSON Schema. ``definitions`` is put before each name in ``$defs`` and in the references to it."""
        schema: dict[str, Any] = self._adapter.json_schema(
            mode="serialization" if output else "validation", ref_template=f"#/$defs/{definitions}{{model}}"
        )
        if definitions and "$defs" in schema:
            schema["$defs"] = {definitions + name: each for name, each in schema["$defs"].items()}
        return schema


@lru_cache(maxsize=1024)
def pydantic_type(tp: Any) -> PydanticType:
    """Returns the compiled form of ``tp``, the same object for the same type."""
    return PydanticType(tp)


def dump(value: Any) -> Any:
    """Returns the JSON value of an instance of a pydantic class, made by the serializer of that class."""
    return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]


# -- Converters ---


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
    """Makes a class that represents a converter in annotations; it may be given its converter later."""
    return _CustomTypeMeta("Custom", (_CustomType,), {} if converter is None else {"converter": converter})


def is_custom(tp: Any) -> bool:
    """Whether an adapted type represents a converter."""
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
        """Raises `ConversionError` for other values and for a wrong length, `ValueError` for the patterns."""
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
            raise ValueError("is not one of the values that are allowed") from None


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


# -- Annotations as msgspec gets them: a type that it converts differently, or not at all, gets a converter of ours ---
#
# The converters are for unions whose members msgspec cannot tell apart, enums and literals of unusual values,
# patterns, types that pydantic validates, and for classes that have fields of such types.

_NATIVE_ORIGINS = frozenset(
    {
        *(list, tuple, set, frozenset, dict, Literal, typing.Union, types.UnionType),
        *(collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection),
        *(collections.abc.Set, collections.abc.MutableSet),
        *(collections.abc.Mapping, collections.abc.MutableMapping),
    }
)


_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def adapt(tp: Any, known: dict[Any, Any] | None = None) -> Any:
    """Returns the type that msgspec can compile for ``tp``: itself, or one with custom types in it.

    Args:
        known: the custom types of classes that are being adapted, as these may refer to themselves.

    Raises:
        TypeError: for a type that has no form in JSON, that is too vague to be converted to, that its constraints do
            not fit, and for a pattern that cannot be matched in linear time.
    """
    known = {} if known is None else known
    bare, metadata = strip(tp)
    if has_pydantic_metadata(metadata) or (is_pydantic_type(bare) and not is_pydantic_model(bare)):
        return custom_type(pydantic_type(tp if has_pydantic_metadata(metadata) else bare))
    meta = tuple(each for each in metadata if isinstance(each, msgspec.Meta))
    inner = bare if _is_native(bare, set()) else _adapt_bare(bare, known)
    return _limit(inner, bare, meta, known) if meta else inner


def _adapt_bare(tp: Any, known: dict[Any, Any]) -> Any:
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if tp is object:
        return Any
    if origin is Literal:
        return custom_type(ValueConverter({each: each for each in args}))
    if origin in (typing.Union, types.UnionType):
        return _adapt_union(args, known)
    if record_kind(tp) is not None:
        if tp not in known:
            known[tp] = custom_type()
            known[tp].converter = _RecordConverter(tp, known)
        return known[tp]
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return custom_type(ValueConverter({member.value: member for member in origin}))
    if origin is collections.abc.Iterable:
        origin = list
    if origin in _NATIVE_ORIGINS:
        adapted = tuple(each if each is ... else adapt(each, known) for each in args)
        if adapted and origin in _MAPPINGS and is_custom(adapted[0]):
            return custom_type(MappingConverter(*adapted))
        return origin[adapted] if adapted else origin
    name = getattr(tp, "__qualname__", repr(tp))
    raise TypeError(f"{name} has no form in JSON; use a dataclass, a TypedDict or another class with fields")


def _adapt_union(args: tuple[Any, ...], known: dict[Any, Any]) -> Any:
    return _union_of([(adapt(each, known), each) for each in args])


def _union_of(members: list[tuple[Any, Any]]) -> Any:
    """The union of adapted types, each given with the type that it was declared as."""
    union = _union(tuple(adapted for adapted, _ in members))
    if _compiles(union):
        return union
    some = [(adapted, declared) for adapted, declared in members if adapted is not type(None)]
    choice = custom_type(
        UnionConverter(
            [(adapted, _known_names(declared)) for adapted, declared in some],
            [declared for _, declared in some],
        )
    )
    return choice if len(some) == len(members) else choice | None


def _union(members: tuple[Any, ...]) -> Any:
    union: Any = typing.Union
    return union[members]


def _limit(tp: Any, bare: Any, meta: tuple[msgspec.Meta, ...], known: dict[Any, Any]) -> Any:
    """Puts constraints on ``tp``, which ``bare`` was adapted to; in a union on each member that they fit."""
    patterns = [PatternMatcher(each.pattern) for each in meta if each.pattern is not None]
    limited: Any = Annotated[(tp, *meta)]
    if not patterns and _compiles(limited):
        return limited
    if bare is str and _compiles(limited):
        return custom_type(PatternConverter(_without_patterns(meta), patterns))
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        members = [(_limit_member(each, meta, known), each) for each in typing.get_args(bare)]
        if any(adapted is not None for adapted, _ in members):
            return _union_of(
                [(adapt(each, known) if adapted is None else adapted, each) for adapted, each in members]
            )
    constraints = ", ".join(repr(each) for each in meta)
    raise TypeError(f"{tp!r} cannot be limited by {constraints}")


def _limit_member(tp: Any, meta: tuple[msgspec.Meta, ...], known: dict[Any, Any]) -> Any:
    """The adapted member of a union, or ``None`` if the constraints do not fit it."""
    try:
        return adapt(Annotated[(tp, *meta)], known)
    except TypeError:
        return None


def _without_patterns(meta: tuple[msgspec.Meta, ...]) -> Any:
    """``str`` with the lengths that the constraints allow, as far as msgspec checks them."""
    lengths = [
        msgspec.Meta(min_length=each.min_length, max_length=each.max_length)
        for each in meta
        if each.min_length is not None or each.max_length is not None
    ]
    return Annotated[(str, *lengths)] if lengths else str


def _is_native(tp: Any, seen: set[Any]) -> bool:
    """Whether msgspec converts to ``tp`` as we want it, all the way down."""
    bare, metadata = strip(tp)
    if has_pydantic_metadata(metadata):
        return False
    if any(isinstance(each, msgspec.Meta) and each.pattern is not None for each in metadata):
        return False  # msgspec would match it with an engine that backtracks
    if is_pydantic_type(bare):
        return is_pydantic_model(bare)
    try:
        if bare in seen:
            return True
        seen.add(bare)
    except TypeError:
        return False
    if bare is Any or (isinstance(bare, type) and issubclass(bare, pathlib.PurePath)):
        return True
    origin = typing.get_origin(bare) or bare
    kind = record_kind(bare)
    if kind is None and origin not in _NATIVE_ORIGINS and not _is_atom(origin):
        return False
    if kind in ("dataclass", "attrs") and not all(map(_is_plain, read_fields(bare))):
        return False
    if kind == "dataclass" and _leaves_out_defaults(origin):
        return False
    return all(_is_native(each, seen) for each in components(bare)) and _compiles(tp)


def _is_plain(field: TypeField) -> bool:
    """Whether msgspec neither asks for what the class does not take nor calls it by another name."""
    return field.init and field.shown and field.wire == field.argument


def _leaves_out_defaults(cls: Any) -> bool:
    """Whether msgspec makes instances of a dataclass without a default, which it finds in the class, and so encodes
    them without it too."""
    return cls.__dataclass_params__.init and any(
        field.default is not NO_DEFAULT and getattr(cls, field.argument, NO_DEFAULT) is field.default
        for field in read_fields(cls)
    )


def _is_atom(tp: Any) -> bool:
    """Whether it is a class that msgspec knows by heart: any other that it lets pass, it takes for a custom one."""
    if not isinstance(tp, type):
        return False
    return issubclass(tp, enum.Enum) or not isinstance(
        msgspec.inspect.type_info(tp), msgspec.inspect.CustomType
    )


def _compiles(tp: Any) -> bool:
    try:
        msgspec.json.Decoder(tp, dec_hook=decode)
    except (TypeError, ValueError, NameError, AttributeError, RecursionError):
        return False
    return True


def _known_names(tp: Any) -> frozenset[str]:
    bare, _ = strip(tp)
    if record_kind(bare) is not None and not is_pydantic_type(bare):
        return frozenset(field.wire for field in read_fields(bare))
    if is_pydantic_model(bare):
        return frozenset(field.alias or name for name, field in bare.model_fields.items())
    return frozenset()


class _RecordConverter:
    """A class whose fields need converters; it is made by calling it."""

    def __init__(self, tp: Any, known: dict[Any, Any]) -> None:
        self._make: Callable[..., Any] = typing.get_origin(tp) or tp
        kind = record_kind(tp)
        config: Any = typing.cast(Any, self._make).__struct_config__ if kind == "struct" else None
        self._struct = record_struct(
            [(field, adapt(field.hint, known)) for field in read_fields(tp) if field.init],
            array_like=kind == "namedtuple",
            closed=config is not None and config.forbid_unknown_fields,
            tag=None if config is None else config.tag,
            tag_field=None if config is None else config.tag_field,
        )

    def convert(self, value: Any) -> Any:
        """Raises `ConversionError` for a value that does not fit."""
        try:
            found = convert(value, self._struct)
        except msgspec.ValidationError as error:
            raise ConversionError(problems_of(error)) from None
        return self._make(
            **{k: v for k, v in msgspec.structs.asdict(found).items() if v is not msgspec.UNSET}
        )
