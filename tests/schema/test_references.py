"""Schemas without references: they mean the same, and are never much longer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._schema.references import without_references
from mcp_actors._schema.validate import compile_schema

INT, TEXT = {"type": "integer"}, {"type": "string"}
POINT = {"type": "object", "properties": {"x": INT, "y": INT}}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "object"}, {"type": "object"}),
        (
            {"properties": {"at": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": POINT}},
            {"properties": {"at": POINT}},
        ),
        # Definitions of definitions, and the place of older drafts.
        (
            {
                "items": {"$ref": "#/definitions/Line"},
                "definitions": {"Line": {"items": {"$ref": "#/definitions/Point"}}, "Point": POINT},
            },
            {"items": {"items": POINT}},
        ),
        # What is said at the reference counts for more, and what it demands holds as well.
        (
            {
                "properties": {"at": {"$ref": "#/$defs/Point", "description": "Where."}},
                "$defs": {"Point": {**POINT, "description": "A point."}},
            },
            {"properties": {"at": {**POINT, "description": "Where."}}},
        ),
        (
            {
                "properties": {"at": {"$ref": "#/$defs/Point", "properties": {"x": {"minimum": 1}}}},
                "$defs": {"Point": POINT},
            },
            {"properties": {"at": {"allOf": [POINT], "properties": {"x": {"minimum": 1}}}}},
        ),
        # A definition that contains itself stays, and nothing but it.
        (
            {
                "properties": {"root": {"$ref": "#/$defs/Tree"}, "at": {"$ref": "#/$defs/Point"}},
                "$defs": {"Tree": TREE, "Point": POINT},
            },
            {"properties": {"root": {"$ref": "#/$defs/Tree"}, "at": POINT}, "$defs": {"Tree": TREE}},
        ),
        # Names that are written in another way in a pointer.
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": INT}}, INT),
        # Data that looks like a reference, and members that are called like one.
        (
            {
                "default": {"$ref": "#/$defs/Point"},
                "properties": {"$ref": {"$ref": "#/$defs/Point"}, "default": {"$ref": "#/$defs/Point"}},
                "$defs": {"Point": POINT},
            },
            {"default": {"$ref": "#/$defs/Point"}, "properties": {"$ref": POINT, "default": POINT}},
        ),
        # What pydantic writes for a union that a member tells apart.
        (
            {
                "oneOf": [{"$ref": "#/$defs/A"}],
                "discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/A"}},
                "$defs": {"A": TEXT},
            },
            {"oneOf": [TEXT], "discriminator": {"propertyName": "kind"}},
        ),
        # References that lead elsewhere.
        (
            {"properties": {"a": INT, "b": {"$ref": "#/properties/a"}}, "$defs": {"Unused": INT}},
            {"properties": {"a": INT, "b": {"$ref": "#/properties/a"}}},
        ),
    ],
)
def test_what_is_written(schema: dict[str, Any], written: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert without_references(schema) == written
    assert json.dumps(schema) == before


def test_a_document_of_several_documents_stays_as_it_is() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"$id": "https://example.com/a", "type": "string"}}}
    assert without_references(schema) is schema


def test_a_schema_that_would_be_much_longer_is_not_written() -> None:
    used = {f"p{number}": {"$ref": "#/$defs/Long"} for number in range(20)}
    assert without_references({"properties": used, "$defs": {"Long": {"description": "x" * 400}}}) is None
    doubled = {
        f"d{n}": {"properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "ab"}} for n in range(60)
    }
    assert without_references({"$ref": "#/$defs/d0", "$defs": {**doubled, "d60": INT}}) is None


def test_a_chain_of_any_length_is_written_or_left_and_takes_no_stack() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)}
    assert without_references({"$ref": "#/$defs/d0", "$defs": {**chain, "d5000": INT}}) == INT
    deeper = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(5000)}
    assert without_references({"$ref": "#/$defs/d0", "$defs": {**deeper, "d5000": INT}}) is None


def test_what_leads_to_a_circle_is_written_and_the_circle_stays() -> None:
    tree = {"items": {"$ref": "#/$defs/Tree"}}
    schema = {"$ref": "#/$defs/Plan", "$defs": {"Plan": {"not": {"$ref": "#/$defs/Tree"}}, "Tree": tree}}
    assert without_references(schema) == {"not": {"$ref": "#/$defs/Tree"}, "$defs": {"Tree": tree}}


NAMES = ["A", "B", "C", "D"]
REFERENCES = st.sampled_from(NAMES).map(lambda name: {"$ref": f"#/$defs/{name}"})


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.one_of(st.sampled_from([INT, TEXT, {}, {"enum": [1, "a"]}, {"minimum": 2}]), REFERENCES)
    if not depth:
        return leaves
    inner = schemas(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda each: {"type": "object", "properties": {"a": each}}, inner),
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.builds(lambda one, two: {**one, **two}, REFERENCES, inner),
    )


VALUES = st.recursive(
    st.one_of(st.integers(0, 4), st.sampled_from(["a", "b"]), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.builds(lambda each: {"a": each}, inner)),
    max_leaves=4,
)


@given(
    definitions=st.fixed_dictionaries({name: schemas() for name in NAMES}),
    schema=schemas(),
    values=st.lists(VALUES, max_size=5),
)
def test_it_means_the_same(definitions: dict[str, Any], schema: dict[str, Any], values: list[Any]) -> None:
    whole = {**schema, "$defs": definitions}
    written = without_references(whole)
    if written is None:
        return
    try:
        before, after = compile_schema(whole), compile_schema(written)
    except ValueError:
        return  # a reference that leads to itself at once, or one that multiplies
    for value in values:
        assert before.is_valid(value) == after.is_valid(value)
