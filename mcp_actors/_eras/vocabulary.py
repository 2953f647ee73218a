"""The classes of `mcp_actors.types` as all revisions see them: names on the wire, constants, and how they are written.

A server describes itself with what is here alone, so that its first answer does not wait for cattrs: `describer` writes
objects without code that is made for their classes. `mcp_actors._eras.convert`, which is loaded when the first other
object is read or written, has the converters.
"""

from __future__ import annotations

import types as kinds
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from mcp_actors import types
from mcp_actors.types import UNSET
from mcp_actors.types.records import Vocabulary

__all__ = [
    "MAY_BE_ABSENT",
    "Hook",
    "absent_from",
    "are_questions",
    "constants_of",
    "describer",
    "history_problem",
    "is_constant",
    "is_union",
    "is_vocabulary",
    "named",
    "rows_of",
    "wire_name",
    "writer_by_class",
    "writer_of",
]


# -- the names on the wire and the constants of a class ------------------------------------------------------------
#
# Tables have the classes by their names in `mcp_actors.types`, which loads a class when it is first asked for.

T = TypeVar("T")

Hook = Callable[..., Any]
"""Takes the value and, as cattrs calls it, optionally the type."""

# Class constants of the vocabulary that are on the wire, with what a peer may leave out: `resultType` is absent from
# results of older servers and means "complete", an elicitation without `mode` is a form.
_CONSTANTS = ("type", "mode", "result_type")
MAY_BE_ABSENT = {"resultType": "complete", "mode": "form"}


def wire_name(attribute: str) -> str:
    """The name on the wire of an attribute: camelCase, except for ``meta``."""
    if attribute == "meta":
        return "_meta"
    first, *rest = attribute.split("_")
    return first + "".join(word.capitalize() for word in rest)


def is_vocabulary(cls: Any) -> bool:
    """Whether it is a class of `mcp_actors.types` or made in their manner: ``extra`` is what tells them."""
    if not isinstance(cls, type):
        return False
    # Asking attrs would have it complete the class.
    return issubclass(cls, Vocabulary) or (attrs.has(cls) and "extra" in attrs.fields_dict(cls))


def is_union(annotation: Any) -> bool:
    """Whether it is one of several classes of the vocabulary, and no class."""
    return get_origin(annotation) in (Union, UnionType) and all(map(is_vocabulary, get_args(annotation)))


def are_questions(parts: Iterable[Any]) -> bool:
    """Whether the classes of a union are questions of several methods: in JSON ``{method, params}``."""
    methods = {getattr(part, "method", None) for part in parts}
    return len(methods) > 1 and None not in methods


def named(name: str | type) -> Any:
    """The class or the union of that name; what is a class already is returned as it is."""
    return getattr(types, name) if isinstance(name, str) else name


def rows_of(table: Mapping[str, T], cls: type) -> list[T]:
    """The values of a table by names that are for a class, those for the class itself before those for its bases."""
    return [
        table[each.__name__]
        for each in cls.__mro__
        if each.__name__ in table and named(each.__name__) is each
    ]


def constants_of(cls: type, lacked: frozenset[str]) -> dict[str, str]:
    """The constant members of a class, by their names on the wire."""
    return {
        wire_name(name): getattr(cls, name)
        for name in _CONSTANTS
        if is_constant(cls, name) and name not in lacked
    }


def is_constant(cls: type, name: str) -> bool:
    """Whether ``name`` is a class constant, as the discriminators are, and no field of its objects."""
    return isinstance(getattr(cls, name, None), str) and name not in attrs.fields_dict(cls)


def absent_from(table: Mapping[str, frozenset[str]], cls: type) -> frozenset[str]:
    """The attributes of a class that a revision does not have, by the revision's table of them."""
    return frozenset[str]().union(*rows_of(table, cls))


# -- writing -------------------------------------------------------------------------------------------------------


