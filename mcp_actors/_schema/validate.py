"""Compiles JSON Schemas from untrusted sources: 2020-12 and earlier drafts.

A schema may come from a peer or a file, so nothing that it refers to is loaded from the network or from disk, patterns
run in a linear-time engine, and a schema that is too deep, too big or too costly is refused before it is compiled.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar
from urllib.parse import unquote

import msgspec

__all__ = [
    "MAX_DEPTH",
    "MAX_EVALUATIONS",
    "MAX_PATTERNS",
    "MAX_PROBLEMS",
    "MAX_VALUES",
    "MOST_COMPILED",
    "CompiledSchemas",
    "Cost",
    "Problem",
    "Validator",
    "compile_schema",
    "explain",
    "json_type",
    "measure",
    "path_text",
]


# Levels of nesting of the schema document. Generators write about 20 at most for real programs.
MAX_DEPTH = 64
# JSON values in the document. The largest published schemas have some tens of thousands.
MAX_VALUES = 50_000
# Each pattern is an automaton of its own, of at most PATTERN_BYTES.
MAX_PATTERNS = 500
# Checks of one value. References that fan out (`allOf` of two references to `allOf` of two …) multiply them: 40 short
# lines would then run for a day.
MAX_EVALUATIONS = 5_000
# Bytes of one compiled pattern.
PATTERN_BYTES = 1 << 20
# Bytes that a compiled schema has, and for each JSON value in it, as measured and rounded up.
_SCHEMA_BYTES = 4096
_VALUE_BYTES = 256
# Bytes of compiled schemas of peers that are kept for their next use. Patterns count as the longest, and few need a
# hundredth of that: 128 tools with a pattern each, or 10,000 without, are kept in any case.
MOST_COMPILED = 128 << 20
# A caller corrects a few things at a time.
MAX_PROBLEMS = 10
# Size, in characters plus JSON values, above which the validator is asked for the first error only. It builds all
# errors at once, each with a copy of the value that the error is about.
MAX_FULL_REPORT = 50_000
# Rounds within which a schema that refers to itself twice or more must be explained.
MAX_RESTARTS = 10_000

_DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
    "http://json-schema.org/draft-07/schema": "draft-07",
    "http://json-schema.org/draft-06/schema": "draft-06",
    "http://json-schema.org/draft-04/schema": "draft-04",
}


def compile_schema(schema: dict[str, Any] | bool) -> Validator:
    """Compiles a schema. ``$schema`` names its dialect; the default is 2020-12.

    Raises:
        ValueError: for a value that is not a JSON Schema, an unsupported dialect, a reference that leads out of the
            document, a pattern that needs backtracking (look-around, back-references), and a schema over the bounds
            above.
    """
    weight = _weight_within_bounds(schema)
    _check_dialect(schema)
    cost = measure(schema)
    if cost.evaluations > MAX_EVALUATIONS:
        raise ValueError(
            f"the schema is too costly: its references and alternatives multiply to more than {MAX_EVALUATIONS} checks"
            " of one and the same value"
        )
    library = _library()
    try:
        compiled = library.validator_for(
            schema,
            validate_formats=False,  # an annotation (JSON Schema 2020-12 Validation, section 7.2)
            retriever=_refuse,
            mask="the value",
            pattern_options=library.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES),
        )
    except (library.ValidationError, library.ReferencingError, ValueError) as error:
        raise ValueError(_compile_failure(error)) from None
    return Validator(compiled, cost.loops, weight)


class Validator(msgspec.Struct, frozen=True, eq=False):
    """A compiled schema. Immutable, so it may be shared between tasks and threads."""

    _compiled: Any
    _loops: int
    weight: int
    """The bytes that it and its schema may have, estimated."""

    def is_valid(self, value: Any) -> bool:
        """Whether a JSON value (dict, list, str, int, float, bool, None) fits. Stops at the first error."""
        try:
            fits: bool = self._compiled.is_valid(value)
        except ValueError:  # no JSON value, or nested deeper than any message may be
            return False
        return fits

    def findings(self, value: Any) -> list[Problem]:
        """Returns at most `MAX_PROBLEMS` things that are wrong with ``value``, with their paths; empty if it fits."""
        if self.is_valid(value):
            return []
        try:
            return list(itertools.islice(self._explain(value), MAX_PROBLEMS))
        except ValueError as error:
            return [Problem("", f"is not a JSON value that can be checked: {error}")]

    def problems(self, value: Any) -> list[str]:
        """Returns the findings as lines of text, each with its path first."""
        return [str(finding) for finding in self.findings(value)]

    def _explain(self, value: Any) -> Iterator[Problem]:
        size, depth = _extent(value)
        if self._loops > 1 and self._loops**depth > MAX_RESTARTS:
            yield Problem(
                "", f"does not fit the schema, and is nested too deep ({depth} levels) to say where"
            )
        elif size <= MAX_FULL_REPORT:
            yield from explain(self._compiled.iter_errors(value))
        else:
            try:
                self._compiled.validate(value)
            except _library().ValidationError as error:
                yield from explain([error])

    def __repr__(self) -> str:
        return f"<Validator {type(self._compiled).__name__.removesuffix('Validator')}>"


CompiledT = TypeVar("CompiledT")


class CompiledSchemas(Generic[CompiledT]):
    """The compiled forms of schemas that peers have listed, those that were used last.

    A peer lists as many as it likes, and a caller uses them all: what weighs more than `MOST_COMPILED` together is
    dropped, but for the last one, and made again when it is used next.
    """

    def __init__(self) -> None:
        # By the identity of the schema, which lives as long as its entry; with the weight.
        self._kept: OrderedDict[int, tuple[dict[str, Any], CompiledT, int]] = OrderedDict()
        self._weight = 0

    def __repr__(self) -> str:
        return f"<CompiledSchemas {len(self._kept)} weight={self._weight}>"

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, schema: dict[str, Any], make: Callable[[], tuple[CompiledT, int]]) -> CompiledT:
        """Returns what was made of a schema, which must not be changed; ``make`` makes it, and says what it weighs."""
        key = id(schema)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found[1]
        compiled, weight = make()
        self._kept[key] = schema, compiled, weight
        self._weight += weight
        while self._weight > MOST_COMPILED and len(self._kept) > 1:
            self._weight -= self._kept.popitem(last=False)[1][2]
        return compiled

    def clear(self) -> None:
        """Drops everything."""
        self._kept.clear()
        self._weight = 0


def _library() -> Any:
    """The library that validates, which a server whose schemas all come from type hints does not need."""
    return importlib.import_module("jsonschema_rs")


def _weight_within_bounds(schema: Any) -> int:
    """Returns an estimate of the bytes of a schema and its compiled form; raises `ValueError` over the bounds."""
    count = patterns = characters = 0
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            patterns += "pattern" in value
            several = value.get("patternProperties")
            patterns += len(several) if isinstance(several, dict) else 0
            if not all(isinstance(name, str) for name in value):
                raise ValueError("the schema is not JSON: a member name is not a string")
            characters += sum(map(len, value))
            stack.extend((member, depth + 1) for member in value.values())
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif value is not None and not isinstance(value, int | float):
            raise ValueError(f"the schema is not JSON: it holds a {type(value).__name__}")
        if count + len(stack) > MAX_VALUES:
            raise ValueError(f"the schema holds more than {MAX_VALUES} values")
    if patterns > MAX_PATTERNS:
        raise ValueError(f"the schema holds more than {MAX_PATTERNS} patterns")
    return _SCHEMA_BYTES + 4 * characters + count * _VALUE_BYTES + patterns * PATTERN_BYTES


def _check_dialect(schema: dict[str, Any] | bool) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object or a boolean, not a {type(schema).__name__}")
    if "$schema" not in schema:
        return
    dialect = schema["$schema"]
    if not isinstance(dialect, str) or dialect.removesuffix("#") not in _DIALECTS:
        known = ", ".join(_DIALECTS.values())
        raise ValueError(f"the JSON Schema dialect {dialect!r} is not supported; supported: {known}")


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"schemas outside the document are never fetched: {uri}")


def _compile_failure(error: Exception) -> str:
    if not isinstance(error, _library().ValidationError):
        return f"the schema cannot be compiled: {error}"
    kind: Any = error.kind
    if kind.name == "format" and kind.format == "regex":
        return (
            f"the pattern {error.instance!r} cannot be used: it is malformed, too big, or needs look-around or"
            " back-references, which the linear-time engine does not have"
        )
    if kind.name == "$ref":
        return f"a reference of the schema cannot be resolved: {error.message}"
    steps = "/".join(str(step) for step in error.instance_path)
    return f"this is not a valid JSON Schema, at /{steps}: {error.message}"


def _extent(value: Any) -> tuple[int, int]:
    """The size of a value in characters plus JSON values, and its depth; counted no further than the limits need."""
    size = deepest = 0
    stack = [(value, 0)]
    while stack and size <= MAX_FULL_REPORT:
        value, depth = stack.pop()
        size += 1
        deepest = max(deepest, depth)
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            size += sum(len(name) for name in value if isinstance(name, str))
            stack.extend((member, depth + 1) for member in value.values())
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
    return size, deepest if size <= MAX_FULL_REPORT else MAX_DEPTH


# -- Explanations why a value does not fit a schema, for a model or a person who has to correct it ---
#
# The validator's own messages quote whole values and never say what an alternative expected. These name the path,
# what is expected and what was found.

# Characters of a quoted value and entries of a list: more does not help to correct a call.
MAX_QUOTED = 80
MAX_LISTED = 20

_PLAIN_NAME = r"[A-Za-z_][A-Za-z0-9_-]*\Z"


class SchemaError(Protocol):
    """One error of the validator, a library that is loaded with the first schema."""

    @property
    def kind(self) -> Any: ...
    @property
    def instance(self) -> Any: ...
    @property
    def instance_path(self) -> Sequence[str | int]: ...


class Problem(NamedTuple):
    """One thing that is wrong: ``path`` is where (``"city.names[0]"``, empty for the whole value), ``text`` is what."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def path_text(steps: Iterable[str | int], start: str = "") -> str:
    """Writes a path as in a program: ``rooms[0].name``, ``prices["big one"]``. ``start`` goes before it."""
    text = start
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.match(_PLAIN_NAME, step):
            text += f".{step}" if text else step
        else:
            text += f"[{_quoted(step)}]"
    return text


