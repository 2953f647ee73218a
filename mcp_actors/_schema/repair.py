"""Repairs arguments that models write in another type than the schema says, where they can be meant in one way only.

Models are trained on text, and send some arguments as text that are none. This is used after arguments were refused.

=================================================  ========================================  ==========================
what came                                          what the schema takes there               what becomes of it
=================================================  ========================================  ==========================
text that is a number in JSON                      a number, and no text                     the number
``"true"``, ``"false"``, ``"True"``, ``"False"``   a truth value, and no text                the truth value
text that is an array or an object in JSON         an array or an object, and no text        the array or the object
``null``                                           an optional member that takes no null     nothing: it was not given
=================================================  ========================================  ==========================

Everything else stays: text where text is taken, a single value where a list is wanted, a name in other letters. Nothing
is changed inside of what fits, and where several alternatives are left, nothing is chosen.

Whoever sends arguments chooses how large they are, and alternatives inside of alternatives multiply the ways to read
them. So arguments with many values are not looked at, and what takes too long is given up: then nothing is repaired.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcp_actors._schema.references import definitions_of, target_of
from mcp_actors._schema.validate import Validator, compile_schema, json_type, path_text
from mcp_actors._wire.codec import decode_text
from mcp_actors.errors import MalformedMessage

__all__ = ["Repair", "Repaired"]


# Values in arguments that are looked at; a model writes some dozens. And characters of the texts in them that are read
# as JSON, all together.
MOST_VALUES = 1_000
MOST_TEXT = 256 * 1024
# Looks at a value, those at the same one again included, and looks that a choice between alternatives counts for: each
# checks the value against several schemas. Together they take some 20 ms.
MOST_LOOKS = 4_000
_CHOICE = 16
# Paths that a model is told, and characters of one: names of members may be the peer's.
MOST_PATHS = 10
_LONGEST_PATH = 200
# References that are followed from one schema, which may lead in a circle.
_MOST_STEPS = 32

_ALL = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_SPELLED = {"True": True, "False": False}

Path = tuple[str | int, ...]


class Repaired(NamedTuple):
    """Arguments that were repaired, and the paths of what is different in them, the first `MOST_PATHS`."""

    arguments: dict[str, Any]
    paths: list[str]


class Repair:
    """Repairs what does not fit one schema. What it returns may not fit either, and is to be checked."""

    __slots__ = ("_definitions", "_kinds", "_schema", "_validators")

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._definitions = definitions_of(schema)
        # Both by the identity of a part of the schema, which lives as long as this.
        self._kinds: dict[int, frozenset[str]] = {}
        self._validators: dict[int, Validator | None] = {}

    def __call__(self, arguments: dict[str, Any]) -> Repaired | None:
        """Returns the arguments with everything repaired that can be, ``None`` where that is nothing.

        ``arguments`` are not changed.
        """
        if _has_more_values(arguments, MOST_VALUES):
            return None
        attempt = _Attempt(self)
        try:
            found = attempt.value(arguments, self._schema, ())
        except _TooMuch:
            return None
        paths = [path_text(each)[:_LONGEST_PATH] for each in attempt.changed[:MOST_PATHS]]
        return Repaired(found, paths) if paths else None

    def resolved(self, schema: Any) -> dict[str, Any] | None:
        """A schema that is an object, its reference followed; ``None`` for one of which nothing is known."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict):
                return None
            if "$ref" not in schema:
                return schema
            schema = self._definitions.get(target_of(schema))
        return None

    def kinds(self, schema: dict[str, Any]) -> frozenset[str]:
        """The JSON types that a schema may take; all of them where that is not said."""
        known = self._kinds.get(id(schema))
        if known is None:
            # Of one that leads back to itself nothing is known meanwhile.
            self._kinds[id(schema)] = _ALL
            known = self._kinds[id(schema)] = self._kinds_of(schema)
        return known

    def _kinds_of(self, schema: dict[str, Any]) -> frozenset[str]:
        kinds = _ALL
        declared = schema.get("type")
        if isinstance(declared, str | list):
            named = {each for each in _list(declared) or [declared] if isinstance(each, str)}
            kinds = frozenset(named | {"integer"} if "number" in named else named)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            kinds &= frozenset(map(json_type, values))
        for word in ("anyOf", "oneOf"):
            if several := _list(schema.get(word)):
                kinds &= frozenset().union(*map(self._kinds_at, several))
        for each in _list(schema.get("allOf")):
            kinds &= self._kinds_at(each)
        return kinds

    def _kinds_at(self, schema: Any) -> frozenset[str]:
        found = self.resolved(schema)
        return _ALL if found is None else self.kinds(found)

    def validator(self, schema: dict[str, Any]) -> Validator | None:
        """Returns what checks a part of the schema, ``None`` if that is over a limit of `compile_schema`."""
        if id(schema) not in self._validators:
            places: dict[str, Any] = {word: self._schema.get(word, {}) for word in ("$defs", "definitions")}
            try:
                self._validators[id(schema)] = compile_schema({**schema, **places})
            except ValueError:
                self._validators[id(schema)] = None
        return self._validators[id(schema)]


