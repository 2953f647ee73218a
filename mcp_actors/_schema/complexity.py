"""How often a validator may have to look at one and the same place of an instance.

References make a small schema stand for a huge one: 40 definitions that each say ``allOf`` of two references to the
next one ask for 2⁴⁰ checks. So the fan-out is measured here, before anything is compiled. References that close a
cycle are counted apart: the validator remembers its verdicts for those, though not its explanations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import attrs

__all__ = ["Cost", "measure"]

# Applied to the very value that the schema itself is applied to.
_SAME_PLACE_ONE = ("not", "if", "then", "else")
_SAME_PLACE_MANY = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_NAMED = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Applied to a member or an item, and no two of them to the same one.
_EXCLUSIVE_ONE = ("additionalProperties", "additionalItems", "items")
_EXCLUSIVE_MANY = ("prefixItems", "items")
# Applied to a member or an item in addition to those above.
_OVERLAPPING_ONE = ("contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")


@attrs.frozen
class Cost:
    """``evaluations`` bounds the checks of any one place of an instance; ``loops`` is how many of them start over at
    a schema that is being applied already: with two or more, work can double with every level of the instance."""

    evaluations: int
    loops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.evaluations + other.evaluations, self.loops + other.loops)

    def __or__(self, other: Cost) -> Cost:
        return Cost(max(self.evaluations, other.evaluations), max(self.loops, other.loops))


_NOTHING = Cost(0, 0)
_ONE = Cost(1, 0)
_LOOP = Cost(0, 1)


@attrs.define
class _Visit:
    """One schema on the way down: what is still to be added up below it."""

    schema: dict[str, Any]
    below: Iterator[tuple[dict[str, Any], bool]]
    total: Cost = _ONE
    exclusive: Cost = _NOTHING
    awaiting_exclusive: bool = False

    def add(self, cost: Cost) -> None:
        if self.awaiting_exclusive:
            self.exclusive |= cost
        else:
            self.total += cost


def measure(schema: dict[str, Any] | bool) -> Cost:
    """Measures a schema in time linear in its size."""
    if not isinstance(schema, dict):
        return _ONE
    targets = _Targets.read(schema)
    costs: dict[int, Cost] = {}
    entered = {id(schema)}
    visits = [_Visit(schema, _below(schema, targets))]
    while True:
        visit = visits[-1]
        for child, exclusive in visit.below:
            visit.awaiting_exclusive = exclusive
            if id(child) in costs:
                visit.add(costs[id(child)])
            elif id(child) in entered:
                visit.add(_LOOP)
            else:
                entered.add(id(child))
                visits.append(_Visit(child, _below(child, targets)))
                break
        else:
            visits.pop()
            cost = costs[id(visit.schema)] = visit.total + visit.exclusive
            if not visits:
                return cost
            visits[-1].add(cost)


def _below(schema: dict[str, Any], targets: _Targets) -> Iterator[tuple[dict[str, Any], bool]]:
    """The schemas that this one applies, each with whether it excludes the others that are so marked."""
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


@attrs.define
class _Targets:
    """Where references may lead.

    Bases are not resolved: a reference counts for every resource of the document in which its fragment exists, and
    the dearest of them is what it costs. That can only overestimate.
    """

    resources: list[dict[str, Any]]
    anchors: dict[str, list[dict[str, Any]]]
    known: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)

    @classmethod
    def read(cls, schema: dict[str, Any]) -> _Targets:
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
