"""Classes for the fields of elicitation forms, and the validation of an answer.

Using the classes is optional: ``requested_schema`` is a plain dict, which `form_schema` makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import attrs

from mcp_actors.types.records import Vocabulary, record

__all__ = [
    "BooleanSchema",
    "EnumOption",
    "EnumSchema",
    "LegacyTitledEnumSchema",
    "NumberSchema",
    "PrimitiveSchema",
    "StringSchema",
    "TitledMultiSelectEnumSchema",
    "TitledSingleSelectEnumSchema",
    "UntitledMultiSelectEnumSchema",
    "UntitledSingleSelectEnumSchema",
    "form_schema",
    "validate_form_answer",
]

StringFormat = Literal["email", "uri", "date", "date-time"]


@record(kw_only=True, eq=False, repr=False)
class StringSchema(Vocabulary):
    """A text field."""

    type: ClassVar[str] = "string"

    title: str | None = None
    description: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    format: StringFormat | None = None
    default: str | None = None


@record(kw_only=True, eq=False, repr=False)
class NumberSchema(Vocabulary):
    """A field for a number; with ``type="integer"`` for an integer."""

    type: Literal["number", "integer"] = "number"
    title: str | None = None
    description: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    default: float | None = None


@record(kw_only=True, eq=False, repr=False)
class BooleanSchema(Vocabulary):
    """A field for a boolean."""

    type: ClassVar[str] = "boolean"

    title: str | None = None
    description: str | None = None
    default: bool | None = None


@record(eq=False, repr=False)
class EnumOption(Vocabulary):
    """One choice: ``const`` is the value in the answer, ``title`` the text that is shown."""

    const: str
    title: str


@record(eq=False, repr=False)
class UntitledSingleSelectEnumSchema(Vocabulary):
    """A choice of one value; the values themselves are shown."""

    type: ClassVar[str] = "string"

    enum: Sequence[str]
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    default: str | None = attrs.field(default=None, kw_only=True)


@record(eq=False, repr=False)
class TitledSingleSelectEnumSchema(Vocabulary):
    """A choice of one value; their titles are shown."""

    type: ClassVar[str] = "string"

    one_of: Sequence[EnumOption]
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    default: str | None = attrs.field(default=None, kw_only=True)


@record(eq=False, repr=False)
class UntitledMultiSelectEnumSchema(Vocabulary):
    """A choice of several values; the values themselves are shown."""

    type: ClassVar[str] = "array"

    enum: Sequence[str]
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    min_items: int | None = attrs.field(default=None, kw_only=True)
    max_items: int | None = attrs.field(default=None, kw_only=True)
    default: Sequence[str] | None = attrs.field(default=None, kw_only=True)


@record(eq=False, repr=False)
class TitledMultiSelectEnumSchema(Vocabulary):
    """A choice of several values; their titles are shown."""

    type: ClassVar[str] = "array"

    any_of: Sequence[EnumOption]
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    min_items: int | None = attrs.field(default=None, kw_only=True)
    max_items: int | None = attrs.field(default=None, kw_only=True)
    default: Sequence[str] | None = attrs.field(default=None, kw_only=True)


@record(eq=False, repr=False)
class LegacyTitledEnumSchema(Vocabulary):
    """A choice of one value, as earlier revisions have it: ``enum_names`` has the titles in the order of ``enum``."""

    type: ClassVar[str] = "string"

    enum: Sequence[str]
    enum_names: Sequence[str] | None = None
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    default: str | None = attrs.field(default=None, kw_only=True)


EnumSchema = (
    UntitledSingleSelectEnumSchema
    | TitledSingleSelectEnumSchema
    | UntitledMultiSelectEnumSchema
    | TitledMultiSelectEnumSchema
    | LegacyTitledEnumSchema
)
"""A member of a form for which a person chooses one or several values."""
PrimitiveSchema = StringSchema | NumberSchema | BooleanSchema | EnumSchema
"""A member of a form, of any kind."""

_WIRE_NAMES = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "enum_names": "enumNames",
}


def form_schema(
    properties: Mapping[str, PrimitiveSchema | Mapping[str, Any]], *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Makes the plain dict for ``requested_schema``.

    Args:
        properties: the fields by name; each is one of the classes above or plain JSON Schema.
        required: the names of the fields that must be filled in.
    """
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            name: dict(given) if isinstance(given, Mapping) else _plain(given)
            for name, given in properties.items()
        },
    }
    names = list(required)
    if names:
        schema["required"] = names
    return schema


