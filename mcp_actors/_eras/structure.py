"""Makes the cattrs hooks that structure JSON into the classes of `mcp_actors.types`, strict about every type.

A hook iterates over the members of the message, so its cost depends on the message and not on the class.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from cattrs import BaseConverter

from mcp_actors._eras.vocabulary import (
    MAY_BE_ABSENT,
    Hook,
    are_questions,
    constants_of,
    is_constant,
    wire_name,
)
from mcp_actors.types import TextResourceContents
from mcp_actors.types.caching import not_negative

__all__ = ["StructureError", "class_reader", "reader_of"]


class StructureError(ValueError):
    """JSON that does not fit a class. The text names the member: ``content[0].text: must be a string, …``."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str | int] = []  # innermost first

    def __str__(self) -> str:
        text = ""
        for step in reversed(self.path):
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return f"{text}: {self.problem}" if text else self.problem


def class_reader(converter: BaseConverter, cls: type, absent: frozenset[str]) -> Hook:
    """Returns the hook for one class of `mcp_actors.types`, without the attributes in ``absent``."""
    members, needed = _members(converter, cls, absent)
    constant = next((name for name in constants_of(cls, absent) if name in needed), None)
    find = members.get

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise StructureError(f"must be an object, not {_kind(value)}")
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, item in value.items():
            member = find(name)
            if member is None:
                extra[name] = item
                continue
            attribute, hook, null_is_absent, plain = member
            if hook is not None and item.__class__ is not plain:
                if item is None and null_is_absent:
                    continue
                try:
                    item = hook(item)
                except StructureError as error:
                    error.path.append(name)
                    raise
            if attribute:
                known[attribute] = item
        if extra:
            known["extra"] = extra
        if constant is None or constant in value:
            try:
                return cls(**known)
            except TypeError:
                if all(name in value for name in needed):
                    raise
        raise StructureError(f"lacks {', '.join(repr(name) for name in needed if name not in value)}")

    return read


def _members(
    converter: BaseConverter, cls: type, absent: frozenset[str]
) -> tuple[dict[str, tuple[str, Hook | None, bool, type | None]], list[str]]:
    """The members by their JSON name, and the names of the required ones.

    Each member has its attribute (empty for a constant), its hook, whether null means that it is absent, and the class
    of which the hook would return every value as it is.
    """
    hints = get_type_hints(cls)
    members: dict[str, tuple[str, Hook | None, bool, type | None]] = {}
    needed: list[str] = []
    for field in attrs.fields(cls):
        if field.name == "extra" or field.name in absent or not field.init:
            continue
        # Many peers write null for an absent member. Where null is a legal value, it is kept.
        null_is_absent = field.default is None
        hook, plain = reader_of(converter, hints[field.name]), _PLAIN.get(hints[field.name])
        if field.validator is not_negative:
            hook, plain = _clamping(hook), None
        members[wire_name(field.name)] = (field.name, hook, null_is_absent, plain)
        if field.default is attrs.NOTHING:
            needed.append(wire_name(field.name))
    constants = constants_of(cls, absent)
    for name, constant in constants.items():
        hook = reader_of(converter, Literal[constant])
        members[name] = ("", hook, MAY_BE_ABSENT.get(name) == constant, None)
        if MAY_BE_ABSENT.get(name) != constant:
            needed.append(name)
    return members, needed


def _clamping(hook: Hook | None) -> Hook:
    """A hook for what may not be less than 0, which is read as 0 if it is. MCP 2026-07-28, Caching."""
    assert hook is not None
    return lambda value, _=None: max(0, hook(value))


def reader_of(converter: BaseConverter, annotation: Any) -> Hook | None:
    """Returns the hook for one annotation, or ``None`` where every JSON value is accepted."""
    if annotation is Any:
        return None
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _literal_reader(parts)
    if origin is list:
        return _list_reader(reader_of(converter, parts[0]))
    if origin is dict:
        return _dict_reader(reader_of(converter, parts[1]))
    if origin is Union or origin is types.UnionType:
        return _union_reader(converter, [part for part in parts if part is not types.NoneType])
    return _late_reader(converter, annotation)


def _union_reader(converter: BaseConverter, parts: list[Any]) -> Hook | None:
    if len(parts) == 1:
        return reader_of(converter, parts[0])
    lists = [part for part in parts if get_origin(part) is list]
    if lists:
        one = _union_reader(converter, [part for part in parts if part not in lists])
        many = reader_of(converter, lists[0])
        assert one is not None
        assert many is not None
        return lambda value, _=None: many(value) if value.__class__ is list else one(value)
    if set(parts) == {int, str}:
        return _read_id
    if TextResourceContents in parts:
        return _contents_reader(converter, parts)
    if are_questions(parts):
        return _input_request_reader(converter, parts)
    tag = next(name for name in ("type", "mode") if is_constant(parts[0], name))
    return _tag_reader(converter, wire_name(tag), {getattr(part, tag): part for part in parts})


