"""Makes the cattrs converter of each revision, from JSON to the classes of `mcp_actors.types` and back.

General layout: `make_converter` registers two hook factories for the classes and one for their unions. cattrs calls
them when a class is used for the first time and keeps their hooks, so that making a converter is cheap. The hooks use
tables made from the attrs fields: the cost of reading depends on the members of the message, that of writing on the
fields of the class. The hooks of nested classes are looked up in the converter again, so that a hook registered there
for one class applies everywhere.

A value typed ``Any``, or a dict or list of such values, is passed on without being copied or checked.
"""

from __future__ import annotations

import types as kinds
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs
import msgspec
from cattrs import BaseConverter, transform_error
from cattrs.errors import BaseValidationError
from cattrs.fns import identity
from cattrs.gen import make_dict_unstructure_fn, override

from mcp_actors._eras.vocabulary import (
    MAY_BE_ABSENT,
    Hook,
    absent_from,
    are_questions,
    constants_of,
    is_constant,
    is_union,
    is_vocabulary,
    rows_of,
    wire_name,
    writer_by_class,
    writer_of,
)
from mcp_actors._wire.codec import COLLECTOR_PAUSES
from mcp_actors.types import UNSET, CallToolResult, Icon, TextContent, TextResourceContents
from mcp_actors.types.content import is_icon_source
from mcp_actors.types.records import not_negative

__all__ = [
    "StructureError",
    "class_reader",
    "class_writer",
    "make_converter",
    "reader_of",
    "structure_error_text",
    "tool_result_reader",
]


# -- hooks that structure JSON, strict about every type ------------------------------------------------------------
#
# A hook iterates over the members of the message, so its cost depends on the message and not on the class.


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
    keeps_icons = "icons" in absent
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
            if keeps_icons and "icons" in extra:
                _leave_icons_out(extra)
            known["extra"] = extra
        if constant is None or constant in value:
            try:
                return cls(**known)
            except TypeError:
                if all(name in value for name in needed):
                    raise
        raise StructureError(f"lacks {', '.join(repr(name) for name in needed if name not in value)}")

    return read


def _leave_icons_out(extra: dict[str, Any]) -> None:
    """Takes icons away that could run something, where they are members that the revision does not know.

    A gateway passes such members on, to clients of revisions that know them.
    """
    icons = extra.pop("icons")
    if isinstance(icons, list):
        extra["icons"] = [
            each for each in icons if isinstance(each, dict) and is_icon_source(each.get("src"))
        ]


def _icons_reader(read: Hook) -> Hook:
    """The hook for icons, of which those are left out that could run something when they are shown."""
    return lambda value, _=None: [each for each in read(value) if is_icon_source(each.src)]


def _result_reader(read: Hook) -> Hook:
    """The hook for results of tools. Some servers send structured content and nothing else."""

    def read_result(value: Any, _: Any = None) -> Any:
        if value.__class__ is dict and "structuredContent" in value and "content" not in value:
            value = {"content": [], **value}
        return read(value)

    return read_result


def _text_reader(read: Hook) -> Hook:
    """The hook for blocks of text. Nearly all have no other members than these two."""

    def read_text(value: Any, _: Any = None) -> Any:
        if value.__class__ is dict and len(value) == 2 and value.get("type") == "text":
            text = value.get("text")
            if text.__class__ is str:
                return TextContent(text)
        return read(value)

    return read_text


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
        read = _list_reader(reader_of(converter, parts[0]))
        return _icons_reader(read) if parts[0] is Icon else read
    if origin is dict:
        return _dict_reader(reader_of(converter, parts[1]))
    if origin is Union or origin is kinds.UnionType:
        return _union_reader(converter, [part for part in parts if part is not kinds.NoneType])
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


# -- hooks that unstructure to JSON --------------------------------------------------------------------------------
#
# Members that are absent, or that the revision does not have, are left out.


