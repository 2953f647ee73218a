"""Generates the JSON Schema (2020-12) of Python types.

Members and the values of enums keep the order of their declaration, so that the same types always give the same text.
Classes become definitions under ``$defs``; enums, which are short, are written where they are used.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import enum
import inspect
import itertools
import pathlib
import re
import types
import typing
import uuid
from typing import Any, Literal

import msgspec

from mcp_actors._schema.convert import has_pydantic_metadata, is_pydantic_type, pydantic_type, to_json_value
from mcp_actors._schema.fields import NO_DEFAULT, TypeField, read_fields, record_kind, strip
from mcp_actors._schema.validate import json_type

__all__ = ["Docstring", "SchemaWriter", "read_docstring", "root_schema"]


# The form that `decimal.Decimal` reads and writes, without the special values.
_DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"

_ATOMS: dict[Any, dict[str, Any]] = {
    Any: {},
    object: {},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    memoryview: {"type": "string", "contentEncoding": "base64"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": ["string", "number"], "pattern": _DECIMAL},
}

# A result may be a time without an offset from UTC, which RFC 3339 does not have, or a negative duration, which ISO
# 8601 does not have: so the schema of a result cannot promise these formats.
_ATOMS_OUT: dict[Any, dict[str, Any]] = {
    datetime.datetime: {"type": "string"},
    datetime.time: {"type": "string"},
    datetime.timedelta: {"type": "string"},
    decimal.Decimal: {"type": "string"},
}

_ARRAYS = (list, tuple, set, frozenset, collections.abc.Iterable)
_SETS = (set, frozenset, collections.abc.Set)

# The constraints of Meta, with the JSON Schema keyword of each for the JSON type that it limits.
_LIMITS: dict[str, dict[str, str]] = {
    "integer": {
        "ge": "minimum",
        "gt": "exclusiveMinimum",
        "le": "maximum",
        "lt": "exclusiveMaximum",
        "multiple_of": "multipleOf",
    },
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_LIMITS["number"] = _LIMITS["integer"]


def root_schema(tp: Any, *, output: bool) -> dict[str, Any]:
    """Returns the schema of ``tp`` as a document of its own, with its class written out at the root."""
    writer = SchemaWriter(output=output)
    schema = writer.write(tp)
    return writer.document(schema)


class SchemaWriter:
    """Writes schemas that share one set of definitions, ``defs``.

    ``output`` is true for results of functions: then a member that a class always encodes is required, and one that it
    never encodes is left out. All methods raise `TypeError` for a type that has no form in JSON.
    """

    def __init__(self, *, output: bool) -> None:
        self.output = output
        self.defs: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def write(self, tp: Any) -> dict[str, Any]:
        """Returns the schema of one type."""
        bare, metadata = strip(tp)
        if has_pydantic_metadata(metadata) or is_pydantic_type(bare):
            return _annotated(self._pydantic(tp if has_pydantic_metadata(metadata) else bare), metadata)
        schema = self._bare(bare)
        for each in metadata:
            if isinstance(each, msgspec.Meta):
                schema = _limited(schema, each)
        return _annotated(schema, metadata)

    def member(self, field: TypeField, description: str | None = None) -> dict[str, Any]:
        """Returns the schema of one field's type, with its default and, unless it has one already, the description."""
        schema = dict(self.write(field.hint))
        if description and "description" not in schema:
            schema["description"] = description
        if field.default is not NO_DEFAULT:
            try:
                schema["default"] = msgspec.json.decode(msgspec.json.encode(to_json_value(field.default)))
            except TypeError:
                pass  # JSON has no form of this default: a sentinel, a function
        return schema

    def document(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Returns ``schema`` with the definitions that it needs. A reference at its root is written out.

        The reason is MCP 2025-11-25, Server Features, Tools: an output schema has ``"type": "object"`` at its root.
        """
        defs = dict(self.defs)
        reference = schema.get("$ref")
        if reference is not None:
            name = reference.removeprefix("#/$defs/")
            schema = {**defs[name], **{key: value for key, value in schema.items() if key != "$ref"}}
            if not _mentions([schema, [each for other, each in defs.items() if other != name]], reference):
                del defs[name]
        return {**schema, "$defs": defs} if defs else schema

    def _bare(self, tp: Any) -> dict[str, Any]:
        atom = _atom(tp, self.output)
        if atom is not None:
            return atom
        origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
        if origin is Literal:
            return _values(args)
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if record_kind(tp) is not None:
            return self._named(tp)
        if isinstance(origin, type):
            if issubclass(origin, enum.Enum):
                return self._enum(origin)
            if issubclass(origin, pathlib.PurePath):
                return {"type": "string"}
            if issubclass(origin, dict) or origin in (
                collections.abc.Mapping,
                collections.abc.MutableMapping,
            ):
                return self._mapping(args)
            if origin is tuple and not (len(args) == 2 and args[1] is ...) and (args or tp is not tuple):
                return self._tuple(args)
            if origin in _ARRAYS or (origin.__module__ == "collections.abc" and issubclass(origin, _ARRAYS)):
                return self._array(origin, args)
        raise TypeError(f"{_type_name(tp)} has no form in JSON")

    def _union(self, args: tuple[Any, ...]) -> dict[str, Any]:
        branches: list[dict[str, Any]] = []
        for each in sorted(args, key=lambda tp: tp is type(None)):
            branch = self.write(each)
            if branch not in branches:
                branches.append(branch)
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _enum(self, cls: type[enum.Enum]) -> dict[str, Any]:
        if issubclass(cls, enum.Flag):
            return {"type": "integer"}
        schema = _values([to_json_value(member.value) for member in cls])
        doc = read_docstring(_own_doc(cls)).description
        return {**schema, "description": doc} if doc else schema

    def _mapping(self, args: tuple[Any, ...]) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        if args:
            names = {
                word: value
                for word, value in self.write(args[0]).items()
                if word not in ("type", "description")
            }
            if names and strip(args[0])[0] not in (int, float, bool):
                schema["propertyNames"] = names
            if values := self.write(args[1]):
                schema["additionalProperties"] = values
        return schema

    def _tuple(self, args: tuple[Any, ...]) -> dict[str, Any]:
        items = [self.write(each) for each in args if each != ()]
        schema: dict[str, Any] = {"type": "array"}
        if items:
            schema["prefixItems"] = items
        return {**schema, "items": False, "minItems": len(items), "maxItems": len(items)}

    def _array(self, origin: type, args: tuple[Any, ...]) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if args and (items := self.write(args[0])):
            schema["items"] = items
        if issubclass(origin, _SETS):
            schema["uniqueItems"] = True
        return schema

    def _named(self, tp: Any) -> dict[str, Any]:
        name = self._names.get(tp)
        if name is None:
            name = self._names[tp] = self._free_name(tp)
            self.defs[
                name
            ] = {}  # reserves the name and the order while the fields are read, which may refer to it
            self.defs[name] = self._record(tp)
        return {"$ref": f"#/$defs/{name}"}

    def _free_name(self, tp: Any) -> str:
        cls = typing.get_origin(tp) or tp
        short = _type_name(tp)
        numbered = (f"{short}_{number}" for number in itertools.count(2))
        names = itertools.chain((short, f"{cls.__module__}.{cls.__qualname__}"), numbered)
        clean = (re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_") for name in names)
        return next(name for name in clean if name not in self.defs)

    def _record(self, tp: Any) -> dict[str, Any]:
        cls: Any = typing.get_origin(tp) or tp
        kind = record_kind(tp)
        doc = _record_doc(cls)
        fields = [
            field
            for field in read_fields(tp)
            if (field.shown or kind != "attrs" if self.output else field.init)
        ]
        members = {field.wire: self.member(field, doc.parameters.get(field.wire)) for field in fields}
        described = {"description": doc.description} if doc.description else {}
        if kind == "namedtuple":
            least = len(fields) if self.output else sum(field.required for field in fields)
            bounds = {"items": False, "minItems": least, "maxItems": len(fields)}
            return {**described, "type": "array", "prefixItems": list(members.values()), **bounds}
        required = [field.wire for field in fields if (field.shown if self.output else field.required)]
        schema: dict[str, Any] = {**described, "type": "object", "properties": members}
        if kind == "struct":
            self._tag(cls, schema, required)
        if required:
            schema["required"] = required
        return schema

    def _tag(self, cls: Any, schema: dict[str, Any], required: list[str]) -> None:
        config = cls.__struct_config__
        if config.tag_field is not None:
            schema["properties"] = {config.tag_field: _values([config.tag]), **schema["properties"]}
            required.insert(0, config.tag_field)
        if config.forbid_unknown_fields:
            schema["additionalProperties"] = False
        if config.array_like:
            raise TypeError(f"{cls.__qualname__} is array_like, but arguments are given by name")

    def _pydantic(self, tp: Any) -> dict[str, Any]:
        own = pydantic_type(tp)
        schema = own.schema(output=self.output, definitions="")
        if any(self.defs.get(name, each) != each for name, each in schema.get("$defs", {}).items()):
            schema = own.schema(output=self.output, definitions=f"{_type_name(tp)}.")
        schema = dict(schema)
        self.defs.update(schema.pop("$defs", {}))
        if not isinstance(tp, type) or "$ref" in schema:
            return schema
        name = self._names.get(tp)
        if name is None:
            name = self._names[tp] = self._free_name(tp)
            self.defs[name] = schema
        return {"$ref": f"#/$defs/{name}"}


def _atom(tp: Any, output: bool) -> dict[str, Any] | None:
    try:
        found = _ATOMS_OUT.get(tp) if output else None
        found = _ATOMS.get(tp) if found is None else found
    except TypeError:  # not hashable, so no class
        return None
    return None if found is None else dict(found)


def _values(values: collections.abc.Sequence[Any]) -> dict[str, Any]:
    listed = [value.value if isinstance(value, enum.Enum) else value for value in values]
    kinds = list(dict.fromkeys(json_type(value) for value in listed))
    schema: dict[str, Any] = {"type": kinds[0]} if len(kinds) == 1 else {}
    return {**schema, "enum": listed}


def _limited(schema: dict[str, Any], meta: msgspec.Meta) -> dict[str, Any]:
    if "anyOf" in schema:
        return {**schema, "anyOf": [_limited(branch, meta) for branch in schema["anyOf"]]}
    form = schema.get("type")
    words = _LIMITS.get(form, {}) if isinstance(form, str) and "enum" not in schema else {}
    added: dict[str, Any] = {word: getattr(meta, name) for name, word in words.items()}
    added = {word: value for word, value in added.items() if value is not None}
    if schema.get("contentEncoding") == "base64":
        added = {word: 4 * ((value + 2) // 3) for word, value in added.items()}
    if meta.tz and form == "string" and "format" not in schema:
        added["format"] = "date-time"
    return {**schema, **added}


def _annotated(schema: dict[str, Any], metadata: tuple[Any, ...]) -> dict[str, Any]:
    for each in metadata:
        if isinstance(each, msgspec.Meta):
            words = {"title": each.title, "description": each.description, "examples": each.examples}
            schema = {**schema, **{word: value for word, value in words.items() if value is not None}}
            schema.update(each.extra_json_schema or {})
    return schema


def _mentions(value: Any, reference: str) -> bool:
    if isinstance(value, dict):
        return value.get("$ref") == reference or any(_mentions(each, reference) for each in value.values())
    return isinstance(value, list) and any(_mentions(each, reference) for each in value)


def _type_name(tp: Any) -> str:
    if typing.get_origin(tp) is not None and typing.get_args(tp):
        return f"{_type_name(typing.get_origin(tp))}[{', '.join(map(_type_name, typing.get_args(tp)))}]"
    return tp.__name__ if hasattr(tp, "__name__") else repr(tp)


def _own_doc(cls: type) -> str | None:
    doc = cls.__dict__.get("__doc__")
    return doc if isinstance(doc, str) and doc != "An enumeration." else None


def _record_doc(cls: type) -> Docstring:
    doc = _own_doc(cls)
    if doc is not None and doc.startswith(f"{cls.__name__}(") and inspect.cleandoc(doc).endswith(")"):
        return Docstring("", {})  # the signature that dataclasses and named tuples get as a docstring
    return read_docstring(doc)


# -- Docstrings in the three styles that people write: Google, NumPy, reST ---
#
# A model is shown the prose and, apart from it, one line for each parameter. What the function returns or raises is
# left out: its schema and its results say so.
#
# docstring_parser 0.18 drops notes and all text behind a section, and griffelib 2.4 takes 40 ms to import: hence our
# own.

_PARAMETERS = frozenset(
    {
        *("args", "arguments", "parameters", "params", "attributes", "fields", "members", "variables"),
        *("keyword args", "keyword arguments", "other parameters"),
    }
)
_OUTCOMES = frozenset(
    {"returns", "return", "yields", "yield", "raises", "raise", "except", "exceptions", "warns", "receives"}
)

_GOOGLE_HEADER = re.compile(r"([A-Za-z][A-Za-z ]*):\s*\Z")
_GOOGLE_ENTRY = r"(\*{0,2}[A-Za-z_]\w*)\s*(?:\([^)]*\)|\[[^\]]*\])?\s*:(?:\s+(.*))?\Z"
_NUMPY_RULE = re.compile(r"-{3,}\s*\Z")
_NUMPY_ENTRY = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?\Z"
_REST_FIELD = re.compile(r":(\w+)((?:\s+[^:]+)?):(?:\s+(.*))?\Z")
_REST_PARAMETERS = frozenset(
    ["param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var", "attr"]
)


class Docstring(msgspec.Struct, frozen=True):
    """A docstring in two parts.

    ``description`` is the prose without the sections on parameters, results and exceptions; it may be empty.
    ``parameters`` has the text for each parameter that has one.
    """

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Reads a docstring of any style, or of none. Text that is not recognised is prose. Never raises."""
    if not text:
        return Docstring("", {})
    reader = _Reader(inspect.cleandoc(text).splitlines())
    reader.read()
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.prose)).strip()
    return Docstring(
        description, {name: " ".join(words) for name, words in reader.parameters.items() if words}
    )


