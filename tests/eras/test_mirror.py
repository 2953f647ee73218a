"""Headers that repeat the body: how values are written, what is mirrored, and which images a server refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mcp_actors._eras.modern import (
    MAX_DEPTH,
    MAX_INTEGER,
    MirroredParam,
    annotated_params,
    check_names,
    check_params,
    check_version,
    decode_header_value,
    encode_header_value,
    mirrored,
    version_header,
)
from mcp_actors.errors import HeaderMismatch, LocalProtocolError

VERSION = "2026-07-28"
TARGETS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tools/list": None}

integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
values = st.text() | st.booleans() | integers | integers.map(float) | st.none()


def param(*path: str) -> MirroredParam:
    return MirroredParam(f"mcp-param-{'-'.join(path)}", path)


# -- values ------------------------------------------------------------------------------------------------------------


@given(st.text())
@example("=?base64?literal?=")
@example("=?base64?=")
@example("=?BASE64?SGVsbG8=?=")
@example(" padded ")
@example("a\tb")
@example("\x7f")
def test_any_text_survives_its_way_through_a_header(text: str) -> None:
    value = encode_header_value(text)
    assert all(" " <= each <= "~" for each in value)
    assert value == value.strip()
    assert decode_header_value(value) == text
    assert decode_header_value(f" \t{value}\t ") == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("a\x7f", "=?base64?YX8=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ],
)
def test_a_text_is_base64_only_where_it_must_be(text: str, value: str) -> None:
    assert encode_header_value(text) == value
    assert decode_header_value(value) == text


@pytest.mark.parametrize(
    "value", ["=?base64?=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?Base64?SGVsbG8=?=", "a\tb"]
)
def test_what_lacks_a_mark_is_literal(value: str) -> None:
    assert decode_header_value(value) == value


@pytest.mark.parametrize(
    "inside",
    ["SGVsbG8", "SGVs!!!bG8=", "SGVsbG8==", "SGVs bG8=", "-_-_", "=", "SGVsbG8=SGVs", "gICA", "SGVs=G8="],
)
def test_what_is_no_base64_of_text_is_refused(inside: str) -> None:
    with pytest.raises(HeaderMismatch, match="base64"):
        decode_header_value(f"=?base64?{inside}?=")


@pytest.mark.parametrize("value", ["é", "a\nb", "a\x00b", "a\x7f", "=?base64?SGVsbG8=\u2028?="])
def test_characters_that_no_header_may_hold_are_refused(value: str) -> None:
    with pytest.raises(HeaderMismatch, match="characters"):
        decode_header_value(value)


# -- what is mirrored --------------------------------------------------------------------------------------------------


def test_every_request_tells_its_version_and_method() -> None:
    expected = {"mcp-protocol-version": VERSION, "mcp-method": "server/discover"}
    assert mirrored(VERSION, "server/discover", {}) == expected
    assert mirrored(VERSION, "acme/thing", {"name": "x", "uri": "y"}).keys() == expected.keys()


@pytest.mark.parametrize(("method", "target"), [each for each in TARGETS.items() if each[1]])
def test_a_request_about_something_tells_what(method: str, target: str) -> None:
    assert mirrored(VERSION, method, {target: "file:///a%20b?c"})["mcp-name"] == "file:///a%20b?c"
    assert mirrored(VERSION, method, {target: "ü"})["mcp-name"] == "=?base64?w7w=?="
    assert "mcp-name" not in mirrored(VERSION, method, {target: 7})


@pytest.mark.parametrize(
    ("value", "text"),
    [("x", "x"), ("", ""), (True, "true"), (False, "false"), (42, "42"), (-7, "-7"), (42.0, "42"), (0, "0")],
)
def test_a_parameter_is_told_as_text(value: Any, text: str) -> None:
    params = {"name": "t", "arguments": {"a": {"b": value}}}
    assert mirrored(VERSION, "tools/call", params, (param("a", "b"),))["mcp-param-a-b"] == text


@pytest.mark.parametrize(
    "arguments", [None, {}, {"a": None}, {"a": {"b": None}}, {"a": 5}, {"a": {"b": [1]}}]
)
def test_what_is_null_or_absent_or_has_no_text_is_not_told(arguments: Any) -> None:
    params = {"name": "t", "arguments": arguments}
    told = mirrored(VERSION, "tools/call", params, (param("a", "b"),))
    assert told.keys() == {"mcp-protocol-version", "mcp-method", "mcp-name"}
    check_params(told, (param("a", "b"),), arguments)


@pytest.mark.parametrize("value", [MAX_INTEGER + 1, -MAX_INTEGER - 1, 1e300])
def test_an_integer_that_others_cannot_hold_is_not_sent(value: float) -> None:
    with pytest.raises(LocalProtocolError, match=r"a\.b"):
        mirrored(VERSION, "tools/call", {"name": "t", "arguments": {"a": {"b": value}}}, (param("a", "b"),))


@pytest.mark.parametrize("method", ["a\r\nx-evil: 1", "ü", " ping", "a\tb"])
def test_a_method_that_no_header_can_hold_is_not_sent(method: str) -> None:
    with pytest.raises(LocalProtocolError):
        mirrored(VERSION, method, {})


# -- what a server accepts ---------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(TARGETS)), st.text(), st.lists(values, max_size=4))
def test_what_was_mirrored_passes(method: str, name: str, given_values: list[Any]) -> None:
    annotated = tuple(param(f"p{n}") for n in range(len(given_values)))
    arguments = {f"p{n}": value for n, value in enumerate(given_values)}
    params = {"name": name, "uri": name, "arguments": arguments}
    metadata = mirrored(VERSION, method, params, annotated)
    assert version_header(metadata) == VERSION
    check_version(metadata, VERSION)
    check_names(metadata, method, params, TARGETS[method])
    check_params(metadata, annotated, arguments)


@given(values, values)
@example("1", 1)
@example(1, True)
@example("true", True)
@example("", None)
@example(0, None)
@example("=?base64?SGVsbG8=?=", "Hello")
def test_the_image_of_another_value_is_refused(told: Any, meant: Any) -> None:
    # What has the same text is the same for whoever reads the header.
    told_text, meant_text = (None if each is None else _text(each) for each in (told, meant))
    assume(told_text != meant_text)
    assume(not (isinstance(meant, int | float) and isinstance(told, str)))
    annotated = (param("p"),)
    metadata = mirrored(VERSION, "tools/call", {"name": "t", "arguments": {"p": told}}, annotated)
    with pytest.raises(HeaderMismatch, match="mcp-param-p"):
        check_params(metadata, annotated, {"p": meant})


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(int(value))


@given(st.text(), st.text())
@example(" a ", "a")
@example("A", "a")
def test_the_image_of_another_name_is_refused(told: str, meant: str) -> None:
    assume(told != meant)
    metadata = mirrored(VERSION, "tools/call", {"name": told})
    with pytest.raises(HeaderMismatch, match="mcp-name"):
        check_names(metadata, "tools/call", {"name": meant}, "name")


@pytest.mark.parametrize("header", ["42", "42.0", "42.000", "042", "=?base64?NDI=?=", " 42 "])
def test_integers_are_compared_as_numbers(header: str) -> None:
    for value in (42, 42.0):
        check_params({"mcp-param-n": header}, (param("n"),), {"n": value})
    with pytest.raises(HeaderMismatch):
        check_params({"mcp-param-n": header}, (param("n"),), {"n": 43})


@pytest.mark.parametrize(
    "header", ["", "43", "-42", "+42", "42.5", "4.2e1", "42.", "0x2a", "4_2", "٤٢", "9" * 5000, "42 0"]
)
def test_what_is_another_number_or_none_is_refused(header: str) -> None:
    with pytest.raises(HeaderMismatch):
        check_params({"mcp-param-n": header}, (param("n"),), {"n": 42})


def test_an_integer_that_others_cannot_hold_is_refused() -> None:
    for value in (MAX_INTEGER + 1, -MAX_INTEGER - 1):
        with pytest.raises(HeaderMismatch, match="within"):
            check_params({"mcp-param-n": str(value)}, (param("n"),), {"n": value})
    check_params({"mcp-param-n": str(MAX_INTEGER)}, (param("n"),), {"n": MAX_INTEGER})


@pytest.mark.parametrize("header", ["True", "TRUE", "1", "false"])
def test_a_boolean_is_told_in_lower_case(header: str) -> None:
    with pytest.raises(HeaderMismatch):
        check_params({"mcp-param-b": header}, (param("b"),), {"b": True})


@pytest.mark.parametrize("arguments", [None, {}, {"a": None}, {"a": {}}])
def test_a_header_about_nothing_is_refused(arguments: Any) -> None:
    with pytest.raises(HeaderMismatch, match="no such value"):
        check_params({"mcp-param-a": ""}, (param("a"),), arguments)


@pytest.mark.parametrize("value", ["", "x", False, 0])
def test_a_value_without_its_header_is_refused(value: Any) -> None:
    with pytest.raises(HeaderMismatch, match="missing"):
        check_params({}, (param("a"),), {"a": value})


def test_headers_of_parameters_that_are_not_mirrored_are_ignored() -> None:
    check_params({"mcp-param-other": "é"}, (), {"other": "x"})
    headers = {"mcp-param-other": "é", "mcp-param-a": "x"}
    check_params(headers, (param("a"),), {"other": "y", "a": "x"})
    with pytest.raises(HeaderMismatch):
        check_params(headers, (param("a"), param("other")), {"other": "y", "a": "x"})


def test_a_missing_version_is_found_before_anything_else_is() -> None:
    with pytest.raises(HeaderMismatch, match="mcp-protocol-version is missing"):
        version_header({"mcp-method": "tools/list"})
    assert version_header({"mcp-protocol-version": " v999 "}) == "v999"


def test_the_version_must_be_the_one_of_the_body() -> None:
    check_version({"mcp-protocol-version": f" {VERSION}\t"}, VERSION)
    for metadata in ({}, {"mcp-protocol-version": "v999.0.0"}, {"mcp-protocol-version": ""}):
        with pytest.raises(HeaderMismatch, match="mcp-protocol-version"):
            check_version(metadata, VERSION)


def test_the_method_must_be_the_one_of_the_body() -> None:
    check_names({"mcp-method": " tools/list "}, "tools/list", {}, None)
    for metadata in ({}, {"mcp-method": "TOOLS/LIST"}, {"mcp-method": "tools/call"}):
        with pytest.raises(HeaderMismatch, match="mcp-method"):
            check_names(metadata, "tools/list", {}, None)


def test_a_name_that_the_body_lacks_is_refused_and_one_that_is_no_text_is_left_to_others() -> None:
    method = {"mcp-method": "tools/call"}
    for params in ({}, {"name": None}, {"name": 5}):
        check_names(method, "tools/call", params, "name")
        with pytest.raises(HeaderMismatch, match="mcp-name"):
            check_names({**method, "mcp-name": "5"}, "tools/call", params, "name")
    with pytest.raises(HeaderMismatch, match="mcp-name is missing"):
        check_names(method, "tools/call", {"name": ""}, "name")
    check_names({"mcp-method": "tools/list", "mcp-name": "x"}, "tools/list", {}, None)


def test_a_complaint_repeats_little_of_what_was_sent() -> None:
    with pytest.raises(HeaderMismatch) as caught:
        check_names({"mcp-method": "x" * 10_000}, "tools/list", {}, None)
    assert len(str(caught.value)) < 300


# -- Which parameters of a tool are mirrored, and which annotations spoil it -----------------------------

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
