"""Writing: makes the hooks from the vocabulary to JSON, leaving out what is absent or unknown to the revision."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
from cattrs import Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_unstructure_fn, override

from mcp_actors._eras.vocabulary import Hook, constants_of, is_vocabulary, wire_name
from mcp_actors.types import UNSET, InputRequest

__all__ = ["class_writer", "writer_by_class"]


def class_writer(
    converter: Converter,
    cls: type,
    lacked: frozenset[str],
    downgrade: Callable[[Any], Any] | None,
    write_any: Hook,
) -> Hook:
    """The hook for one class of the vocabulary, as it looks without the attributes in ``lacked``."""
    constants = constants_of(cls, lacked)
    members = _members_writer(converter, cls, lacked, write_any)

    def write(instance: Any) -> dict[str, Any]:
        plain = constants | members(instance) if constants else members(instance)
        extra = instance.extra
        if extra:
            for name, value in extra.items():
                plain.setdefault(name, value)
        return plain

    if downgrade is None:
        return write

    def write_downgraded(instance: Any) -> Any:
        other = downgrade(instance)
        return write(other) if other.__class__ is cls else write_any(other)

    return write_downgraded


def _members_writer(
    converter: Converter, cls: type, lacked: frozenset[str], write_any: Hook
) -> Callable[[Any], dict[str, Any]]:
    """What is written of the fields, by a function that cattrs generates; what has its default of nothing is absent."""
    hints = get_type_hints(cls)
    plan: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.name == "extra" or field.name in lacked:
            plan[field.name] = override(omit=True)
        else:
            plan[field.name] = override(
                rename=wire_name(field.name),
                omit_if_default=field.default is None or field.default is UNSET,
                unstruct_hook=_writer_of(hints[field.name], write_any) or identity,
            )
    return make_dict_unstructure_fn(cls, converter, **plan)


def _writer_of(annotation: Any, write_any: Hook) -> Hook | None:
    """The hook for the values of one annotation, or ``None`` where they are JSON already."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is list:
        item_hook = _writer_of(parts[0], write_any)
        return None if item_hook is None else lambda value: [item_hook(item) for item in value]
    if origin is dict:
        member_hook = _writer_of(parts[1], write_any)
        if member_hook is None:
            return None
        return lambda value: {name: member_hook(item) for name, item in value.items()}
    if origin is Union or origin is types.UnionType:
        return _union_writer([part for part in parts if part is not types.NoneType], write_any)
    return write_any if is_vocabulary(annotation) else None


def _union_writer(parts: list[Any], write_any: Hook) -> Hook | None:
    if len(parts) == 1:
        return _writer_of(parts[0], write_any)
    if set(parts) == set(get_args(InputRequest)):
        return lambda value: (
            value if value.__class__ is dict else {"method": value.method, "params": write_any(value)}
        )
    if any(get_origin(part) is list for part in parts):
        return lambda value: (
            [write_any(item) for item in value] if value.__class__ in (list, tuple) else write_any(value)
        )
    return write_any if is_vocabulary(parts[0]) else None


def writer_by_class(converter: Converter) -> Hook:
    """Writes any object of the vocabulary; a dict is taken for plain JSON and stays as it is."""
    hooks: dict[type, Hook] = {dict: lambda value: value}

    def write(value: Any) -> Any:
        try:
            hook = hooks[value.__class__]
        except KeyError:
            if not is_vocabulary(value.__class__):
                raise TypeError(
                    f"{value.__class__.__name__} is no object of the protocol: {value!r:.80}"
                ) from None
            hook = hooks[value.__class__] = converter.get_unstructure_hook(value.__class__)
        return hook(value)

    return write