class _TooMuch(Exception):
    """An attempt has looked at more than it may."""


class _Attempt:
    """The repair of the arguments of one call. ``changed`` are the paths of what is different so far."""

    def __init__(self, repair: Repair) -> None:
        self.changed: list[Path] = []
        self._repair = repair
        self._looks = MOST_LOOKS
        self._text = MOST_TEXT

    def value(self, value: Any, schema: Any, at: Path) -> Any:
        """Returns a value as the schema takes it, as far as that can be known."""
        self._look(1)
        schema = self._repair.resolved(schema)
        if schema is None:
            return value
        if isinstance(value, str):
            meant = self._meant(value, self._repair.kinds(schema))
            if meant is value:
                return value
            self.changed.append(at)
            value = meant
        if not isinstance(value, dict | list):
            return value
        for word in ("anyOf", "oneOf"):
            if several := _list(schema.get(word)):
                value = self._alternative(value, several, at)
        for each in _list(schema.get("allOf")):
            value = self.value(value, each, at)
        return self._object(value, schema, at) if isinstance(value, dict) else self._array(value, schema, at)

    def _array(self, value: list[Any], schema: Mapping[str, Any], at: Path) -> list[Any]:
        first, rest = _list(schema.get("prefixItems")), schema.get("items")
        return [
            self.value(each, first[index] if index < len(first) else rest, (*at, index))
            for index, each in enumerate(value)
        ]

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], at: Path) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        # What a pattern covers is not known without trying it.
        others = None if "patternProperties" in schema else schema.get("additionalProperties")
        required = _list(schema.get("required"))
        found = {}
        for name, each in value.items():
            member = properties.get(name, others)
            if each is None and name in properties and name not in required:
                resolved = self._repair.resolved(member)
                if resolved is not None and "null" not in self._repair.kinds(resolved):
                    self.changed.append((*at, name))
                    continue
            found[name] = self.value(each, member, (*at, name))
        return found

    def _alternative(self, value: Any, several: Sequence[Any], at: Path) -> Any:
        """Repairs an object or array by the only alternative that it can be meant for."""
        self._look(_CHOICE)
        repair, kind = self._repair, json_type(value)
        resolved = map(repair.resolved, several)
        meant = [each for each in resolved if each is not None and kind in repair.kinds(each)]
        if len(meant) == 1:
            return self.value(value, meant[0], at)
        checks = [check for each in meant if (check := repair.validator(each)) is not None]
        if len(checks) < len(meant) or any(check.is_valid(value) for check in checks):
            return value
        before, tried = self.changed, []
        for each, check in zip(meant, checks, strict=True):
            self.changed = []
            found = self.value(value, each, at)
            if self.changed and check.is_valid(found):
                tried.append((found, self.changed))
        if len(tried) != 1:
            self.changed = before
            return value
        found, changed = tried[0]
        self.changed = before + changed
        return found

    def _meant(self, text: str, kinds: frozenset[str]) -> Any:
        """Returns the value that a text stands for, if it is of one of the kinds; else the same object."""
        if "string" in kinds:
            return text
        self._text -= len(text)
        if self._text < 0:
            raise _TooMuch
        value: Any = _SPELLED.get(text)
        if value is None:
            try:
                value = decode_text(text)
                if isinstance(value, dict | list):
                    _require_each_member_once(text)
            except (MalformedMessage, ValueError):
                return text
        kind = json_type(value)
        if kind == "number" and "number" not in kinds and value.is_integer():
            value, kind = int(value), "integer"
        return value if kind in kinds and kind not in ("null", "string") else text

    def _look(self, looks: int) -> None:
        self._looks -= looks
        if self._looks < 0:
            raise _TooMuch


def _has_more_values(value: Any, most: int) -> bool:
    """Whether a JSON value has more than ``most`` values in it, itself included."""
    count, pending = 1, [value]
    while pending and count <= most:
        each = pending.pop()
        if isinstance(each, dict | list):
            count += len(each)
            if count <= most:
                pending += each.values() if isinstance(each, dict) else each
    return count > most


def _require_each_member_once(text: str) -> None:
    """Raises `ValueError` for an object with a member twice: which one is meant is not certain."""
    # Imported where it is used: most servers are never sent arguments of the wrong type.
    importlib.import_module("json").loads(text, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