def class_writer(
    converter: BaseConverter,
    cls: type,
    absent: frozenset[str],
    downgrade: Callable[[Any], Any] | None,
    write_any: Hook,
) -> Hook:
    """Returns the hook for one class of `mcp_actors.types`, without the attributes in ``absent``.

    ``downgrade`` returns the object that is written instead; ``write_any`` writes one of any class.
    """
    constants = constants_of(cls, absent)
    members = _members_writer(converter, cls, absent, write_any)

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
    converter: BaseConverter, cls: type, absent: frozenset[str], write_any: Hook
) -> Callable[[Any], dict[str, Any]]:
    """A function, generated by cattrs, that writes the fields; a default of ``None`` or `UNSET` is left out."""
    hints = get_type_hints(cls)
    plan: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.name == "extra" or field.name in absent or not field.init:
            plan[field.name] = override(omit=True)
        else:
            plan[field.name] = override(
                rename=wire_name(field.name),
                omit_if_default=field.default is None or field.default is UNSET,
                unstruct_hook=writer_of(hints[field.name], write_any) or identity,
            )
    return make_dict_unstructure_fn(cls, converter, **plan)


# -- results of tools in their common form -------------------------------------------------------------------------


class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text"]
    text: str


class _PlainResult(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: list[_Text]
    isError: bool | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class _StructuredResult(_PlainResult):
    structuredContent: Any = UNSET


class _CompleteResult(_StructuredResult):
    resultType: Literal["complete"] = "complete"


# The attributes that not every revision has, and the form of the results in the revisions that lack them.
_FORMS: dict[frozenset[str], type[_PlainResult]] = {
    frozenset(): _CompleteResult,
    frozenset({"result_type"}): _StructuredResult,
    frozenset({"result_type", "structured_content"}): _PlainResult,
}


def tool_result_reader(absent: frozenset[str]) -> Callable[[msgspec.Raw], CallToolResult | None]:
    """Returns a function that makes a `CallToolResult` of its JSON, without a dict between, if it has the common form.

    That is text and structured content, and nothing that a revision does not know. For any other result, a malformed
    one too, the function returns ``None``: the reader of the class decides about that.

    Args:
        absent: The attributes of the class that the revision does not have.
    """
    decode = msgspec.json.Decoder(_FORMS[absent]).decode
    has_structure = "structured_content" not in absent

    def read(raw: msgspec.Raw) -> CallToolResult | None:
        if len(raw) > COLLECTOR_PAUSES:
            return None
        try:
            plain: Any = decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return None
        return CallToolResult(
            [TextContent(each.text) for each in plain.content],
            plain.structuredContent if has_structure else UNSET,
            plain.isError,
            meta=plain.meta,
        )

    return read


def structure_error_text(error: BaseException) -> str:
    """Returns one line on why structuring failed, which may be sent to the peer."""
    if isinstance(error, BaseValidationError):
        return "; ".join(transform_error(error))
    return str(error) or type(error).__name__


def make_converter(
    absent: Mapping[str, frozenset[str]] | None = None,
    downgrade: Mapping[str, Callable[[Any], Any]] | None = None,
) -> BaseConverter:
    """Returns a converter for one revision; without arguments, one that has every member of every revision.

    Both arguments apply to subclasses too.

    Args:
        absent: the attributes that the revision does not have, by the name of their class. They are not written, and
            received members of that name are kept in ``extra`` like any other unknown member.
        downgrade: functions, by such names too, that return the object that is written instead of their argument,
            possibly of another class, or the argument itself if nothing needs to change.
    """
    converter = BaseConverter(detailed_validation=False)
    absent_by_class = absent or {}
    downgrade_by_class = downgrade or {}
    write_any = writer_by_class(converter.get_unstructure_hook)

    def writer(cls: type) -> Hook:
        return class_writer(
            converter,
            cls,
            absent_from(absent_by_class, cls),
            next(iter(rows_of(downgrade_by_class, cls)), None),
            write_any,
        )

    def reader(cls: type) -> Hook:
        read = class_reader(converter, cls, absent_from(absent_by_class, cls))
        if cls is CallToolResult:
            return _result_reader(read)
        return _text_reader(read) if cls is TextContent else read

    converter.register_structure_hook_factory(is_vocabulary, reader)
    converter.register_structure_hook_factory(is_union, lambda union: cast(Hook, reader_of(converter, union)))
    converter.register_unstructure_hook_factory(is_vocabulary, writer)
    return converter
