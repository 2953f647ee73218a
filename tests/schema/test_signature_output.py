"""What becomes of what a function returns."""

from __future__ import annotations

import datetime
import decimal
import pathlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, NoReturn, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from mcp_actors._schema.signature import JsonType
from mcp_actors.types import CallToolResult, ImageContent, TextContent

from .signature_samples import (
    Cat,
    Circle,
    Color,
    Dog,
    Odd,
    Options,
    Point,
    Private,
    Shapes,
    read,
    taking,
)


class Sum(TypedDict):
    total: int
    mean: float | None


class Name(StrEnum):
    TOTAL = "total"


class Number(IntEnum):
    SEVEN = 7


class TestOutput:
    @pytest.mark.parametrize(
        "hint",
        [
            *(None, Any, object, str, str | None, NoReturn, TextContent, CallToolResult, list[TextContent]),
            *(list[TextContent | ImageContent], list[str | TextContent], tuple[str, ImageContent]),
            TextContent | CallToolResult,
        ],
    )
    def test_text_and_content_have_no_schema(self, hint: Any) -> None:
        def call() -> Any: ...

        call.__annotations__["return"] = hint
        assert read(call).output_schema is None

    def test_no_annotation_has_no_schema(self) -> None:
        def call(): ...  # type: ignore[no-untyped-def]

        signature = read(call)
        assert signature.output_schema is None
        assert signature.encode_output({"a": (1, Point(1))}) == {"a": (1, {"x": 1, "y": 0})}

    @pytest.mark.parametrize(
        ("hint", "value", "encoded"),
        [
            (int, 3, 3),
            (list[str], ["a"], ["a"]),
            (Point, Point(1), {"x": 1, "y": 0}),
            (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
            (dict[str, Point], {"a": Point(1)}, {"a": {"x": 1, "y": 0}}),
            (datetime.datetime, datetime.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
            (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
            (bytes, b"hi", "aGk="),
            (pathlib.Path, pathlib.PurePosixPath("/a"), "/a"),
            (Color, Color.RED, "red"),
            (Odd, Odd.HALF, 1.5),
            (Private, Private("s"), {"shown": 1, "made": 7}),
            (Options, {"verbose": True}, {"verbose": True}),
            (Cat | Dog, Dog("Rex"), {"type": "Dog", "name": "Rex"}),
            (Point | Circle, Circle(1, 2), {"x": 1, "radius": 2}),
            (set[int], {1}, [1]),
            (list[int], range(3), [0, 1, 2]),
            (Shapes, Shapes(Point(1)), {"one": {"x": 1, "y": 0}, "more": []}),
            (int | None, None, None),
            (float, 3, 3),
            (bool | float, 0.5, 0.5),
            (Sum, {"total": 1, "mean": None}, {"total": 1, "mean": None}),
            (Sum, {"total": 1, "mean": 2}, {"total": 1, "mean": 2}),
            (Sum, {Name.TOTAL: 1, "mean": 0.5}, {"total": 1, "mean": 0.5}),
            (Sum, {"total": Number.SEVEN, "mean": 0.5}, {"total": 7, "mean": 0.5}),
        ],
    )
    def test_values_become_plain_json(self, hint: Any, value: Any, encoded: Any) -> None:
        def call() -> Any: ...

        call.__annotations__["return"] = hint
        assert read(call).encode_output(value) == encoded

    @pytest.mark.parametrize(
        ("hint", "value", "message"),
        [
            (Any, object(), "object has no form in JSON"),
            (Any, {(1, 2): 3}, "keys"),
            (int, "3", "not of the declared type: expected integer, got string"),
            (int, True, "not of the declared type: expected integer, got boolean"),
            (int, None, "not of the declared type: expected integer, got null"),
            (float, True, "not of the declared type: expected number, got boolean"),
            (float, float("nan"), "not of the declared type: expected number, got null"),
            (float | None, float("inf"), "not of the declared type"),
            (Annotated[int, Meta(ge=1)], 0, "not of the declared type: must be at least 1, got 0"),
            (Point, None, "not of the declared type: expected object, got null"),
            (Point, {}, "not of the declared type: x: is required but missing"),
            (
                Sum,
                {"total": True, "mean": 1},
                "not of the declared type: total: expected integer, got boolean",
            ),
            (Sum, {"total": 1, "mean": float("inf")}, "not of the declared type: mean"),
            (Sum, {"total": 1}, "not of the declared type: mean: is required but missing"),
            (list[Point], [Point("x")], r"not of the declared type: \[0\].x: expected integer, got string"),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_not_of_the_declared_type_is_an_error(self, hint: Any, value: Any, message: str) -> None:
        def call() -> Any: ...

        call.__annotations__["return"] = hint
        with pytest.raises(TypeError, match=message):
            read(call).encode_output(value)

    def test_a_record_that_is_json_already_is_copied(self) -> None:
        def call() -> Sum: ...

        state: Sum = {"total": 1, "mean": 1.0}
        encoded = read(call).encode_output(state)
        state["total"] = 2
        assert encoded == {"total": 1, "mean": 1.0}

    def test_a_value_that_holds_itself_is_an_error(self) -> None:
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(TypeError, match="holds itself"):
            read(taking(int)).encode_output(endless)

    def test_a_type_without_a_form_is_refused_when_its_schema_is_asked_for(self) -> None:
        def call() -> complex: ...

        signature = read(call)
        with pytest.raises(TypeError, match=r"call: what it returns cannot be described: complex"):
            _ = signature.output_schema
        assert signature.encode_output({"a": 1}) == {"a": 1}


@given(
    st.builds(
        Shapes,
        st.builds(Point, st.integers(), st.integers())
        | st.builds(Circle, st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_what_goes_out_comes_in_again(shapes: Shapes) -> None:
    def call(value: Shapes) -> Shapes: ...

    signature = read(call)
    assert signature.bind({"value": signature.encode_output(shapes)}) == {"value": shapes}


def test_a_type_for_a_form() -> None:
    @dataclass
    class Answer:
        """What the person says."""

        name: Annotated[str, Meta(min_length=1, title="Name")]
        color: Color = Color.RED
        age: int | None = None

    assert JsonType(Answer).schema == {
        "description": "What the person says.",
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "title": "Name"},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
        "required": ["name"],
    }
