"""Schemas of OpenAPI, 3.0 and 3.1, as JSON Schemas that hosts and models can read.

What is written has no references and no keywords that hosts refuse: ``docs/reference/hosts.md`` says which those are.
It never allows less than the document does, but for members that the document marks as deprecated or internal. A schema
is written breadth first until its length is spent; what lies deeper, and what contains itself, is written as its type
alone, so that a schema of any size takes bounded time and every model can read the part that matters.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mcp_actors._schema.validate import compile_schema
from mcp_actors.openapi.document import ApiDocument, Unresolved, list_of, object_of, text_of

__all__ = ["FILE_SCHEMA", "flat_schema", "is_file", "plain_text", "read_schema"]

# Characters of JSON of what is written for one schema; a model reads the schema of each tool at each turn.
MOST_CHARACTERS = 16_000
# Levels of nesting. Hosts refuse some schemas that have more.
MOST_LEVELS = 12
# Characters of a description, at the first level and below.
FIRST_DESCRIPTION = 300
DEEPER_DESCRIPTION = 120
# Values of an enumeration; of longer ones the description has the first.
MOST_VALUES = 100
SHOWN_VALUES = 20
# Characters of a default value as JSON.
MOST_DEFAULT = 100
# Parts of one ``allOf``, those of its parts included.
MOST_PARTS = 100

FILE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The content, if it is text."},
        "base64": {"type": "string", "description": "The content in Base64, if it is not."},
        "filename": {"type": "string"},
        "media_type": {"type": "string", "description": "Such as image/png."},
    },
    "description": "A file, with either text or base64.",
    "additionalProperties": False,
}
"""What a model writes for a file: it has no other way to send one, and no path of this machine is ever read."""

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# The formats that hosts take.
_FORMATS = ("date-time", "date", "time", "uuid")
_NOTES = ("description", "default")
_NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


class _Part(NamedTuple):
    """A schema that waits to be written, and where it goes."""

    schema: Any
    put_in: Any
    key: str | int
    level: int
    above: frozenset[str]
    """The references that led here: one that comes again is recursive."""


def read_schema(
    document: ApiDocument, schema: Any, *, sent: bool, files: bool = False, most: int = MOST_CHARACTERS
) -> dict[str, Any]:
    """Returns a schema of the document as a JSON Schema that stands alone.

    Args:
        document: The schema's document.
        schema: The schema, or a reference to one.
        sent: Whether values are sent to the API: members that are read only are left out then, and those that are write
            only otherwise.
        files: Whether bytes are sent as they are, in a form or alone: then `FILE_SCHEMA` stands for them.
        most: Characters of JSON, some more or less.
    """
    reference = schema.get("$ref") if isinstance(schema, dict) and len(schema) == 1 else None
    if not isinstance(reference, str):
        return _Writer(document, sent, files, most).written(schema)
    # Many operations take and return the same few things.
    key = (reference, sent, files, most)
    if key not in document.written:
        document.written[key] = _Writer(document, sent, files, most).written(schema)
    return dict(document.written[key])


def flat_schema(document: ApiDocument, schema: Any) -> dict[str, Any]:
    """Returns a schema of the document with the references and the ``allOf`` at its root put together."""
    return _Writer(document, True, False, 0).inlined(schema, frozenset())


class _Writer:
    def __init__(self, document: ApiDocument, sent: bool, files: bool, most: int) -> None:
        self._document = document
        self._sent = sent
        self._files = files
        self._left = most
        self._pending: deque[_Part] = deque()

    def written(self, schema: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._pending.append(_Part(schema, result, "root", 0, frozenset()))
        while self._pending:
            part = self._pending.popleft()
            is_cut = self._left <= 0 or part.level > MOST_LEVELS
            written = self._bare(part) if is_cut else self._one(part)
            self._left -= len(msgspec.json.encode(written)) + len(str(part.key)) + 4
            part.put_in[part.key] = written
        root: dict[str, Any] = result["root"]
        return root

    def _one(self, part: _Part) -> dict[str, Any]:
        """Writes a schema, and has those below it wait."""
        flat = self._flat(part.schema, part.above)
        if flat is None:
            return self._bare(part)
        schema, above = flat
        if self._document.has_old_schemas and schema.get("nullable") is True:
            types, nullable = _types_of(schema), True
        else:
            types = _types_of(schema)
            nullable = "null" in types and len(types) > 1
            types = [each for each in types if each != "null"] if nullable else types
        choices = [*list_of(schema.get("anyOf")), *list_of(schema.get("oneOf"))]
        if choices and self._is_null(choices, above):
            nullable = True
            choices = [each for each in choices if not self._is_null([each], above)]
        below = part._replace(schema=None, above=above)
        if len(choices) == 1 and not types and not object_of(schema.get("properties")):
            notes: dict[str, Any] = {word: schema[word] for word in _NOTES if word in schema}
            written = self._one(below._replace(schema={**self.inlined(choices[0], above), **notes}))
        elif choices and not object_of(schema.get("properties")):
            written = self._choices(schema, choices, below)
        elif len(types) > 1:
            branches = [{**schema, "type": each, "nullable": False} for each in types]
            written = self._choices(schema, branches, below)
        else:
            written = self._plain(schema, types[0] if types else "", below)
        if nullable and "anyOf" in written:
            return {**written, "anyOf": [*written["anyOf"], {"type": "null"}]}
        if nullable and written.get("type") != "null" and ("type" in written or "enum" in written):
            notes = {word: written.pop(word) for word in _NOTES if word in written}
            return {"anyOf": [written, {"type": "null"}], **notes}
        return written

    def _choices(self, schema: dict[str, Any], choices: list[Any], below: _Part) -> dict[str, Any]:
        # A value may fit several of `oneOf` because of what was left out of them, so each is written as `anyOf`.
        branches: list[Any] = [{} for _ in choices]
        written: dict[str, Any] = {}
        self._notes_of(written, schema, below.level)
        for index, each in enumerate(choices):
            self._pending.append(
                below._replace(schema=each, put_in=branches, key=index, level=below.level + 1)
            )
        return {"anyOf": branches, **written}

    def _plain(self, schema: dict[str, Any], kind: str, below: _Part) -> dict[str, Any]:
        if self._files and is_file(schema):
            return dict(FILE_SCHEMA)
        written: dict[str, Any] = {}
        if not kind:
            # Without a type, `items` says nothing of values that are no arrays; documents have it beside such values.
            kind = "object" if object_of(schema.get("properties")) else ""
        if kind:
            written["type"] = kind
        values = [schema["const"]] if "const" in schema else list_of(schema.get("enum"))
        extra = ""
        if values:
            if len(values) <= MOST_VALUES:
                written["enum"] = values
            else:
                extra = f"One of {len(values)} values, such as {', '.join(map(str, values[:SHOWN_VALUES]))}"
        _copy_bounds(schema, written, kind)
        self._notes_of(written, schema, below.level, extra)
        if kind == "array":
            written["items"] = {}
            self._pending.append(
                below._replace(
                    schema={} if "prefixItems" in schema else schema.get("items", {}),
                    put_in=written,
                    key="items",
                    level=below.level + 1,
                )
            )
        elif kind == "object":
            self._members(schema, written, below)
        return written

    def _members(self, schema: dict[str, Any], written: dict[str, Any], below: _Part) -> None:
        required = {each for each in list_of(schema.get("required")) if isinstance(each, str)}
        members = {}
        for name, each in object_of(schema.get("properties")).items():
            if self._is_left_out(each, below.above, name in required):
                required.discard(name)
            else:
                members[name] = each
        if self._sent:
            # Some documents require a member that they do not describe.
            members |= {name: {} for name in sorted(required - members.keys())}
        if members:
            placed: dict[str, Any] = {name: {} for name in members}
            written["properties"] = placed
            for name, each in members.items():
                self._pending.append(
                    below._replace(schema=each, put_in=placed, key=name, level=below.level + 1)
                )
        if needed := [name for name in members if name in required]:
            written["required"] = needed
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and others and "patternProperties" not in schema:
            written["additionalProperties"] = {}
            self._pending.append(
                below._replace(
                    schema=others, put_in=written, key="additionalProperties", level=below.level + 1
                )
            )
        elif others is False and self._sent and "patternProperties" not in schema:
            # An API that has got a new member still answers well.
            written["additionalProperties"] = False

    def _is_left_out(self, schema: Any, above: frozenset[str], required: bool) -> bool:
        flat = self.inlined(schema, above)
        if flat.get("readOnly" if self._sent else "writeOnly") is True:
            return True
        if not self._sent:
            return False
        return not required and (flat.get("deprecated") is True or flat.get("x-internal") is True)

    def _notes_of(self, written: dict[str, Any], schema: dict[str, Any], level: int, extra: str = "") -> None:
        most = FIRST_DESCRIPTION if level <= 1 else DEEPER_DESCRIPTION
        text = plain_text(text_of(schema.get("description")), most)
        if extra:
            text = f"{text} {extra}".strip()
        if text and self._left > 0:
            written["description"] = text
        default = schema.get("default")
        if default is not None and self._sent and len(msgspec.json.encode(default)) <= MOST_DEFAULT:
            written["default"] = default

    # -- a schema without references and `allOf` ---------------------------------------------------------------------

    def inlined(self, schema: Any, above: frozenset[str]) -> dict[str, Any]:
        flat = self._flat(schema, above)
        return {} if flat is None else flat[0]

    def _flat(self, schema: Any, above: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]] | None:
        """Returns a schema with the references at its root followed and the parts of its `allOf` put together.

        ``None`` where it is recursive, leads to nothing, or allows anything.
        """
        parts: list[dict[str, Any]] = []
        pending = [schema]
        seen: set[str] = set()
        while pending:
            part = pending.pop(0)
            if not isinstance(part, dict):
                continue
            reference = part.get("$ref")
            if isinstance(reference, str):
                if reference in above:
                    return None
                if reference in seen or len(parts) + len(pending) > MOST_PARTS:
                    continue
                seen.add(reference)
                try:
                    pending.insert(0, self._document.target(reference))
                except Unresolved:
                    return None
                # In 3.0 what stands beside a reference is ignored, and harmless: descriptions mostly.
                beside = {word: value for word, value in part.items() if word != "$ref"}
                if beside:
                    pending.insert(1, beside)
                continue
            parts.append({word: value for word, value in part.items() if word != "allOf"})
            pending[:0] = list_of(part.get("allOf"))[:MOST_PARTS]
        if not parts:
            return None
        return functools.reduce(_merged, parts), above | seen

    def _is_null(self, choices: list[Any], above: frozenset[str]) -> bool:
        for each in choices:
            flat = self.inlined(each, above)
            if flat.get("type") == "null" or flat.get("enum") == [None] or flat.get("const", 0) is None:
                return True
        return False

    def _bare(self, part: _Part) -> dict[str, Any]:
        """Only the type, for what lies too deep or contains itself."""
        flat = self.inlined(part.schema, frozenset())
        types = _types_of(flat)
        if len(types) != 1 or flat.get("nullable") is True or (self._files and is_file(flat)):
            return {}
        return {"type": "array", "items": {}} if types == ["array"] else {"type": types[0]}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Puts two schemas together that both hold."""
    merged = {**first, **second}
    for word in ("properties", "required"):
        mine, other = first.get(word), second.get(word)
        if isinstance(mine, dict) and isinstance(other, dict):
            merged[word] = {**mine, **other}
        elif isinstance(mine, list) and isinstance(other, list):
            merged[word] = [*mine, *other]
    if (("anyOf" in first) or ("oneOf" in first)) and (("anyOf" in second) or ("oneOf" in second)):
        # Both sets of alternatives hold; those of the first one are written, and the API checks the others.
        merged |= {word: first[word] for word in ("anyOf", "oneOf") if word in first}
    if first.get("description"):
        merged["description"] = first["description"]
    # Each of the two would refuse the members of the other one.
    if ("properties" in first) and ("properties" in second):
        merged.pop("additionalProperties", None)
    if "nullable" in first or "nullable" in second:
        merged["nullable"] = first.get("nullable") is True or second.get("nullable") is True
    return merged