class _Reader:
    """Reads the lines once. ``at`` is the next line; every method that reads lines advances it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.prose: list[str] = []
        self.parameters: dict[str, list[str]] = {}

    def read(self) -> None:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if (title := self._numpy_title(self.at)) in _PARAMETERS | _OUTCOMES:
                self.at += 2
                self._numpy_section(keep=title in _PARAMETERS)
            elif (title := _google_title(line)) in _PARAMETERS | _OUTCOMES:
                # The first line begins beside the quotes, so its indentation says nothing about the others.
                indent = _indent(line) if self.at else -1
                self.at += 1
                self._google_section(indent, keep=title in _PARAMETERS)
            elif field := _REST_FIELD.match(line):
                self.at += 1
                self._rest_field(field)
            else:
                self.prose.append(line.rstrip())
                self.at += 1

    def _numpy_title(self, at: int) -> str:
        if at + 1 < len(self.lines) and _NUMPY_RULE.match(self.lines[at + 1]):
            return self.lines[at].strip().lower()
        return ""

    def _google_section(self, indent: int, *, keep: bool) -> None:
        """Reads all that is indented deeper than the header; entries start at the first such depth."""
        depth = None
        words: list[str] | None = None
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip():
                if _indent(line) <= indent:
                    return
                depth = _indent(line) if depth is None else depth
                entry = re.match(_GOOGLE_ENTRY, line.strip()) if _indent(line) <= depth else None
                if entry:
                    words = self._start(entry[1], entry[2]) if keep else None
                elif words is not None:
                    words.append(line.strip())
            self.at += 1

    def _numpy_section(self, *, keep: bool) -> None:
        words: list[list[str]] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if self._numpy_title(self.at):
                return
            if line.strip():
                if _indent(line) == 0:
                    entry = re.match(_NUMPY_ENTRY, line)
                    if not entry:
                        return
                    words = [self._start(name, None) for name in entry[1].split(",")] if keep else []
                for each in words if _indent(line) else []:
                    each.append(line.strip())
            self.at += 1

    def _rest_field(self, field: re.Match[str]) -> None:
        words: list[str] = []
        name = field[2].split()[-1] if field[2].split() else ""
        if field[1] in _REST_PARAMETERS and name:
            words = self._start(name, field[3])
        while self.at < len(self.lines) and self.lines[self.at].startswith((" ", "\t")):
            words.append(self.lines[self.at].strip())
            self.at += 1

    def _start(self, name: str, first: str | None) -> list[str]:
        words = self.parameters[name.strip().lstrip("*")] = [first.strip()] if first else []
        return words


def _google_title(line: str) -> str:
    header = _GOOGLE_HEADER.match(line.strip())
    return header[1].lower() if header else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
