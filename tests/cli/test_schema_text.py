from __future__ import annotations

from typing import Any

import pytest

from mcp_actors.cli.arguments import (
    argument_lines,
    fitted,
    may_need_schema,
    signature,
    tool_arguments,
    value_of,
)

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
    "required": ["city"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {
            "type": "integer",
            "minimum": 1,
            "maximum": 14,
            "default": 3,
            "description": "For how\nmany days.",
        },
        "exact": {"type": "boolean"},
        "text": {"type": "string"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}},
        "place": {"$ref": "#/$defs/Place", "description": "Where."},
        "level": {"enum": [1, 2]},
        "several": {"type": ["integer", "boolean"]},
        "unknown": {},
    },
    "required": ["days", "place"],
    "$defs": {"Place": PLACE},
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("days=3", 3),
        ("days=3.0", 3.0),
        ("days=3.5", "3.5"),
        ("days=three", "three"),
        ("days=true", "true"),
        ("days=Infinity", "Infinity"),
        ('days:="3"', "3"),
        ("exact=true", True),
        ("exact=True", "True"),
        ("exact=1", "1"),
        ("text=3", "3"),
        ("text=null", "null"),
        ("either=3", "3"),
        ("maybe=null", None),
        ("maybe=-1e3", -1000.0),
        ('tags=["a"]', ["a"]),
        ("tags=a", "a"),
        ('place={"city": "Bonn"}', {"city": "Bonn"}),
        ("level=2", 2),
        ("several=false", False),
        ("unknown=3", "3"),
        ("nowhere=3", "3"),
    ],
)
def test_text_becomes_what_the_schema_wants(word: str, value: Any) -> None:
    (fit,) = fitted(tool_arguments([word]), [word], SCHEMA).values()
    assert fit == value
    assert type(fit) is type(value)


@pytest.mark.parametrize(
    ("word", "needs"),
    [("a=3", True), ("a=true", True), ("a=[]", True), ("a=Berlin", False), ('a="3"', False), ("a:=3", False)],
)
def test_the_schema_is_asked_for_only_if_it_may_matter(word: str, needs: bool) -> None:
    assert may_need_schema(["b=text", word]) is needs


def test_arguments_are_shown_with_limits_descriptions_and_what_is_inside() -> None:
    assert signature(SCHEMA).startswith(
        "days: integer, exact?: boolean, text?: string, either?: integer|string, "
    )
    assert list(argument_lines(SCHEMA)) == [
        "days: integer, at least 1, at most 14, default 3 - For how many days.",
        "tags?: string[], each 9 characters or fewer",
        "place: object - Where.",
        "  city: string",
        "  zip?: integer",
    ]


RECURSIVE = {
    "properties": {"node": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
LOOP = {
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
}
WRONG = {
    "properties": {
        "a": {"type": 3, "enum": 3, "anyOf": 3, "items": 3, "required": 3},
        "b": 3,
        "c": {"$ref": "elsewhere"},
    },
    "required": "a",
}


@pytest.mark.parametrize("schema", [RECURSIVE, LOOP, WRONG, {}, None, 3, {"properties": 3}])
def test_any_schema_can_be_shown(schema: Any) -> None:
    assert isinstance(signature(schema), str)
    assert len(list(argument_lines(schema))) < 10
    assert value_of("text", "a", schema) == "text"
