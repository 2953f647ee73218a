"""Writes a JSON Schema without references: each definition stands where it is used.

Many hosts hand the schema of a tool on to an interface that resolves no ``$ref``, or drop the member that has one, so
that the model is told nothing of it. Definitions that contain themselves cannot be written out: they stay, with the
references to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

__all__ = ["MOST_TIMES", "definitions_in_use", "definitions_of", "target_of", "without_references"]


# A schema that would be more than this many times as long keeps its references: the model reads all of it at each call.
MOST_TIMES = 4
# Levels of nesting. Nobody's schemas have more than 20, and hosts refuse some that do.
MOST_LEVELS = 64

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
    long, or nested deeper than `MOST_LEVELS`. References that lead elsewhere, such as ``#/properties/a`` and
    ``https:…``, are left as they are, and so is all of a document in which parts have an ``$id``, by which references
    are read in another way. A definition on the way from one recursive definition to another one counts as recursive.

    The time that it takes grows with the length of the document alone, whatever refers to what in it. The parts of what
    is returned are shared, and must not be changed.
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


def definitions_in_use(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without the definitions that no reference in it leads to.

    The same object comes back where there are none, and where a reference leads into a definition or an anchor.
    """
    definitions = definitions_of(schema)
    document = {word: value for word, value in schema.items() if word not in _PLACES}
    used: set[str] = set()
    pending: list[Any] = [document]
    while pending:
        for each in _subschemas(pending.pop()):
            target = target_of(each)
            if "$dynamicRef" in each or "$id" in each or (target and target not in definitions):
                return schema
            if target and target not in used:
                used.add(target)
                pending.append(definitions[target])
    if len(used) == len(definitions):
        return schema
    for place in _PLACES:
        kept = {
            name: each
            for name, each in _object(schema.get(place)).items()
            if f"#/{place}/{_in_pointer(name)}" in used
        }
        if kept:
            document[place] = kept
    return document


class _Extent(NamedTuple):
    """The characters of a JSON text and its levels of nesting."""

    length: int
    levels: int


class _Inlining:
    """One schema whose definitions are being written out, each of them once."""

    def __init__(self, schema: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> None:
        self._schema = schema
        self._definitions = definitions
        self._recursive, self._order = _recursive_and_order(definitions)
        self._written: dict[str, dict[str, Any]] = {}
        # By the identity of an object that stands in several places, which live as long as this.
        self._extents: dict[int, _Extent] = {}

    def result(self) -> dict[str, Any] | None:
        # Each one after those that it refers to, so that nothing here calls itself for a reference.
        for reference in self._order:
            definition = self._written[reference] = self._schema_of(self._definitions[reference])
            if self._extent(definition).levels > MOST_LEVELS:
                return None
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
        extent, given = self._extent(written), self._extent(self._schema)
        if extent.levels > MOST_LEVELS or extent.length > MOST_TIMES * given.length:
            return None
        return written

    def _schema_of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        written = {word: self._value_of(word, value) for word, value in schema.items()}
        definition = self._written.get(target_of(schema))
        if definition is None:
            return written
        del written["$ref"]
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

    def _extent(self, value: Any) -> _Extent:
        """The extent of the JSON text, without looking again at parts that stand in several places."""
        if not isinstance(value, dict | list):
            return _Extent(len(msgspec.json.encode(value)), 0)
        known = self._extents.get(id(value))
        if known is None:
            inside = [self._extent(each) for each in (value.values() if isinstance(value, dict) else value)]
            names = sum(len(name) + 3 for name in value) if isinstance(value, dict) else 0
            known = self._extents[id(value)] = _Extent(
                2 + names + sum(each.length + 1 for each in inside),
                1 + max((each.levels for each in inside), default=0),
            )
        return known


def _recursive_and_order(definitions: Mapping[str, dict[str, Any]]) -> tuple[set[str], list[str]]:
    """The definitions from which references lead back to them, and the others, each after those it refers to."""
    leads = {
        name: {target for part in _subschemas(each) if (target := target_of(part)) in definitions}
        for name, each in definitions.items()
    }
    recursive = set(leads).difference(_peeled(leads), _peeled(_reversed(leads)))
    others = {name: targets - recursive for name, targets in leads.items() if name not in recursive}
    return recursive, _peeled(others)


def _peeled(leads: Mapping[str, set[str]]) -> list[str]:
    """All that do not lead to a circle, each after those it leads to."""
    left = {name: len(targets) for name, targets in leads.items()}
    users = _reversed(leads)
    found = [name for name, number in left.items() if not number]
    for name in found:
        for user in users[name]:
            left[user] -= 1
            if not left[user]:
                found.append(user)
    return found


def _reversed(leads: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in leads}
    for name, targets in leads.items():
        for target in targets:
            found[target].add(name)
    return found


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
