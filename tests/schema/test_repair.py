"""Arguments of another type: what is repaired, what stays, and that what fits is never changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._schema.repair import MOST_TEXT, Repair
from mcp_actors._schema.validate import Validator, compile_schema

INT, TEXT, NUMBER, BOOLEAN = ({"type": kind} for kind in ("integer", "string", "number", "boolean"))
LIST = {"type": "array", "items": TEXT}
POINT = {"type": "object", "properties": {"x": INT, "y": INT}, "required": ["x"]}
LINE = {
    "type": "object",
    "properties": {"from": POINT, "to": POINT, "kind": {"const": "line"}},
    "required": ["kind"],
}
DOT = {"type": "object", "properties": {"at": POINT, "kind": {"const": "dot"}}, "required": ["kind"]}


def repaired(schema: dict[str, Any], value: Any, *, required: bool = True, **whole: Any) -> Any:
    """What becomes of one argument, and where it is different; ``None`` if nothing is."""
    whole |= {"type": "object", "properties": {"a": schema}, "required": ["a"] if required else []}
    arguments = {"a": value}
    before = copy.deepcopy(arguments)
    found = Repair(whole)(arguments)
    assert arguments == before
    return None if found is None else (found.arguments.get("a", "left out"), " ".join(found.paths))


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        (INT, "3", (3, "a")),
        (INT, " -12 ", (-12, "a")),
        (INT, "3.0", (3, "a")),
        (NUMBER, "3", (3, "a")),
        (NUMBER, "1.5e3", (1500.0, "a")),
        (BOOLEAN, "true", (True, "a")),
        (BOOLEAN, "False", (False, "a")),
        (LIST, '["x", "3"]', (["x", "3"], "a")),
        (POINT, '{"x": 1}', ({"x": 1}, "a")),
        # What is inside may be of another type as well.
        (POINT, '{"x": "1"}', ({"x": 1}, "a a.x")),
        (POINT, {"x": "1", "y": "2"}, ({"x": 1, "y": 2}, "a.x a.y")),
        ({"type": "array", "items": INT}, ["1", 2, "3"], ([1, 2, 3], "a[0] a[2]")),
        (
            {"type": "array", "prefixItems": [TEXT, INT], "items": BOOLEAN},
            ["1", "2", "true"],
            (["1", 2, True], "a[1] a[2]"),
        ),
        ({"type": "object", "additionalProperties": INT}, {"b": "1"}, ({"b": 1}, "a.b")),
        ({"enum": [1, 2]}, "2", (2, "a")),
        ({"anyOf": [INT, {"type": "null"}]}, "3", (3, "a")),
        ({"anyOf": [POINT, {"type": "null"}]}, {"x": "3"}, ({"x": 3}, "a.x")),
        ({"allOf": [{"type": ["integer", "null"]}, {"minimum": 1}]}, "3", (3, "a")),
        # Of several alternatives the only one that fits then.
        (
            {"anyOf": [LINE, DOT]},
            {"kind": "dot", "at": {"x": "1"}},
            ({"kind": "dot", "at": {"x": 1}}, "a.at.x"),
        ),
    ],
)
def test_what_is_repaired(schema: dict[str, Any], value: Any, found: Any) -> None:
    assert repaired(schema, value) == found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TEXT, "3"),
        ({}, "3"),
        ({"type": ["string", "integer"]}, "3"),
        ({"anyOf": [TEXT, INT]}, "3"),
        ({"type": "string", "format": "date-time"}, "3"),
        # Not JSON, or not only one value.
        *(
            (INT, value)
            for value in ("", "three", "03", "+3", "0x3", "1_000", "3 4", "NaN", "3.5", "Infinity", "null")
        ),
        (BOOLEAN, "yes"),
        (BOOLEAN, "1"),
        (BOOLEAN, 1),
        (INT, True),
        (INT, 3.0),
        (INT, "true"),
        # A single value is never made a list.
        (LIST, "x"),
        (LIST, 3),
        (LIST, '"x"'),
        (LIST, "a,b"),
        (POINT, '{"x": 1, "x": 2}'),
        (POINT, "[" * 100_000),
        (POINT, json.dumps({"x": 1, "y": " " * MOST_TEXT})),
        # Nobody knows which of them is meant.
        (
            {
                "anyOf": [
                    {"properties": {"b": INT}, "type": "object"},
                    {"properties": {"b": BOOLEAN}, "type": "object"},
                ]
            },
            {"b": "x"},
        ),
        (
            {
                "anyOf": [
                    {"type": "object", "properties": {"b": INT}},
                    {"type": "object", "properties": {"c": INT}, "required": ["c"]},
                ]
            },
            {"b": "1", "c": "1"},
        ),
        ({"$ref": "https://example.com/elsewhere"}, "3"),
        ({"type": "object", "patternProperties": {"^b": TEXT}, "additionalProperties": INT}, {"b": "1"}),
    ],
)
def test_what_stays(schema: dict[str, Any], value: Any) -> None:
    assert repaired(schema, value) is None


@pytest.mark.parametrize("value", ["1e999", "-1e999"])
def test_a_number_that_a_message_cannot_hold_is_none(value: str) -> None:
    assert repaired(NUMBER, value) is None


def test_a_text_obeys_the_limits_of_messages() -> None:
    nested: dict[str, Any] = {"type": "array", "items": {"$ref": "#/$defs/N"}}
    assert repaired({"$ref": "#/$defs/N"}, "[" * 9 + "]" * 9, **{"$defs": {"N": nested}}) is not None
    assert repaired({"$ref": "#/$defs/N"}, "[" * 900 + "]" * 900, **{"$defs": {"N": nested}}) is None
    assert repaired(LIST, '["\\ud800"]') is None


def test_alternatives_of_one_type_are_told_from_those_of_another() -> None:
    lists = [{"type": "array", "items": INT, "maxItems": 1}, {"type": "array", "items": BOOLEAN}]
    repair = Repair({"type": "object", "properties": {"a": {"anyOf": [LINE, DOT, *lists]}}})
    assert repair({"a": {"kind": "dot", "at": {"x": "1"}}}) == (
        {"a": {"kind": "dot", "at": {"x": 1}}},
        ["a.at.x"],
    )
    assert repair({"a": ["true", "false"]}) == ({"a": [True, False]}, ["a[0]", "a[1]"])
    assert repair({"a": ["7"]}) == ({"a": [7]}, ["a[0]"])
    assert repair({"a": [7]}) is None


def test_alternatives_inside_of_alternatives_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level has two ways to read the next one, so sixty levels would take for ever."""
    looks = []
    monkeypatch.setattr(Validator, "is_valid", lambda *_: looks.append(1))
    sides = {each: {"$ref": "#/$defs/Node"} for each in ("left", "right")}
    node = {"anyOf": [{"type": "object", "properties": {**sides, f"is_{each}": INT}} for each in "ab"]}
    value: Any = {"is_a": "x", "is_b": "x"}
    for _ in range(60):
        value = {"left": value, "is_a": "1"}
    assert repaired({"$ref": "#/$defs/Node"}, value, **{"$defs": {"Node": node}}) is None
    assert 0 < len(looks) < 2000