def _plain(schema: PrimitiveSchema) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": schema.type}
    for attribute in attrs.fields(type(schema)):
        value = getattr(schema, attribute.name)
        if value is not None:
            plain[_WIRE_NAMES.get(attribute.name, attribute.name)] = (
                list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            )
    match schema:
        case UntitledMultiSelectEnumSchema():
            plain["items"] = {"type": "string", "enum": plain.pop("enum")}
        case TitledMultiSelectEnumSchema():
            del plain["any_of"]
            plain["items"] = {"anyOf": [_option(option) for option in schema.any_of]}
        case TitledSingleSelectEnumSchema():
            del plain["one_of"]
            plain["oneOf"] = [_option(option) for option in schema.one_of]
    return plain


def _option(option: EnumOption) -> dict[str, str]:
    return {"const": option.const, "title": option.title}


def validate_form_answer(requested_schema: Mapping[str, Any], content: Mapping[str, Any] | None) -> list[str]:
    """Returns what is wrong with an accepted answer, one sentence for each member; empty if it is valid.

    Members that the form does not have are allowed. Keywords that forms do not have are ignored: a ``pattern`` of a
    peer could take exponential time to match.
    """
    answer = content or {}
    properties = requested_schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = requested_schema.get("required")
    faults = [
        f"{name}: is required"
        for name in (required if isinstance(required, list) else ())
        if name not in answer
    ]
    for name, schema in properties.items():
        if name in answer and isinstance(schema, Mapping):
            fault = _fault(schema, answer[name])
            if fault is not None:
                faults.append(f"{name}: {fault}")
    return faults


def _fault(schema: Mapping[str, Any], value: Any) -> str | None:
    match schema.get("type"):
        case "string":
            return _string_fault(schema, value)
        case "number" | "integer" as kind:
            return _number_fault(schema, value, kind)
        case "boolean":
            return None if isinstance(value, bool) else "must be true or false"
        case "array":
            return _array_fault(schema, value)
    return None


def _string_fault(schema: Mapping[str, Any], value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be text"
    if len(value) < schema.get("minLength", 0):
        return f"must have at least {schema['minLength']} characters"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        return f"must have at most {schema['maxLength']} characters"
    allowed = _choices(schema, "oneOf")
    if allowed is not None and value not in allowed:
        return f"must be one of {', '.join(map(repr, allowed))}"
    accepts = _FORMATS.get(schema.get("format", ""))
    if accepts is not None and not accepts(value):
        return f"must be in the format {schema['format']}"
    return None


def _number_fault(schema: Mapping[str, Any], value: Any, kind: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if kind == "integer" and isinstance(value, float) and not value.is_integer():
        return "must be a whole number"
    if "minimum" in schema and value < schema["minimum"]:
        return f"must be at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"must be at most {schema['maximum']}"
    return None


def _array_fault(schema: Mapping[str, Any], value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return "must be a list of texts"
    if len(value) < schema.get("minItems", 0):
        return f"must have at least {schema['minItems']} choices"
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        return f"must have at most {schema['maxItems']} choices"
    items = schema.get("items")
    allowed = _choices(items, "anyOf") if isinstance(items, Mapping) else None
    if allowed is not None and not set(value) <= set(allowed):
        return f"must hold only {', '.join(map(repr, allowed))}"
    return None


def _choices(schema: Mapping[str, Any], titled: str) -> list[Any] | None:
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if isinstance(schema.get(titled), list):
        return [
            option["const"] for option in schema[titled] if isinstance(option, Mapping) and "const" in option
        ]
    return None


# Both match in linear time, since the value comes from the peer.
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _is_date(value: str) -> bool:
    if _DATE.fullmatch(value) is None:
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_date_time(value: str) -> bool:
    """Whether it is a time with an offset from UTC, as RFC 3339 requires."""
    if _DATE_TIME.fullmatch(value) is None:
        return False
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return True


def _is_email(value: str) -> bool:
    name, at, domain = value.rpartition("@")
    return bool(name and at and domain) and not any(character.isspace() for character in value)


def _is_uri(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) and not any(each.isspace() for each in value)


_FORMATS = {"email": _is_email, "uri": _is_uri, "date": _is_date, "date-time": _is_date_time}
