"""Compiles JSON Schemas from untrusted sources: 2020-12 and earlier drafts.

A schema may come from a peer or a file, so nothing that it refers to is loaded from the network or from disk, patterns
run in a linear-time engine, and a schema that is too deep, too big or too costly is refused before it is compiled.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import Any, NoReturn

import attrs

from mcp_actors._schema.complexity import measure
from mcp_actors._schema.explain import Problem, explain

__all__ = [
    "MAX_DEPTH",
    "MAX_EVALUATIONS",
    "MAX_PATTERNS",
    "MAX_PROBLEMS",
    "MAX_VALUES",
    "Validator",
    "compile_schema",
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
        ValueError: for a value that is no JSON Schema, an unsupported dialect, a reference that leads out of the
            document, a pattern that needs backtracking (look-around, back-references), and a schema over the bounds
            above.
    """
    _check_bounds(schema)
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
    return Validator(compiled, cost.loops)


@attrs.define(frozen=True, repr=False, eq=False)
class Validator:
    """A compiled schema. Immutable, so it may be shared between tasks and threads."""

    _compiled: Any
    _loops: int

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
            return [Problem("", f"is no JSON value that can be checked: {error}")]

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


def _library() -> Any:
    """The library that validates, which a server whose schemas all come from type hints does not need."""
    return importlib.import_module("jsonschema_rs")


def _check_bounds(schema: Any) -> None:
    count = patterns = 0
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            patterns += "pattern" in value
            several = value.get("patternProperties")
            patterns += len(several) if isinstance(several, dict) else 0
            if not all(isinstance(name, str) for name in value):
                raise ValueError("the schema is no JSON: a member name is not a string")
            stack.extend((member, depth + 1) for member in value.values())
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif value is not None and not isinstance(value, (str, int, float)):
            raise ValueError(f"the schema is no JSON: it holds a {type(value).__name__}")
        if count + len(stack) > MAX_VALUES:
            raise ValueError(f"the schema holds more than {MAX_VALUES} values")
    if patterns > MAX_PATTERNS:
        raise ValueError(f"the schema holds more than {MAX_PATTERNS} patterns")


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
    return f"this is no valid JSON Schema, at /{steps}: {error.message}"


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