def json_type(value: Any) -> str:
    """Returns the JSON name of the type of a Python value: ``"integer"``, ``"null"``, ``"object"``…"""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name
    return type(value).__name__


_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (dict, "object"),
    ((list, tuple), "array"),
)


def explain(errors: Iterable[SchemaError], start: str = "") -> Iterator[Problem]:
    """Turns the validator's errors into problems, one for each offending value."""
    for error in errors:
        kind = error.kind
        here = path_text(error.instance_path, start)
        if kind.name in ("anyOf", "oneOf") and hasattr(kind, "context"):
            yield from _explain_alternatives(error, kind.context, start)
        elif kind.name == "required":
            yield Problem(path_text([kind.property], here), "is required but missing")
        elif kind.name in ("additionalProperties", "unevaluatedProperties"):
            for name in kind.unexpected[:MAX_LISTED]:
                yield Problem(path_text([name], here), "is not known here")
        else:
            word = _EXPLANATIONS.get(kind.name)
            yield Problem(here, word(error, kind) if word else f"breaks the rule {kind.name!r} of the schema")


def _explain_alternatives(
    error: SchemaError,
    context: Sequence[Sequence[SchemaError]],
    start: str,
) -> Iterator[Problem]:
    """Explains only the alternatives that the value was probably meant for, which are those of its own type."""
    here = path_text(error.instance_path, start)
    if not any(context):
        yield Problem(here, "fits more than one alternative where exactly one is allowed")
        return
    wanted: list[str] = []
    meant: list[Sequence[SchemaError]] = []
    for branch in context:
        mismatch = next((e for e in branch if _is_about(e, error) and e.kind.name == "type"), None)
        if mismatch is None:
            meant.append(branch)
        else:
            wanted += mismatch.kind.types
    if len(meant) == 1:
        yield from explain(meant[0], start)
    elif not meant:
        names = " or ".join(dict.fromkeys(wanted))
        yield Problem(here, f"expected {names}, got {json_type(error.instance)}")
    else:
        firsts = [
            next(explain(branch, start), Problem(here, "does not fit")) for branch in meant[:MAX_LISTED]
        ]
        reasons = list(dict.fromkeys(firsts))
        if len(reasons) == 1:
            yield reasons[0]
        else:
            yield Problem(here, f"fits none of the alternatives: {' / '.join(map(str, reasons))}")


