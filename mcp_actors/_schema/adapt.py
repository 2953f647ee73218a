"""Adapts annotations for msgspec: a type that msgspec converts differently, or not at all, gets a converter of ours.

The converters are for unions whose members msgspec cannot tell apart, enums and literals of unusual values, patterns,
types that pydantic validates, and for classes that have fields of such types.
"""

from __future__ import annotations

import collections.abc
import enum
import pathlib
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from mcp_actors._schema.convert import (
    MappingConverter,
    PatternConverter,
    PatternMatcher,
    UnionConverter,
    ValueConverter,
    convert,
    custom_type,
    decode,
    is_custom,
    problems_of,
    record_struct,
)
from mcp_actors._schema.fields import TypeField, components, read_fields, record_kind, strip
from mcp_actors._schema.pydantic_types import (
    ConversionError,
    has_pydantic_metadata,
    is_pydantic_model,
    is_pydantic_type,
    pydantic_type,
)

__all__ = ["adapt"]

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
    return all(_is_native(each, seen) for each in components(bare)) and _compiles(tp)


def _is_plain(field: TypeField) -> bool:
    """Whether msgspec neither asks for what the class does not take nor calls it by another name."""
    return field.init and field.shown and field.wire == field.argument


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
