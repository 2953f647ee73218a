"""Converts JSON values to Python types and back, strictly, by what is compiled once for each type.

msgspec does nearly all of it. What it cannot do, a *form* does: each stands in an annotation as a class of its own,
which msgspec takes for a custom type and hands to `decode`. There are forms for unions whose members msgspec cannot
tell apart, for classes with such fields, for enums and literals of odd values, and for types that pydantic validates.
"""

from __future__ import annotations

import collections.abc
import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from mcp_actors._schema.explain import Problem, json_type
from mcp_actors._schema.fields import TypeField, components, read_fields, record_kind, strip
from mcp_actors._schema.pydantic_types import (
    Misfit,
    dump,
    foreign_type,
    is_foreign,
    is_model,
    says_foreign,
)

__all__ = ["adapt", "conversion_to", "convert", "plain", "problems_of", "record_struct"]

_NATIVE_ORIGINS = frozenset(
    {
        *(list, tuple, set, frozenset, dict, Literal, typing.Union, types.UnionType),
        *(collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection),
        *(collections.abc.Set, collections.abc.MutableSet),
        *(collections.abc.Mapping, collections.abc.MutableMapping),
    }
)


class _Form(Protocol):
    """Makes the Python value of a JSON value; raises `ValueError`, `Misfit` where there is more to say."""

    def convert(self, value: Any) -> Any: ...


class _AnyInstance(type):
    """msgspec checks that a hook returned an instance of the type it was asked for; here the form answers for it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class _StandIn(metaclass=_AnyInstance):
    form: ClassVar[_Form]


def _stand_in(form: _Form | None = None) -> Any:
    return _AnyInstance("StandIn", (_StandIn,), {} if form is None else {"form": form})


def decode(tp: Any, value: Any) -> Any:
    """Makes what msgspec does not know: paths, forms, pydantic models."""
    if issubclass(tp, _StandIn):
        return tp.form.convert(value)
    if issubclass(tp, pathlib.PurePath):
        if not isinstance(value, str):
            raise ValueError(f"expected string, got {json_type(value)}")
        return tp(value)
    return foreign_type(tp).convert(value)


def convert(value: Any, tp: Any) -> Any:
    """Makes a value of an adapted type; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, tp, strict=True, str_keys=True, dec_hook=decode)


def conversion_to(members: Iterable[Any]) -> Callable[[Any, Any], Any]:
    """`convert`, or what does the same sooner for a record whose members are JSON's own scalars: telling msgspec what
    to do with all others takes it longer than the conversion."""
    return msgspec.convert if all(map(_is_scalar, members)) else convert