def _late_reader(converter: BaseConverter, cls: Any) -> Hook:
    """A hook that asks the converter for its class at the first value, since classes may contain each other."""
    hook: Hook | None = None

    def read(value: Any, _: Any = None) -> Any:
        nonlocal hook
        if hook is None:
            hook = converter.get_structure_hook(cls)
        return hook(value, cls)

    return read


def _tag_reader(converter: BaseConverter, tag: str, classes: Mapping[str, Any]) -> Hook:
    implied = MAY_BE_ABSENT.get(tag, "")
    # Filled at the first value of each class, since classes may contain each other.
    hooks: dict[str, Hook] = {}

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise StructureError(f"must be an object, not {_kind(value)}")
        kind = value.get(tag, implied)
        try:
            hook = hooks[kind]
        except (KeyError, TypeError):
            if not isinstance(kind, str) or kind not in classes:
                problem = f"must be one of {', '.join(classes)}" if tag in value else f"lacks {tag!r}"
                error = StructureError(problem)
                if tag in value:
                    error.path.append(tag)
                raise error from None
            hook = hooks[kind] = converter.get_structure_hook(classes[kind])
        return hook(value, None)

    return read


def _contents_reader(converter: BaseConverter, parts: list[Any]) -> Hook:
    text, blob = (_late_reader(converter, part) for part in parts)

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise StructureError(f"must be an object, not {_kind(value)}")
        if "text" in value:
            return text(value)
        if "blob" in value:
            return blob(value)
        raise StructureError("lacks 'text' or 'blob'")

    return read


def _input_request_reader(converter: BaseConverter, parts: list[Any]) -> Hook:
    """The hook for the ``{method, params}`` of an input request, whose class depends on the method."""
    by_method: dict[str, list[Any]] = {}
    for part in parts:
        by_method.setdefault(part.method, []).append(part)
    hooks = {method: _union_reader(converter, parts) for method, parts in by_method.items()}

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise StructureError(f"must be an object, not {_kind(value)}")
        method = value.get("method")
        hook = hooks.get(method) if isinstance(method, str) else None
        if hook is None:
            error = StructureError(f"must be one of {', '.join(hooks)}")
            error.path.append("method")
            raise error
        try:
            return hook(value.get("params", {}))
        except StructureError as error:
            error.path.append("params")
            raise

    return read


def _list_reader(hook: Hook | None) -> Hook:
    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not list:
            raise StructureError(f"must be an array, not {_kind(value)}")
        if hook is None:
            return value
        items: list[Any] = []
        for item in value:
            try:
                items.append(hook(item))
            except StructureError as error:
                error.path.append(len(items))
                raise
        return items

    return read


def _dict_reader(hook: Hook | None) -> Hook:
    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is not dict:
            raise StructureError(f"must be an object, not {_kind(value)}")
        if hook is None:
            return value
        items: dict[str, Any] = {}
        for name, item in value.items():
            try:
                items[name] = hook(item)
            except StructureError as error:
                error.path.append(name)
                raise
        return items

    return read


def _literal_reader(allowed: tuple[Any, ...]) -> Hook:
    choice = frozenset(allowed)
    wanted = repr(allowed[0]) if len(allowed) == 1 else f"one of {', '.join(map(repr, allowed))}"

    def read(value: Any, _: Any = None) -> Any:
        if value.__class__ is str and value in choice:
            return value
        raise StructureError(f"must be {wanted}")

    return read


def _read_str(value: Any, _: Any = None) -> str:
    if isinstance(value, str):
        return value
    raise StructureError(f"must be a string, not {_kind(value)}")


def _read_bool(value: Any, _: Any = None) -> bool:
    if value is True or value is False:
        return value
    raise StructureError(f"must be true or false, not {_kind(value)}")


def _read_int(value: Any, _: Any = None) -> int:
    if value.__class__ is int:
        return value
    # JSON has one kind of number, and 5.0 is an integer in JSON Schema.
    if value.__class__ is float and value.is_integer():
        return int(value)
    raise StructureError(f"must be a whole number, not {_kind(value)}")


def _read_float(value: Any, _: Any = None) -> float:
    if value.__class__ is float or value.__class__ is int:
        return value
    raise StructureError(f"must be a number, not {_kind(value)}")


def _read_id(value: Any, _: Any = None) -> int | str:
    if value.__class__ is int or isinstance(value, str):
        return value
    raise StructureError(f"must be a string or a whole number, not {_kind(value)}")


_SCALARS: dict[Any, Hook] = {str: _read_str, bool: _read_bool, int: _read_int, float: _read_float}

# By annotation, the class of which every value is good as it is.
_PLAIN: dict[Any, type] = {kind | None: kind for kind in _SCALARS} | {
    **{kind: kind for kind in _SCALARS},
    dict[str, Any]: dict,
    dict[str, Any] | None: dict,
}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
