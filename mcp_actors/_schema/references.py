"""Writes a JSON Schema without references: each definition stands where it is used.

Many hosts hand the schema of a tool on to an interface that resolves no ``$ref``, or drop the member that has one, so
that the model is told nothing of it. Definitions that contain themselves cannot be written out: they stay, with the
references to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

__all__ = ["MOST_TIMES", "definitions_of", "target_of", "without_references"]


# A schema that would be more than this many times as long keeps its references: the model reads all of it at each call.
MOST_TIMES = 4

# Where definitions stand: 2019-09 and later, and before.
_PLACES = ("$defs", "definitions")
# Keywords whose values are schemas by name, and those whose values are data.
_BY_NAME = frozenset((*_PLACES, "properties", "patternProperties", "dependentSchemas"))
_DATA = frozenset(("default", "examples", "const", "enum"))
# Keywords that only describe. Beside a reference they replace those of the definition; any other one holds as well.
_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
)


def without_references(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a schema that means the same and has no references but those of recursive definitions.

    Returns the same object where there is nothing to do, and ``None`` for one that would be more than `MOST_TIMES` as
    long. References that lead elsewhere, such as ``#/properties/a`` and ``https:…``, are left as they are, and so is
    all of a document in which parts have an ``$id``, by which references are read in another way.

    The parts of what is returned are shared, and must not be changed.
    """
    definitions = definitions_of(schema)
    if not definitions or any("$id" in each for each in _subschemas(schema) if each is not schema):
        return schema
    return _Inlining(schema, definitions).result()


def definitions_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the definitions of a document by the references to them, as `target_of` spells these."""
    return {
        f"#/{place}/{_in_pointer(name)}": each
        for place in _PLACES
        for name, each in _object(schema.get(place)).items()
        if isinstance(each, dict)
    }


class _Inlining:
    """One schema whose definitions are being written out, each of them once."""

    def __init__(self, schema: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> None:
        self._schema = schema
        self._definitions = definitions
        self._recursive = _recursive(definitions)
        self._written: dict[str, dict[str, Any]] = {}
        # By the identity of an object that stands in several places, which live as long as this.
        self._lengths: dict[int, int] = {}

    def result(self) -> dict[str, Any] | None:
        document = {word: value for word, value in self._schema.items() if word not in _PLACES}
        written: dict[str, Any] = self._schema_of(document)
        for place in _PLACES:
            kept = {
                name: self._schema_of(each)
                for name, each in _object(self._schema.get(place)).items()
                if f"#/{place}/{_in_pointer(name)}" in self._recursive
            }
            if kept:
                written[place] = kept
        if self._length(written) > MOST_TIMES * self._length(self._schema):
            return None
        return written

    def _schema_of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        written = {word: self._value_of(word, value) for word, value in schema.items()}
        reference = target_of(schema)
        if reference not in self._definitions or reference in self._recursive:
            return written
        del written["$ref"]
        definition = self._definition(reference)
        if any(word in definition and word not in _NOTES for word in written):
            return {"allOf": [definition], **written}
        return {**definition, **written}

    def _value_of(self, word: str, value: Any) -> Any:
        if word in _BY_NAME and isinstance(value, dict):
            return {name: self._schema_of(each) for name, each in value.items()}
        if word == "discriminator" and isinstance(value, dict):
            # OpenAPI's, which pydantic writes: its mapping leads to definitions that are gone.
            return {name: each for name, each in value.items() if name != "mapping"}
        if word in _DATA:
            return value
        return (
            [self._schema_of(each) for each in value] if isinstance(value, list) else self._schema_of(value)
        )

    def _definition(self, reference: str) -> dict[str, Any]:
        written = self._written.get(reference)
        if written is None:
            written = self._written[reference] = self._schema_of(self._definitions[reference])
        return written

    def _length(self, value: Any) -> int:
        """The length of the JSON text, without writing parts again that stand in several places."""
        if not isinstance(value, dict | list):
            return len(msgspec.json.encode(value))
        known = self._lengths.get(id(value))
        if known is None:
            each = value.values() if isinstance(value, dict) else value
            names = sum(len(name) + 3 for name in value) if isinstance(value, dict) else 0
            known = self._lengths[id(value)] = 2 + names + sum(self._length(item) + 1 for item in each)
        return known


def _recursive(definitions: Mapping[str, dict[str, Any]]) -> frozenset[str]:
    """The definitions from which references lead back to them."""
    leads = {
        name: {target for part in _subschemas(each) if (target := target_of(part)) in definitions}
        for name, each in definitions.items()
    }
    found = set()
    for name in definitions:
        reached: set[str] = set()
        pending = [name]
        while pending:
            further = leads[pending.pop()] - reached
            reached |= further
            pending += further
        if name in reached:
            found.add(name)
    return frozenset(found)


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas in a schema, itself first."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for word, value in part.items():
                if word in _BY_NAME and isinstance(value, dict):
                    pending += value.values()
                elif word not in _DATA:
                    pending.append(value)


def target_of(schema: Mapping[str, Any]) -> str:
    """The reference of a schema, in one spelling; empty without any."""
    reference = schema.get("$ref")
    return unquote(reference) if isinstance(reference, str) else ""


def _in_pointer(name: str) -> str:
    """A name as it stands in a JSON Pointer (RFC 6901 section 3)."""
    return name.replace("~", "~0").replace("/", "~1")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
