"""Golden schemas: what clients and models are shown, word for word."""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from mcp_actors._schema.signature import read_signature
from mcp_actors._schema.validate import compile_schema

from .signature_samples import (
    Box,
    Cat,
    Circle,
    Closed,
    Color,
    Context,
    Dog,
    IntBox,
    Odd,
    Options,
    Pair,
    Point,
    Private,
    Shapes,
    read,
)

INT = {"type": "integer"}
TEXT = {"type": "string"}
POINT = {"type": "object", "properties": {"x": INT, "y": {**INT, "default": 0}}, "required": ["x"]}
CIRCLE = {
    "type": "object",
    "properties": {"x": INT, "radius": {"type": "number"}},
    "required": ["x", "radius"],
}


def shown(hint: Any) -> dict[str, Any]:
    """The schema of one parameter, with its definitions beside it if there are any."""

    def call(value: Any) -> None: ...

    call.__annotations__["value"] = hint
    schema = read(call).input_schema
    assert schema["required"] == ["value"]
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {**schema["properties"]["value"], **defs}


def returned(hint: Any) -> dict[str, Any] | None:
    def call() -> Any: ...

    call.__annotations__["return"] = hint
    return read(call).output_schema


def test_a_whole_tool() -> None:
    @dataclass
    class Forecast:
        """What is to be expected.

        Attributes:
            celsius: the highest temperature
        """

        celsius: float
        sky: Literal["clear", "cloudy"]
        at: datetime.datetime

    async def forecast(
        city: str, days: Annotated[int, Meta(ge=1, le=14, description="how far ahead")] = 3, *, ctx: Context
    ) -> Forecast:
        """Forecast for a city.

        Args:
            city: in any language
            days: is described by its annotation
        """
        raise NotImplementedError

    signature = read(forecast)
    assert signature.description == "Forecast for a city."
    assert signature.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "in any language"},
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 14,
                "description": "how far ahead",
                "default": 3,
            },
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert signature.output_schema == {
        "description": "What is to be expected.",
        "type": "object",
        "properties": {
            "celsius": {"type": "number", "description": "the highest temperature"},
            "sky": {"type": "string", "enum": ["clear", "cloudy"]},
            "at": {"type": "string"},
        },
        "required": ["celsius", "sky", "at"],
    }