def _is_about(inner: SchemaError, outer: SchemaError) -> bool:
    return len(inner.instance_path) == len(outer.instance_path)


def _quoted(value: Any) -> str:
    text: str = importlib.import_module("json").dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"


def _listed(values: Sequence[Any]) -> str:
    text = ", ".join(_quoted(value) for value in values[:MAX_LISTED])
    return text if len(values) <= MAX_LISTED else f"{text} and {len(values) - MAX_LISTED} more"


def _wrong_type(error: SchemaError, kind: Any) -> str:
    return f"expected {' or '.join(kind.types)}, got {json_type(error.instance)}"


def _bound(words: str) -> Callable[[SchemaError, Any], str]:
    return lambda error, kind: f"must be {words} {_quoted(kind.limit)}, got {_quoted(error.instance)}"


def _count(words: str, unit: str) -> Callable[[SchemaError, Any], str]:
    def explanation(error: SchemaError, kind: Any) -> str:
        value = error.instance
        came = f", has {len(value)}" if isinstance(value, (str, list, dict)) else ""
        return f"must have {words} {kind.limit} {unit}{came}"

    return explanation


_EXPLANATIONS: dict[str, Callable[[SchemaError, Any], str]] = {
    "type": _wrong_type,
    "enum": lambda error, kind: f"must be one of {_listed(kind.options)}, got {_quoted(error.instance)}",
    "const": lambda error, kind: f"must be {_quoted(kind.expected_value)}, got {_quoted(error.instance)}",
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("greater than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": lambda error, kind: (
        f"must be a multiple of {kind.multiple_of}, got {_quoted(error.instance)}"
    ),
    "minLength": _count("at least", "characters"),
    "maxLength": _count("at most", "characters"),
    "minItems": _count("at least", "items"),
    "maxItems": _count("at most", "items"),
    "additionalItems": _count("at most", "items"),
    "minProperties": _count("at least", "members"),
    "maxProperties": _count("at most", "members"),
    "pattern": lambda error, kind: (
        f"must match the pattern {_quoted(kind.pattern)}, got {_quoted(error.instance)}"
    ),
    "format": lambda error, kind: f"must be a valid {kind.format}, got {_quoted(error.instance)}",
    "uniqueItems": lambda error, kind: "has items that repeat",
    "contains": lambda error, kind: "lacks an item of the kind that must be among them",
    "falseSchema": lambda error, kind: "is not allowed here",
    "not": lambda error, kind: f"is one of the values that are ruled out: {_quoted(error.instance)}",
    "propertyNames": lambda error, kind: f"has a member name that is wrong: {next(explain([kind.error]))}",
    "unevaluatedItems": lambda error, kind: "has more items than are allowed",
}


# -- The cost of a schema: how often a validator may have to check one and the same value ---
#
# References let a small schema describe a huge one: 40 definitions that each say ``allOf`` of two references to the
# next one ask for 2⁴⁰ checks. So the number is computed from the schema before anything is compiled. References that
# close a cycle are counted separately: the validator remembers its verdicts for those, but not its explanations.

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
