"""Bounds the number of times that a validator may have to check one and the same value.

References let a small schema stand for a huge one: 40 definitions that each say ``allOf`` of two references to the next
one ask for 2⁴⁰ checks. So the number is computed from the schema before anything is compiled. References that close a
cycle are counted separately: the validator remembers its verdicts for those, but not its explanations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

__all__ = ["Cost", "measure"]

# The schemas of these keywords apply to the same value as the schema itself.
_SAME_PLACE_ONE = ("not", "if", "then", "else")
_SAME_PLACE_MANY = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_NAMED = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# These apply to a member or an item, no two of them to the same one.
_EXCLUSIVE_ONE = ("additionalProperties", "additionalItems", "items")
_EXCLUSIVE_MANY = ("prefixItems", "items")
# These apply to a member or an item, in addition to the ones above.
_OVERLAPPING_ONE = ("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")


class Cost(msgspec.Struct, frozen=True):
    """The cost of applying a schema.

    ``evaluations`` bounds the checks of any one value. ``loops`` is the number of those that start again at a schema
    that is being applied already: with two or more, the work can double with every level of the instance.
    """

    evaluations: int
    loops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.evaluations + other.evaluations, self.loops + other.loops)

    def __or__(self, other: Cost) -> Cost:
        return Cost(max(self.evaluations, other.evaluations), max(self.loops, other.loops))


_NO_COST = Cost(0, 0)
_ONE = Cost(1, 0)
_LOOP = Cost(0, 1)


class _StackEntry(msgspec.Struct):
    """A schema whose subschemas are being measured, with the cost that was added up so far."""

    schema: dict[str, Any]
    below: Iterator[tuple[dict[str, Any], bool]]
    total: Cost = _ONE
    exclusive: Cost = _NO_COST
    awaiting_exclusive: bool = False

    def add(self, cost: Cost) -> None:
        if self.awaiting_exclusive:
            self.exclusive |= cost
        else:
            self.total += cost


def measure(schema: dict[str, Any] | bool) -> Cost:
    """Computes the cost of a schema, in time linear in its size."""
    if not isinstance(schema, dict):
        return _ONE
    targets = _ReferenceTargets.read(schema)
    costs: dict[int, Cost] = {}
    entered = {id(schema)}
    stack = [_StackEntry(schema, _below(schema, targets))]
    while True:
        entry = stack[-1]
        for child, exclusive in entry.below:
            entry.awaiting_exclusive = exclusive
            if id(child) in costs:
                entry.add(costs[id(child)])
            elif id(child) in entered:
                entry.add(_LOOP)
            else:
                entered.add(id(child))
                stack.append(_StackEntry(child, _below(child, targets)))
                break
        else:
            stack.pop()
            cost = costs[id(entry.schema)] = entry.total + entry.exclusive
            if not stack:
                return cost
            stack[-1].add(cost)


def _below(schema: dict[str, Any], targets: _ReferenceTargets) -> Iterator[tuple[dict[str, Any], bool]]:
    """The subschemas of a schema, each with whether it applies to a value that no other one so marked applies to."""
    for keyword in _REFERENCES:
        reference = schema.get(keyword)
        if isinstance(reference, str):
            yield from ((target, False) for target in targets.of(reference))
    for keyword in _SAME_PLACE_ONE + _OVERLAPPING_ONE:
        yield from _schemas([schema.get(keyword)], False)
    for keyword in _SAME_PLACE_MANY:
        yield from _schemas(schema.get(keyword), False)
    for keyword in (*_SAME_PLACE_NAMED, "patternProperties"):
        yield from _schemas(_members(schema, keyword), False)
    for keyword in _EXCLUSIVE_ONE:
        yield from _schemas([schema.get(keyword)], True)
    for keyword in _EXCLUSIVE_MANY:
        yield from _schemas(schema.get(keyword), True)
    yield from _schemas(_members(schema, "properties"), True)


def _schemas(found: Any, exclusive: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    if isinstance(found, list):
        yield from ((each, exclusive) for each in found if isinstance(each, dict))


def _members(schema: dict[str, Any], keyword: str) -> list[Any]:
    members = schema.get(keyword)
    return list(members.values()) if isinstance(members, dict) else []


class _ReferenceTargets(msgspec.Struct):
    """The schemas of a document that its references may lead to.

    Base URIs are not resolved: a reference is taken to lead to every resource of the document in which its fragment
    exists, and their costs are added. That can only overestimate.
    """

    resources: list[dict[str, Any]]
    anchors: dict[str, list[dict[str, Any]]]
    known: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)

    @classmethod
    def read(cls, schema: dict[str, Any]) -> _ReferenceTargets:
        found = cls([schema], {})
        stack: list[Any] = [schema]
        while stack:
            value = stack.pop()
            if isinstance(value, dict):
                if value is not schema and any(isinstance(value.get(word), str) for word in ("$id", "id")):
                    found.resources.append(value)
                for word in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    name = value.get(word)
                    if isinstance(name, str):
                        found.anchors.setdefault(name.removeprefix("#"), []).append(value)
                stack.extend(value.values())
            elif isinstance(value, list):
                stack.extend(value)
        return found

    def of(self, reference: str) -> list[dict[str, Any]]:
        if reference not in self.known:
            self.known[reference] = self._find(reference)
        return self.known[reference]

    def _find(self, reference: str) -> list[dict[str, Any]]:
        fragment = unquote(reference.partition("#")[2])
        if not fragment:
            return self.resources
        if not fragment.startswith("/"):
            return self.anchors.get(fragment, [])
        steps = [step.replace("~1", "/").replace("~0", "~") for step in fragment[1:].split("/")]
        reached = (_walk(resource, steps) for resource in self.resources)
        return [target for target in reached if target is not None]


def _walk(value: Any, steps: list[str]) -> dict[str, Any] | None:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value if isinstance(value, dict) else None