def test_types_of_alternatives_that_lead_round_are_looked_up_once() -> None:
    both = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}
    assert repaired({"$ref": "#/$defs/A"}, "3", **{"$defs": {"A": both}}) is None


def test_what_is_large_is_not_looked_at() -> None:
    numbers = {"type": "array", "items": INT}
    assert repaired(numbers, ["1"] * 900) is not None
    assert repaired(numbers, ["1"] * 1000) is None
    assert repaired(numbers, json.dumps(["1"] * 5000)) is None
    assert repaired({"type": "array", "items": BOOLEAN}, [f'"{"x" * 1000}"'] * 300) is None
    # A long text where text is taken is of no weight.
    assert repaired(TEXT, "x" * 2 * MOST_TEXT) is None
    whole = {"type": "object", "properties": {"text": TEXT, "number": INT}}
    assert Repair(whole)({"text": "x" * 2 * MOST_TEXT, "number": "1"}) is not None


def test_few_and_short_paths_are_told() -> None:
    name = "n" * 100_000
    schema = {"type": "object", "additionalProperties": {"type": "array", "items": INT}}
    found = Repair(schema)({name: ["1"] * 500})
    assert found is not None
    assert found.arguments == {name: [1] * 500}
    assert len(found.paths) == 10
    assert max(map(len, found.paths)) <= 200


def test_a_null_is_left_out_where_a_member_is_optional_and_takes_none() -> None:
    assert repaired(INT, None, required=False) == ("left out", "a")
    assert repaired(INT, None) is None
    assert repaired({"type": ["integer", "null"]}, None, required=False) is None
    assert repaired({}, None, required=False) is None


def test_references_are_followed_round_circles_too() -> None:
    tree = {
        "type": "object",
        "properties": {"value": INT, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    }
    value = {"value": "1", "children": [{"value": "2"}]}
    found = repaired({"$ref": "#/$defs/Tree"}, value, **{"$defs": {"Tree": tree}})
    assert found == ({"value": 1, "children": [{"value": 2}]}, "a.value a.children[0].value")
    assert repaired({"$ref": "#/$defs/A"}, "3", **{"$defs": {"A": {"$ref": "#/$defs/A"}}}) is None
    assert (
        repaired({"$ref": "#/$defs/A"}, "3", **{"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}) is None
    )


def schemas(depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.sampled_from(
        [
            INT,
            TEXT,
            NUMBER,
            BOOLEAN,
            {},
            {"type": "null"},
            {"enum": [1, "a", None]},
            {"type": ["integer", "null"]},
            {"minimum": 2, "type": "integer"},
        ]
    )
    if not depth:
        return leaves
    inner = schemas(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(
            lambda a, b, needed: {"type": "object", "properties": {"a": a, "b": b}, "required": needed},
            inner,
            inner,
            st.sampled_from([[], ["a"]]),
        ),
        st.builds(
            lambda a, b, word: {word: [a, b]}, inner, inner, st.sampled_from(["anyOf", "oneOf", "allOf"])
        ),
        st.builds(
            lambda a, b: {"type": "object", "properties": {"a": a}, "additionalProperties": b}, inner, inner
        ),
    )


def as_models_write(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        inner.map(json.dumps),
    )


VALUES = st.recursive(
    st.sampled_from([0, 1, 3, 2.5, True, None, "a", "1", "3", "true", "[]", "{}"]),
    as_models_write,
    max_leaves=6,
)


@given(schema=schemas(), values=st.lists(VALUES, max_size=6))
def test_what_fits_is_never_changed(schema: dict[str, Any], values: list[Any]) -> None:
    whole = {"type": "object", "properties": {"a": schema}}
    check, repair = compile_schema(whole), Repair(whole)
    for value in values:
        if check.is_valid({"a": value}):
            assert repair({"a": value}) is None
