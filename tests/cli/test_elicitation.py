from __future__ import annotations

from typing import Any

import pytest

from mcp_actors.cli.progress import answer_field

ENUM = {"type": "string", "enum": ["r", "g"]}
NAMED = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
TITLED = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
SOME = {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}}
SOME_TITLED = {
    "type": "array",
    "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "number"}, "3.5", 3.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "false", False),
        (ENUM, "g", "g"),
        (NAMED, "Green", "g"),
        (TITLED, "Red", "r"),
        (TITLED, "r", "r"),
        (SOME, "r, g", ["r", "g"]),
        (SOME, "", []),
        (SOME_TITLED, "Green", ["g"]),
    ],
)
def test_a_line_becomes_what_the_field_wants(field: dict[str, Any], text: str, value: Any) -> None:
    assert answer_field(field, text) == value


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ({"type": "integer"}, "3.5", "whole number"),
        ({"type": "number"}, "three", "write a number"),
        ({"type": "boolean"}, "perhaps", "yes or no"),
        (ENUM, "b", "one of: r, g"),
        (SOME_TITLED, "Red, Blue", "one of: Red, Green"),
    ],
)
def test_what_does_not_fit_says_what_to_write(field: dict[str, Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        answer_field(field, text)
