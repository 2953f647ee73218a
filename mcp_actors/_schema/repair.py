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
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcp_actors._schema.references import definitions_of, target_of
from mcp_actors._schema.validate import Validator, compile_schema, json_type, path_text

__all__ = ["Repair", "Repaired"]


# Characters of a text that is read as JSON: a longer one would hold up other calls.
MOST_TEXT = 256 * 1024
# References and alternatives that are followed from one schema, which may lead in a circle.
_MOST_STEPS = 32

_ALL = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_SPELLED = {"True": True, "False": False}


class Repaired(NamedTuple):
    """Arguments that were repaired, and the paths of what is different in them."""

    arguments: dict[str, Any]
    paths: list[str]


class Repair:
    """Repairs what does not fit one schema. What it returns may not fit either, and is to be checked."""

    __slots__ = ("_definitions", "_schema", "_validators")

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._definitions = definitions_of(schema)
        # By the identity of a schema with alternatives, which lives as long as this.
        self._validators: dict[int, list[Validator]] = {}

    def __call__(self, arguments: dict[str, Any]) -> Repaired | None:
        """Returns the arguments with everything repaired that can be, ``None`` where that is nothing.

        ``arguments`` are not changed.
        """
        paths: list[str] = []
        found = self._value(arguments, self._schema, (), paths)
        return Repaired(found, paths) if paths else None

    def _value(self, value: Any, schema: Any, at: tuple[str | int, ...], paths: list[str]) -> Any:
        schema = self._resolved(schema)
        if schema is None:
            return value
        if isinstance(value, str):
            kinds = self._kinds(schema)
            if "string" in kinds:
                return value
            meant = _meant(value, kinds)
            if meant is value:
                return value
            paths.append(path_text(at))
            value = meant
        for several in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(several, list):
                value = self._alternative(value, schema, several, at, paths)
        for each in _list(schema.get("allOf")):
            value = self._value(value, each, at, paths)
        if isinstance(value, dict):
            return self._object(value, schema, at, paths)
        if isinstance(value, list):
            first = _list(schema.get("prefixItems"))
            rest = schema.get("items")
            return [
                self._value(each, first[index] if index < len(first) else rest, (*at, index), paths)
                for index, each in enumerate(value)
            ]
        return value

    def _object(
        self, value: dict[str, Any], schema: Mapping[str, Any], at: tuple[str | int, ...], paths: list[str]
    ) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        # What a pattern covers is not known without trying it.
        others = None if "patternProperties" in schema else schema.get("additionalProperties")
        required = _list(schema.get("required"))
        found = {}
        for name, each in value.items():
            member = properties.get(name, others)
            here = (*at, name)
            if each is None and name in properties and name not in required:
                resolved = self._resolved(member)
                if resolved is not None and "null" not in self._kinds(resolved):
                    paths.append(path_text(here))
                    continue
            found[name] = self._value(each, member, here, paths)
        return found

    def _alternative(
        self,
        value: Any,
        schema: dict[str, Any],
        several: Sequence[Any],
        at: tuple[str | int, ...],
        paths: list[str],
    ) -> Any:
        """Repairs an object or array by the only alternative that it can be meant for."""
        if not isinstance(value, dict | list):
            return value
        resolved = (self._resolved(each) for each in several)
        meant = [each for each in resolved if each is not None and json_type(value) in self._kinds(each)]
        if len(meant) == 1:
            return self._value(value, meant[0], at, paths)
        checks = self._checks(schema, meant)
        if checks is None or any(each.is_valid(value) for each in checks):
            return value
        tried: list[tuple[Any, list[str]]] = []
        for each, check in zip(meant, checks, strict=True):
            changes: list[str] = []
            found = self._value(value, each, at, changes)
            if changes and check.is_valid(found):
                tried.append((found, changes))
        if len(tried) != 1:
            return value
        paths += tried[0][1]
        return tried[0][0]

    def _checks(self, schema: dict[str, Any], meant: Sequence[dict[str, Any]]) -> list[Validator] | None:
        """Returns what tells whether a value fits each of the alternatives, ``None`` if that cannot be told."""
        known = self._validators.get(id(schema))
        if known is None:
            places: dict[str, Any] = {word: self._schema.get(word, {}) for word in ("$defs", "definitions")}
            try:
                known = [compile_schema({**each, **places}) for each in meant]
            except ValueError:
                return None
            self._validators[id(schema)] = known
        return known if len(known) == len(meant) else None

    def _kinds(self, schema: Mapping[str, Any], steps: int = 0) -> frozenset[str]:
        """The JSON types that a schema may take; all of them where that is not said."""
        if steps > _MOST_STEPS:
            return _ALL
        kinds = _ALL
        declared = schema.get("type")
        if isinstance(declared, str | list):
            named = (
                {declared}
                if isinstance(declared, str)
                else {each for each in declared if isinstance(each, str)}
            )
            kinds = frozenset(named | {"integer"} if "number" in named else named)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            kinds &= frozenset(map(json_type, values))
        for several in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(several, list):
                resolved = map(self._resolved, several)
                kinds &= frozenset().union(
                    *(_ALL if each is None else self._kinds(each, steps + 1) for each in resolved)
                )
        for each in map(self._resolved, _list(schema.get("allOf"))):
            if each is not None:
                kinds &= self._kinds(each, steps + 1)
        return kinds

    def _resolved(self, schema: Any) -> dict[str, Any] | None:
        """A schema that is an object, its reference followed; ``None`` for one of which nothing is known."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict):
                return None
            if "$ref" not in schema:
                return schema
            schema = self._definitions.get(target_of(schema))
        return None


def _meant(text: str, kinds: frozenset[str]) -> Any:
    """Returns the value that a text stands for, if it is of one of the kinds; else the same object."""
    if len(text) > MOST_TEXT:
        return text
    value: Any = _SPELLED.get(text)
    if value is None:
        # Imported where it is used: most servers are never sent arguments of the wrong type.
        loads = importlib.import_module("json").loads
        try:
            value = loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return text
    kind = json_type(value)
    if kind == "number" and "number" not in kinds and value.is_integer():
        value, kind = int(value), "integer"
    return value if kind in kinds and kind not in ("null", "string") else text


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice, so what is meant is not certain")
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
