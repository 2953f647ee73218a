"""Which parameters of a tool are mirrored, and which annotations spoil it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mcp_actors._eras.modern import MAX_DEPTH, MirroredParam, annotated_params

REGION = {"type": "string", "x-mcp-header": "Region"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_schema_without_annotations_mirrors_nothing() -> None:
    assert annotated_params({"type": "object"}) == ()
    assert annotated_params(schema(a={"type": "string"}, b=True)) == ()


def test_annotations_are_found_with_their_paths() -> None:
    found = annotated_params(
        schema(
            region=REGION,
            n={"type": "integer", "x-mcp-header": "Priority"},
            deep=schema(er={"type": "boolean", "x-mcp-header": "X!#$%&'*+.^_`|~-9"}),
        )
    )
    assert set(found) == {
        MirroredParam("mcp-param-region", ("region",)),
        MirroredParam("mcp-param-priority", ("n",)),
        MirroredParam("mcp-param-x!#$%&'*+.^_`|~-9", ("deep", "er")),
    }


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        ("", "empty"),
        ("My Region", "header's name"),
        ("Region:Primary", "header's name"),
        ("Région", "header's name"),
        ("Region\t1", "header's name"),
        ("Region\r\n", "header's name"),
        ("Region\n", "header's name"),
        (None, "must be a string"),
        (5, "must be a string"),
        (["Region"], "must be a string"),
    ],
)
def test_an_annotation_must_be_part_of_a_header_name(annotation: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"value: .*{complaint}"):
        annotated_params(schema(value={"type": "string", "x-mcp-header": annotation}))


@pytest.mark.parametrize(
    "type", ["object", "array", "null", "number", None, ["string", "null"], ["string"], {}]
)
def test_only_strings_integers_and_booleans_are_mirrored(type: Any) -> None:
    with pytest.raises(ValueError, match=r"value: .*type"):
        annotated_params(schema(value={"type": type, "x-mcp-header": "Value"}))
    with pytest.raises(ValueError, match=r"value: .*type"):
        annotated_params(schema(value={"x-mcp-header": "Value"}))


@pytest.mark.parametrize("other", ["Region", "region", "REGION"])
def test_no_two_parameters_have_the_same_header(other: str) -> None:
    with pytest.raises(ValueError, match="another parameter"):
        annotated_params(schema(a=REGION, b=schema(c={"type": "string", "x-mcp-header": other})))


@pytest.mark.parametrize(
    "keyword",
    [
        *("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"),
        *("unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"),
    ],
)
def test_nothing_below_another_schema_is_mirrored(keyword: str) -> None:
    for inner in (REGION, schema(a=REGION)):
        with pytest.raises(ValueError, match=f"{keyword}.*`properties` alone"):
            annotated_params(schema(p={"type": "array", keyword: inner}))
        with pytest.raises(ValueError, match=f"{keyword}.*`properties` alone"):
            annotated_params({"type": "object", keyword: inner})


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf", "allOf", "prefixItems", "items"])
def test_nothing_in_a_choice_of_schemas_is_mirrored(keyword: str) -> None:
    with pytest.raises(ValueError, match=f"p.{keyword}.*`properties` alone"):
        annotated_params(schema(p={keyword: [{"type": "null"}, REGION]}))


@pytest.mark.parametrize(
    "keyword", ["$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"]
)
def test_nothing_behind_a_reference_or_a_pattern_is_mirrored(keyword: str) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(keyword)}/where.*`properties` alone"):
        annotated_params({**schema(p={"$ref": "#/$defs/where"}), keyword: {"where": REGION}})


def test_the_root_is_no_parameter() -> None:
    with pytest.raises(ValueError, match="the schema itself"):
        annotated_params({"type": "string", "x-mcp-header": "Root"})


def test_what_only_looks_like_an_annotation_is_none() -> None:
    named = {"x-mcp-header": {"type": "string"}, "items": REGION}
    assert annotated_params(schema(**named)) == (MirroredParam("mcp-param-region", ("items",)),)
    data = {"x-mcp-header": ""}
    assert (
        annotated_params(schema(p={"default": data, "const": data, "enum": [data], "examples": [data]})) == ()
    )
    assert annotated_params({"$defs": {"x-mcp-header": {"type": "string"}}}) == ()


def test_depth_is_bounded() -> None:
    deep: dict[str, Any] = REGION
    for _ in range(MAX_DEPTH):
        deep = schema(a=deep)
    assert annotated_params(deep)[0].path == ("a",) * MAX_DEPTH
    with pytest.raises(ValueError, match="deep"):
        annotated_params(schema(a=deep))
