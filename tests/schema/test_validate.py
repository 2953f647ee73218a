"""Schemas from elsewhere: what is refused, what is never fetched, and the words for what does not fit."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._schema.generate import Docstring, read_docstring
from mcp_actors._schema.validate import (
    MAX_DEPTH,
    MAX_PATTERNS,
    MAX_PROBLEMS,
    MAX_VALUES,
    MOST_COMPILED,
    CompiledSchemas,
    Problem,
    compile_schema,
    path_text,
)

PERSON = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True},
        "nick": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["age", "name"],
    "additionalProperties": False,
}


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ({"age": 1, "name": "n"}, []),
        ({"age": "3", "name": "n"}, ["age: expected integer, got string"]),
        ({"age": True, "name": "n"}, ["age: expected integer, got boolean"]),
        ({"age": -1, "name": "n"}, ["age: must be at least 0, got -1"]),
        ({}, ["age: is required but missing", "name: is required but missing"]),
        ({"age": 1, "name": "n", "zip": 1}, ["zip: is not known here"]),
        ({"age": 1, "name": ""}, ["name: must have at least 1 characters, has 0"]),
        ({"age": 1, "name": "n", "tags": ["x", "z"]}, ['tags[1]: must be one of "x", "y", got "z"']),
        ({"age": 1, "name": "n", "tags": ["x", "x"]}, ["tags: has items that repeat"]),
        ({"age": 1, "name": "n", "nick": 4}, ["nick: expected string or null, got integer"]),
        ([], ["expected object, got array"]),
    ],
)
def test_problems_name_the_place_what_is_wanted_and_what_came(value: Any, problems: list[str]) -> None:
    assert compile_schema(PERSON).problems(value) == problems


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"const": 1}, 2, "must be 1, got 2"),
        ({"maximum": 1}, 2, "must be at most 1, got 2"),
        ({"exclusiveMinimum": 1}, 1, "must be greater than 1, got 1"),
        ({"exclusiveMaximum": 1}, 1, "must be less than 1, got 1"),
        ({"multipleOf": 2}, 3, "must be a multiple of 2, got 3"),
        ({"maxItems": 1}, [1, 2], "must have at most 1 items, has 2"),
        ({"minItems": 1}, [], "must have at least 1 items, has 0"),
        ({"minProperties": 1}, {}, "must have at least 1 members, has 0"),
        ({"maxProperties": 0}, {"a": 1}, "must have at most 0 members, has 1"),
        ({"pattern": "^a"}, "b", 'must match the pattern "^a", got "b"'),
        ({"not": {"type": "null"}}, None, "is one of the values that are ruled out: null"),
        ({"contains": {"const": 1}}, [2], "lacks an item of the kind that must be among them"),
        ({"properties": {"a b": False}}, {"a b": 1}, '["a b"]: is not allowed here'),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            "has a member name that is wrong: must have at most 1",
        ),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2], "has more items than are allowed"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, "b: is not known here"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 3, "fits more than one alternative"),
        ({"anyOf": [{"type": "string"}, {"enum": [1, 2]}]}, 3, "must be one of 1, 2, got 3"),
        (
            {"anyOf": [{"minimum": 5}, {"multipleOf": 2}]},
            3,
            "fits none of the alternatives: must be at least 5, got 3",
        ),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "b: is required but missing"),
    ],
)
def test_every_rule_has_words(schema: dict[str, Any], value: Any, problem: str) -> None:
    problems = compile_schema(schema).problems(value)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


@pytest.mark.parametrize("value", [{"a"}, b"x", {1: 2}, object()])
def test_what_is_no_json_is_a_problem_not_an_exception(value: Any) -> None:
    validator = compile_schema({"properties": {"a": {"$ref": "#"}}})
    assert not validator.is_valid(value)
    assert validator.problems(value)


def test_2020_12_is_the_default_and_a_dialect_that_is_named_is_honoured() -> None:
    tuple_of_2020 = {"prefixItems": [{"type": "string"}]}
    assert compile_schema(tuple_of_2020).problems([1])
    older = {"$schema": "http://json-schema.org/draft-07/schema#", **tuple_of_2020}
    assert not compile_schema(older).problems([1])  # draft-07 has no such keyword


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-03/schema#", "https://example.com/mine", 5, None]
)
def test_an_unsupported_dialect_is_named(dialect: Any) -> None:
    with pytest.raises(ValueError, match=r"dialect .* is not supported; supported: 2020-12"):
        compile_schema({"$schema": dialect})


@pytest.mark.parametrize(
    "reference",
    ["file:///etc/passwd", "other.json", "#/$defs/none", "urn:a:b", "https://example.invalid/s.json#/x"],
)
def test_a_reference_that_leads_out_is_an_error_that_names_it(reference: str) -> None:
    with pytest.raises(ValueError, match="reference of the schema cannot be resolved") as caught:
        compile_schema({"type": "object", "properties": {"deep": {"items": {"$ref": reference}}}})
    assert reference.partition("#")[0] in str(caught.value)


def test_nothing_is_fetched() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    came: list[Any] = []

    def accept() -> None:
        try:
            came.append(listener.accept())
        except OSError:
            return

    thread = threading.Thread(target=accept)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
    with pytest.raises(ValueError, match="never fetched"):
        compile_schema({"$ref": url})
    with pytest.raises(ValueError, match="resolved"):
        compile_schema({"$id": url, "properties": {"a": {"$ref": "other.json"}}})
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()
    assert came == []


def test_references_inside_the_document_work() -> None:
    validator = compile_schema(
        {
            "$id": "https://example.com/root",
            "$defs": {"address": {"$anchor": "here", "required": ["street"]}},
            "properties": {"a": {"$ref": "#here"}, "b": {"$ref": "#/$defs/address"}},
        }
    )
    assert validator.problems({"a": {}, "b": {"street": 1}}) == ["a.street: is required but missing"]


@pytest.mark.parametrize(
    "schema", [5, [], "x", {"type": "strin"}, {"minimum": "3"}, {"properties": {"a": object()}}]
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"[Ss]chema"):
        compile_schema(schema)


def test_bounds() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH):
        deep = {"not": deep}
    with pytest.raises(ValueError, match="nested deeper than 64"):
        compile_schema(deep)
    with pytest.raises(ValueError, match="more than 50000 values"):
        compile_schema({"enum": list(range(MAX_VALUES + 1))})
    with pytest.raises(ValueError, match="more than 500 patterns"):
        compile_schema({"patternProperties": {f"x{i}": {} for i in range(MAX_PATTERNS + 1)}})
    endless: dict[str, Any] = {}
    endless["not"] = endless
    with pytest.raises(ValueError, match="nested deeper"):
        compile_schema(endless)


def test_patterns_run_in_linear_time() -> None:
    validator = compile_schema({"pattern": "^(a+)+$"})
    assert not validator.is_valid("a" * 100_000 + "b")
    for pattern in ("(?=a)b", r"(a)\1", "(a{1000}){1000}", "("):
        with pytest.raises(ValueError, match=r"pattern|schema"):
            compile_schema({"pattern": pattern})


@pytest.mark.parametrize("step", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_are_refused(step: str) -> None:
    bomb = {
        f"a{i}": {step: [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]} for i in range(40)
    }
    with pytest.raises(ValueError, match="too costly"):
        compile_schema({"$ref": "#/$defs/a0", "$defs": {**bomb, "a40": {}}})


def test_references_that_multiply_below_members_are_refused() -> None:
    bomb = {
        f"a{i}": {
            "properties": {"x": {"$ref": f"#a{i + 1}"}},
            "patternProperties": {"x": {"$ref": f"#a{i + 1}"}},
        }
        for i in range(40)
    }
    definitions = {name: {"$anchor": name, **body} for name, body in {**bomb, "a40": {}}.items()}
    with pytest.raises(ValueError, match="too costly"):
        compile_schema({"$ref": "#a0", "$defs": definitions})


def test_a_wide_honest_schema_is_not_taken_for_a_bomb() -> None:
    leaf = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/text"} for i in range(500)}}
    schema = {
        "type": "object",
        "properties": {f"m{i}": {"$ref": "#/$defs/leaf"} for i in range(500)},
        "$defs": {"leaf": leaf, "text": {"type": "string"}},
    }
    assert compile_schema(schema).problems({"m3": {"p4": 1}}) == ["m3.p4: expected string, got integer"]


TREE = {
    "anyOf": [
        {"type": "object", "properties": {"op": {"const": op}, "a": {"$ref": "#"}}, "required": ["a"]}
        for op in "xy"
    ]
}
TREE["anyOf"].append({"type": "string"})


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {
            "properties": {"a": {"$ref": "#"}},
            "patternProperties": {"a": {"$ref": "#"}},
            "type": ["object", "string"],
        },
        {"oneOf": [{"properties": {"a": {"$ref": "#"}}, "required": [name]} for name in "abc"]},
        {
            "$dynamicAnchor": "n",
            "allOf": [{"properties": {"a": {"$dynamicRef": "#n"}}}] * 2,
            "type": "object",
        },
    ],
)
def test_a_schema_that_leads_back_to_itself_is_explained_within_bounds(schema: dict[str, Any]) -> None:
    problems = compile_schema(schema).problems(nested(60, 3))
    assert problems == ["does not fit the schema, and is nested too deep (60 levels) to say where"]
    assert compile_schema(schema).problems(nested(3, 3)) not in ([], problems)


def test_a_plain_list_of_itself_is_explained_at_any_depth() -> None:
    node = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    assert compile_schema(node).problems(nested(60, 3)) == [
        f"{'.'.join('a' * 60)}: expected object, got integer"
    ]


def test_a_big_value_gets_its_first_problem_only() -> None:
    validator = compile_schema({"required": [f"n{i}" for i in range(1000)]})
    assert len(validator.problems({})) == MAX_PROBLEMS
    assert len(validator.problems({"x": "q" * 1_000_000})) == 1


def test_what_was_compiled_of_the_schemas_that_were_used_last_is_kept() -> None:
    kept, made = CompiledSchemas[str](), list[str]()
    schemas: list[dict[str, Any]] = [{"title": str(number)} for number in range(6)]

    def use(number: int, weight: int = MOST_COMPILED // 4) -> None:
        name = str(number)

        def make() -> tuple[str, int]:
            made.append(name)
            return name, weight

        assert kept.of(schemas[number], make) == name

    for number in (0, 1, 2, 3, 0, 4, 0, 2, 3, 4, 1):
        use(number)
    # The fifth took the place of 1, which then took that of 0.
    assert made == ["0", "1", "2", "3", "4", "1"]
    use(5, 2 * MOST_COMPILED)
    assert len(kept) == 1
    use(5)
    assert made[-1:] == ["5"]
    use(0)
    assert (made[-1], len(kept)) == ("0", 1)
    kept.clear()
    use(0)
    assert (made.count("0"), len(kept)) == (3, 1)


def test_a_schema_weighs_as_its_values_texts_and_patterns_do() -> None:
    def weight(schema: dict[str, Any]) -> int:
        return compile_schema(schema).weight

    empty = weight({})
    assert weight({"title": "x" * 1000}) >= empty + 1000
    assert weight({"properties": {"x" * 1000: {}}}) >= empty + 1000
    assert weight({"enum": list(range(100))}) >= empty + 100 * 100
    assert weight({"pattern": "a"}) >= empty + 1_000_000
    assert weight({"patternProperties": {"a": {}, "b": {}}}) >= empty + 2_000_000


def test_booleans_are_schemas() -> None:
    assert compile_schema(True).problems({"a": 1}) == []
    assert compile_schema(False).problems(None) == ["is not allowed here"]


def test_paths_read_like_code() -> None:
    assert path_text(["a", 0, "b c", "d"]) == 'a[0]["b c"].d'
    assert str(Problem("a", "is wrong")) == "a: is wrong"
    assert str(Problem("", "is wrong")) == "is wrong"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_any_schema_and_any_value_end_in_a_verdict(schema: Any, value: Any) -> None:
    try:
        validator = compile_schema(schema)
    except ValueError:
        return
    problems = validator.problems(value)
    assert validator.is_valid(value) == (not problems)
    assert json.dumps(problems)


# -- Docstrings of three styles, and of none -------------------------------------------------------------

GOOGLE = """Forecast for a city.

    Asks the nearest station.

    Args:
        city: Where, in
            any language.
        days (int, optional): How many: at most 14.
        *rest: Ignored.
        **more (dict[str, int]): Ignored, too.

    Returns:
        The forecast.

    Raises:
        ValueError: there is no such city

    Note:
        Stations sleep at night.
    """

NUMPY = """Forecast for a city.

    Asks the nearest station.

    Parameters
    ----------
    city : str
        Where, in
        any language.
    days : int, optional
        How many: at most 14.

        Never less than one.
    low, high : float
        The limits.

    Returns
    -------
    Forecast
        The forecast.

    Notes
    -----
    Stations sleep at night.
    """

REST = """Forecast for a city.

    Asks the nearest station.

    :param city: Where, in
        any language.
    :param int days: How many: at most 14.
    :type city: str
    :returns: The forecast.
    :raises ValueError: there is no such city
    """


def test_google() -> None:
    assert read_docstring(GOOGLE) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.\n\nNote:\n    Stations sleep at night.",
        {
            "city": "Where, in any language.",
            "days": "How many: at most 14.",
            "rest": "Ignored.",
            "more": "Ignored, too.",
        },
    )


def test_numpy() -> None:
    assert read_docstring(NUMPY) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.\n\nNotes\n-----\nStations sleep at night.",
        {
            "city": "Where, in any language.",
            "days": "How many: at most 14. Never less than one.",
            "low": "The limits.",
            "high": "The limits.",
        },
    )


def test_rest() -> None:
    assert read_docstring(REST) == Docstring(
        "Forecast for a city.\n\nAsks the nearest station.",
        {"city": "Where, in any language.", "days": "How many: at most 14."},
    )


@pytest.mark.parametrize("text", [None, "", "   \n "])
def test_nothing(text: str | None) -> None:
    assert read_docstring(text) == Docstring("", {})


def test_prose_that_looks_a_little_like_a_section_stays() -> None:
    text = """Runs this: that.

    The rule is:
        a: b
    Args are not a section here
    """
    assert read_docstring(text) == Docstring(
        "Runs this: that.\n\nThe rule is:\n    a: b\nArgs are not a section here", {}
    )


def test_a_section_ends_where_the_indentation_does() -> None:
    text = """Adds.

    Args:
      a: one

      b: two
    And that is all.
    """
    assert read_docstring(text) == Docstring("Adds.\n\nAnd that is all.", {"a": "one", "b": "two"})


def test_a_section_at_the_very_beginning() -> None:
    assert read_docstring("Args:\n    a: one") == Docstring("", {"a": "one"})


def test_a_parameter_on_the_next_line_and_one_without_words() -> None:
    assert read_docstring("X.\n\nArgs:\n    a:\n        one\n    b:\n") == Docstring("X.", {"a": "one"})


def test_attributes_of_classes_count_as_parameters() -> None:
    assert read_docstring("A point.\n\nAttributes:\n    x: abscissa").parameters == {"x": "abscissa"}


@given(st.text(alphabet="Args:\n -param:xReturns()*,", max_size=200))
def test_any_text_is_read(text: str) -> None:
    found = read_docstring(text)
    assert all(found.parameters.values())