def writer_of(annotation: Any, write_any: Hook) -> Hook | None:
    """The hook for the values of one annotation, or ``None`` if they are JSON already."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is list:
        item_hook = writer_of(parts[0], write_any)
        return None if item_hook is None else lambda value: [item_hook(item) for item in value]
    if origin is dict:
        member_hook = writer_of(parts[1], write_any)
        if member_hook is None:
            return None
        return lambda value: {name: member_hook(item) for name, item in value.items()}
    if origin is Union or origin is kinds.UnionType:
        return _union_writer([part for part in parts if part is not kinds.NoneType], write_any)
    return write_any if is_vocabulary(annotation) else None


def _union_writer(parts: list[Any], write_any: Hook) -> Hook | None:
    if len(parts) == 1:
        return writer_of(parts[0], write_any)
    if are_questions(parts):
        return lambda value: (
            value if value.__class__ is dict else {"method": value.method, "params": write_any(value)}
        )
    if any(get_origin(part) is list for part in parts):
        return lambda value: (
            [write_any(item) for item in value] if value.__class__ in (list, tuple) else write_any(value)
        )
    return write_any if is_vocabulary(parts[0]) else None


def writer_by_class(hook_of: Callable[[type], Hook]) -> Hook:
    """Returns a hook for an object of any class of `mcp_actors.types`; a dict is plain JSON and is not changed."""
    hooks: dict[type, Hook] = {dict: lambda value: value}

    def write(value: Any) -> Any:
        try:
            hook = hooks[value.__class__]
        except KeyError:
            if not is_vocabulary(value.__class__):
                raise TypeError(
                    f"{value.__class__.__name__} is not an object of the protocol: {value!r:.80}"
                ) from None
            hook = hooks[value.__class__] = hook_of(value.__class__)
        return hook(value)

    return write


def describer(absent: Mapping[str, frozenset[str]]) -> Hook:
    """Returns a hook that writes as the converter of a revision does, and makes no code for the classes that it meets.

    It is for what is written once, such as the description of a server. Of the classes in that, no revision replaces
    any by another one.

    Args:
        absent: The attributes that the revision does not have, by the name of their class.
    """
    write = writer_by_class(
        lambda cls: _describing(cls, absent_from(absent, cls), lambda value: write(value))
    )
    return write


def _describing(cls: type, absent: frozenset[str], write_any: Hook) -> Hook:
    constants = constants_of(cls, absent)
    hints = get_type_hints(cls)
    members = [
        (field.name, wire_name(field.name), field.default, writer_of(hints[field.name], write_any))
        for field in attrs.fields(cls)
        if field.name != "extra" and field.name not in absent and field.init
    ]

    def write(instance: Any) -> dict[str, Any]:
        plain: dict[str, Any] = dict(constants)
        for attribute, name, default, hook in members:
            value = getattr(instance, attribute)
            if value is default and (default is None or default is UNSET):
                continue
            plain[name] = value if hook is None or value is None else hook(value)
        for name, value in instance.extra.items():
            plain.setdefault(name, value)
        return plain

    return write


# -- the form of the messages of a sampling request, checked on both sides -----------------------------------------


def history_problem(messages: Sequence[types.SamplingMessage]) -> str | None:
    """Returns what is wrong with tool uses and their results among the messages, ``None`` if nothing is.

    MCP 2025-11-25, Sampling, Message Content Constraints: each use is answered in the next message, by a result with
    its id, and a message with results holds nothing else. Uses are the model's, results the user's.
    """
    open_uses: set[str] = set()
    for message in messages:
        blocks = _blocks(message)
        results = [block for block in blocks if isinstance(block, types.ToolResultContent)]
        if results and len(results) < len(blocks):
            return "a message with tool results must hold nothing else"
        if open_uses != {block.tool_use_id for block in results}:
            return "every tool use needs its result in the next message, and no other"
        if results and message.role != "user":
            return "tool results belong into a message of the role user"
        open_uses = {block.id for block in blocks if isinstance(block, types.ToolUseContent)}
        if open_uses and message.role != "assistant":
            return "tool uses belong into a message of the role assistant"
    return f"tool uses without a result: {', '.join(sorted(open_uses))[:200]}" if open_uses else None


def _blocks(message: types.SamplingMessage) -> Sequence[types.SamplingContent]:
    return message.content if isinstance(message.content, list) else [message.content]