def _is_scalar(tp: Any) -> bool:
    if typing.get_origin(tp) is Annotated:
        return _is_scalar(typing.get_args(tp)[0])
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        return all(map(_is_scalar, typing.get_args(tp)))
    return tp in (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """The JSON value of a Python value; raises `TypeError` for what has none."""
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


def adapt(tp: Any, known: dict[Any, Any] | None = None) -> Any:
    """The type that msgspec can compile for ``tp``: itself, or one with stand-ins.

    ``known`` holds the stand-ins of classes that are being adapted, as these may refer to themselves. Raises
    `TypeError` for a type that has no form in JSON or is too vague to be converted to.
    """
    known = {} if known is None else known
    bare, said = strip(tp)
    if says_foreign(said) or (is_foreign(bare) and not is_model(bare)):
        return _stand_in(foreign_type(tp if says_foreign(said) else bare))
    meta = tuple(each for each in said if isinstance(each, msgspec.Meta))
    inner = bare if _is_native(bare, set()) else _adapt_bare(bare, known)
    return _limit(inner, meta)


def _adapt_bare(tp: Any, known: dict[Any, Any]) -> Any:
    origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
    if tp is object:
        return Any
    if origin is Literal:
        return _stand_in(_Values({each: each for each in args}))
    if origin in (typing.Union, types.UnionType):
        return _adapt_union(args, known)
    if record_kind(tp) is not None:
        if tp not in known:
            known[tp] = _stand_in()
            known[tp].form = _Record(tp, known)
        return known[tp]
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return _stand_in(_Values({member.value: member for member in origin}))
    if origin is collections.abc.Iterable:
        origin = list
    if origin in _NATIVE_ORIGINS:
        adapted = tuple(each if each is ... else adapt(each, known) for each in args)
        return origin[adapted] if adapted else origin
    name = getattr(tp, "__qualname__", repr(tp))
    raise TypeError(f"{name} has no form in JSON; use a dataclass, a TypedDict or another class with fields")


def _adapt_union(args: tuple[Any, ...], known: dict[Any, Any]) -> Any:
    members = tuple(adapt(each, known) for each in args)
    union = _union(members)
    if _compiles(union):
        return union
    some = tuple(each for each in members if each is not type(None))
    choice = _stand_in(_Choice(some, tuple(each for each in args if each is not type(None))))
    return choice if len(some) == len(members) else choice | None


def _union(members: tuple[Any, ...]) -> Any:
    union: Any = typing.Union
    return union[members]


def _limit(tp: Any, meta: tuple[msgspec.Meta, ...]) -> Any:
    """Puts constraints on a type; in a union on each member that they fit."""
    if not meta:
        return tp
    limited: Any = Annotated[(tp, *meta)]
    if _compiles(limited):
        return limited
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        members = typing.get_args(tp)
        fitting = [Annotated[(each, *meta)] for each in members]
        chosen = [new if _compiles(new) else old for new, old in zip(fitting, members, strict=True)]
        if any(new is not old for new, old in zip(chosen, members, strict=True)):
            return _union(tuple(chosen))
    said = ", ".join(repr(each) for each in meta)
    raise TypeError(f"{tp!r} cannot be limited by {said}")


def _is_native(tp: Any, seen: set[Any]) -> bool:
    """Whether msgspec converts to ``tp`` as we want it, all the way down."""
    bare, said = strip(tp)
    if says_foreign(said):
        return False
    if is_foreign(bare):
        return is_model(bare)
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


class _Choice:
    """A union: the value is made by the first member it fits, an object by the one that knows most of its members."""

    def __init__(self, members: tuple[Any, ...], declared: tuple[Any, ...]) -> None:
        self._members = [(member, _known_names(tp)) for member, tp in zip(members, declared, strict=True)]
        self._names = " or ".join(getattr(tp, "__name__", repr(tp)) for tp in declared)

    def convert(self, value: Any) -> Any:
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


def _known_names(tp: Any) -> frozenset[str]:
    bare, _ = strip(tp)
    if record_kind(bare) is not None and not is_foreign(bare):
        return frozenset(field.wire for field in read_fields(bare))
    if is_model(bare):
        return frozenset(field.alias or name for name, field in bare.model_fields.items())
    return frozenset()


class _Values:
    """One of some values, each told from its equals of another type: ``1`` is neither ``1.0`` nor ``True``."""

    def __init__(self, by_value: dict[Any, Any]) -> None:
        self._by_value = {(type(value), value): made for value, made in by_value.items()}

    def convert(self, value: Any) -> Any:
        try:
            return self._by_value[type(value), value]
        except (KeyError, TypeError):
            raise ValueError("is none of the values that are allowed") from None


class _Record:
    """A class whose fields need forms, made by calling it."""

    def __init__(self, tp: Any, known: dict[Any, Any]) -> None:
        self._make: Callable[..., Any] = typing.get_origin(tp) or tp
        fields = [field for field in read_fields(tp) if field.init]
        kind = record_kind(tp)
        if kind == "struct" and typing.cast(Any, self._make).__struct_config__.tag_field is not None:
            raise TypeError(
                f"{tp!r} is tagged and holds a union that is not: tag the classes of that union too"
            )
        self._struct = record_struct(
            [(field, adapt(field.hint, known)) for field in fields], array_like=kind == "namedtuple"
        )

    def convert(self, value: Any) -> Any:
        try:
            found = convert(value, self._struct)
        except msgspec.ValidationError as error:
            raise Misfit(problems_of(error)) from None
        return self._make(
            **{k: v for k, v in msgspec.structs.asdict(found).items() if v is not msgspec.UNSET}
        )


def record_struct(
    fields: Sequence[tuple[TypeField, Any]], *, array_like: bool = False, closed: bool = False
) -> type[msgspec.Struct]:
    """A class for msgspec that holds the fields; those that were not given are ``UNSET``.

    ``closed`` refuses members that are not among the fields.
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
    )


_PLACE = re.compile(r" - at (?:`key` in )?`\$?(.*)`\Z", re.DOTALL)
_QUOTED = re.compile(r"`([^`]*)`")
_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def problems_of(error: msgspec.ValidationError) -> list[Problem]:
    """What msgspec found, which is the first thing wrong, or what a form within it found."""
    text = str(error)
    place = _PLACE.search(text)
    path = place[1].removeprefix(".") if place else ""
    if isinstance(error.__cause__, Misfit):
        return [Problem(_joined(path, each.path), each.text) for each in error.__cause__.problems]
    text = text[: place.start()] if place else text
    text = _QUOTED.sub(
        lambda found: " or ".join(_JSON_NAMES.get(each, each) for each in found[1].split(" | ")), text
    )
    return [Problem(path, text[:1].lower() + text[1:])]


def _joined(outer: str, inner: str) -> str:
    return outer + inner if not outer or not inner or inner.startswith("[") else f"{outer}.{inner}"