def _types_of(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("type")
    types = found if isinstance(found, list) else [found]
    return [each for each in types if each in _TYPES]


def _copy_bounds(schema: dict[str, Any], written: dict[str, Any], kind: str) -> None:
    for word in _NUMBERS:
        value = schema.get(word)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if word[3:] in ("Length", "Items") and (value < 0 or int(value) != value):
                continue
            written[word] = value
    for word, limit, step, closer in (
        ("exclusiveMinimum", "minimum", 1, max),
        ("exclusiveMaximum", "maximum", -1, min),
    ):
        value = schema.get(word)
        if value is True:  # OpenAPI 3.0: it says how the other word is meant
            value = written.get(limit)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            # Some hosts refuse the exclusive words, so the bound of a number may be reached.
            if kind == "integer" and int(value) == value:
                value = int(value) + step
            written[limit] = closer(value, written.get(limit, value))
    if schema.get("format") in _FORMATS and kind in ("string", ""):
        written["format"] = schema["format"]
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= FIRST_DESCRIPTION and _can_be_checked(pattern):
        written["pattern"] = pattern


@functools.lru_cache(4096)
def _can_be_checked(pattern: str) -> bool:
    """Whether the validator takes a pattern: its engine is linear in time and knows no look-around."""
    try:
        compile_schema({"pattern": pattern})
    except ValueError:
        return False
    return True


def is_file(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is that of a file: bytes that are no text."""
    if schema.get("format") == "binary" or schema.get("contentMediaType") == "application/octet-stream":
        return "contentEncoding" not in schema
    return schema.get("type") == "file"


_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()\s]{0,2000}\)")


def plain_text(text: str, most: int) -> str:
    """Returns a description without markup and line breaks, cut at the end of a sentence where there is one.

    Args:
        text: Text in CommonMark, or in HTML.
        most: Characters.
    """
    text = _LINK.sub(r"\1", _TAG.sub(" ", text[: 10 * most]))
    text = " ".join(text.replace("**", "").replace("`", "").split())
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    end = max(cut.rfind(". "), cut.rfind("! "), cut.rfind("? "))
    return cut[: end + 1] if end > most // 3 else f"{cut.rpartition(' ')[0] or cut}…"