def test_no_arguments() -> None:
    def call() -> None: ...

    assert read(call).input_schema == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Any, {}),
        (object, {}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (None, {"type": "null"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (datetime.timedelta, {"type": "string", "format": "duration"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, TEXT),
        (Literal["low", "high", "medium"], {"type": "string", "enum": ["low", "high", "medium"]}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Odd, {"enum": [1.5, None]}),
        (int | None, {"anyOf": [INT, {"type": "null"}]}),
        (None | str | int, {"anyOf": [TEXT, INT, {"type": "null"}]}),
        (list, {"type": "array"}),
        (list[Any], {"type": "array"}),
        (list[int], {"type": "array", "items": INT}),
        (Iterable[int], {"type": "array", "items": INT}),
        (set[int], {"type": "array", "items": INT, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": INT}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [INT, TEXT], "items": False, "minItems": 2, "maxItems": 2},
        ),
        (dict, {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": INT}),
        (Mapping[int, Any], {"type": "object"}),
        (
            dict[Literal["a"], int],
            {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": INT},
        ),
        (Annotated[str, Meta(min_length=1, max_length=3)], {**TEXT, "minLength": 1, "maxLength": 3}),
        (
            Annotated[bytes, Meta(max_length=4)],
            {"type": "string", "contentEncoding": "base64", "maxLength": 8},
        ),
        (Annotated[list[int], Meta(min_length=1)], {"type": "array", "items": INT, "minItems": 1}),
        (
            Annotated[dict[str, int], Meta(max_length=1)],
            {"type": "object", "additionalProperties": INT, "maxProperties": 1},
        ),
        (
            Annotated[float, Meta(gt=0, lt=1)],
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ),
        (Annotated[int, Meta(multiple_of=5)], {**INT, "multipleOf": 5}),
        (Annotated[int | None, Meta(ge=1)], {"anyOf": [{**INT, "minimum": 1}, {"type": "null"}]}),
        (
            Annotated[str, Meta(title="T", examples=["x"], extra_json_schema={"x-mcp-header": "City"})],
            {**TEXT, "title": "T", "examples": ["x"], "x-mcp-header": "City"},
        ),
        (Point, {"$ref": "#/$defs/Point", "$defs": {"Point": POINT}}),
        (
            Point | Circle,
            {
                "anyOf": [{"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Circle"}],
                "$defs": {"Point": POINT, "Circle": CIRCLE},
            },
        ),
        (
            Shapes,
            {
                "$ref": "#/$defs/Shapes",
                "$defs": {
                    "Shapes": {
                        "description": "Holds a union that cannot be told apart by its tags.",
                        "type": "object",
                        "properties": {
                            "one": {"anyOf": [{"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Circle"}]},
                            "more": {"type": "array", "items": {"$ref": "#/$defs/Shapes"}},
                        },
                        "required": ["one"],
                    },
                    "Point": POINT,
                    "Circle": CIRCLE,
                },
            },
        ),
        (
            Private,
            {
                "$ref": "#/$defs/Private",
                "$defs": {
                    "Private": {
                        "type": "object",
                        "properties": {"secret": TEXT, "shown": {**INT, "default": 1}},
                        "required": ["secret"],
                    }
                },
            },
        ),
        (
            Options,
            {
                "$ref": "#/$defs/Options",
                "$defs": {"Options": {"type": "object", "properties": {"verbose": {"type": "boolean"}}}},
            },
        ),
        (
            Pair,
            {
                "$ref": "#/$defs/Pair",
                "$defs": {
                    "Pair": {
                        "type": "array",
                        "prefixItems": [INT, {**TEXT, "default": "r"}],
                        "items": False,
                        "minItems": 1,
                        "maxItems": 2,
                    }
                },
            },
        ),
        (
            Cat | Dog,
            {
                "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                "$defs": {
                    "Cat": {
                        "type": "object",
                        "properties": {"type": {"type": "string", "enum": ["Cat"]}, "lives": INT},
                        "required": ["type", "lives"],
                    },
                    "Dog": {
                        "type": "object",
                        "properties": {"type": {"type": "string", "enum": ["Dog"]}, "name": TEXT},
                        "required": ["type", "name"],
                    },
                },
            },
        ),
        (
            IntBox,
            {
                "$ref": "#/$defs/IntBox",
                "$defs": {
                    "IntBox": {
                        "type": "object",
                        "properties": {"content": INT, "more": {**INT, "default": 0}},
                        "required": ["content"],
                    }
                },
            },
        ),
        (
            Closed,
            {
                "$ref": "#/$defs/Closed",
                "$defs": {
                    "Closed": {
                        "type": "object",
                        "properties": {"n": INT},
                        "required": ["n"],
                        "additionalProperties": False,
                    }
                },
            },
        ),
        (
            Box[int],
            {
                "$ref": "#/$defs/Box_int",
                "$defs": {
                    "Box_int": {"type": "object", "properties": {"content": INT}, "required": ["content"]}
                },
            },
        ),
    ],
)
def test_input(hint: Any, schema: dict[str, Any]) -> None:
    assert shown(hint) == schema
    assert compile_schema(shown(hint))


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, INT),
        (list[str], {"type": "array", "items": TEXT}),
        (decimal.Decimal, TEXT),
        (datetime.datetime, TEXT),
        (datetime.date, {"type": "string", "format": "date"}),
        (Annotated[datetime.datetime, Meta(tz=True)], {"type": "string", "format": "date-time"}),
        (Point, {"type": "object", "properties": POINT["properties"], "required": ["x", "y"]}),
        (
            Private,
            {
                "type": "object",
                "properties": {"shown": {**INT, "default": 1}, "made": {**INT, "default": 7}},
                "required": ["shown", "made"],
            },
        ),
        (dict[str, int], {"type": "object", "additionalProperties": INT}),
        (str | int, {"anyOf": [TEXT, INT]}),
    ],
)
def test_output(hint: Any, schema: dict[str, Any]) -> None:
    assert returned(hint) == schema


def test_output_of_a_class_that_holds_itself_is_an_object_at_the_root() -> None:
    schema = returned(Shapes)
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["properties"]["more"] == {"type": "array", "items": {"$ref": "#/$defs/Shapes"}}
    assert list(schema["$defs"]) == ["Shapes", "Point", "Circle"]


def test_defaults_that_no_peer_could_give_stay_private() -> None:
    def call(
        a: int = object(), b: tuple[int, ...] = (1,), c: Color = Color.RED, d: Any = len, e: int = 1.5
    ) -> None: ...  # type: ignore[assignment]

    assert {
        name: each.get("default", "none") for name, each in read(call).input_schema["properties"].items()
    } == {
        "a": "none",
        "b": [1],
        "c": "red",
        "d": "none",
        "e": "none",
    }


def test_classes_of_one_name_get_a_definition_each() -> None:
    def make(kind: type) -> Any:
        return msgspec.defstruct("Same", [("value", kind)], module=__name__)

    def call(a: Any, b: Any, c: Any) -> None: ...

    call.__annotations__.update(a=make(int), b=make(str), c=make(bool))
    schema = read(call).input_schema
    references = [each["$ref"].removeprefix("#/$defs/") for each in schema["properties"].values()]
    assert len(set(references)) == 3
    assert [schema["$defs"][name]["properties"]["value"]["type"] for name in references] == [
        "integer",
        "string",
        "boolean",
    ]


def test_an_enum_is_described_by_its_docstring() -> None:
    class Level(enum.IntEnum):
        """How loud."""

        LOW = 2
        HIGH = 1

    assert shown(Level) == {"type": "integer", "enum": [2, 1], "description": "How loud."}


def test_the_same_function_always_has_the_same_schema() -> None:
    def call(
        a: Shapes, b: Cat | Dog, c: set[Literal["z", "a"]], d: dict[str, Point] | None = None
    ) -> Shapes: ...

    texts = {
        msgspec.json.encode([signature.input_schema, signature.output_schema])
        for signature in (read_signature(call, injected=Context) for _ in range(5))
    }
    assert len(texts) == 1
