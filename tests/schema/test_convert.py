"""How strictly each type is made of its JSON."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from annotated_types import MinLen
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field

from mcp_actors._schema.validate import compile_schema

from .signature_samples import (
    Box,
    Cat,
    Circle,
    Color,
    Dog,
    Odd,
    Options,
    Pair,
    Point,
    Private,
    Shapes,
    UserId,
    read,
    refused,
    take,
    taking,
)

STRICT: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 10**30, 10**30),
    (float, 3, 3.0),
    (int, 3.0, 3),
    (list[int], [1.0, 2], [1, 2]),
    (dict[str, int], {"a": 1e3}, {"a": 1000}),
    (int | None, 3.0, 3),
    (str, "3", "3"),
    (bool, True, True),
    (None, None, None),
    (Any, {"a": [1]}, {"a": [1]}),
    (object, [1], [1]),
    (Literal["a", 1, None], 1, 1),
    (Literal[True, "x"], True, True),
    (Color, "red", Color.RED),
    (Odd, 1.5, Odd.HALF),
    (Odd, None, Odd.NONE),
    (int | None, None, None),
    (str | int, 3, 3),
    (str | pathlib.Path, "x", "x"),
    (pathlib.Path, "/a/b", pathlib.Path("/a/b")),
    (pathlib.Path | None, "/a/b", pathlib.Path("/a/b")),
    (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
    (datetime.time, "03:04:05", datetime.time(3, 4, 5)),
    (datetime.timedelta, "PT90S", datetime.timedelta(seconds=90)),
    (uuid.UUID, "12345678-1234-5678-1234-567812345678", uuid.UUID("12345678123456781234567812345678")),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (bytes, "aGk=", b"hi"),
    (list[int], [1], [1]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[int], [1, 1], {1}),
    (Iterable[int], [1], [1]),
    (dict[str, float], {"a": 1}, {"a": 1.0}),
    (dict[int, int], {"1": 2}, {1: 2}),
    (Point, {"x": 1}, Point(1)),
    (Point | None, {"x": 1, "y": 2}, Point(1, 2)),
    (Point | Circle, {"x": 1, "radius": 2}, Circle(1, 2.0)),
    (Point | Circle, {"x": 1, "y": 2}, Point(1, 2)),
    (Point | Circle | None, None, None),
    (list[Point | Circle], [{"x": 1}, {"x": 1, "radius": 2}], [Point(1), Circle(1, 2.0)]),
    (datetime.date | str, "2026-01-02", datetime.date(2026, 1, 2)),
    (datetime.date | str, "tomorrow", "tomorrow"),
    (list[int] | set[str], ["a"], {"a"}),
    (Private, {"secret": "s", "shown": 2}, Private("s", 2)),
    (Options, {}, {}),
    (Pair, [1], Pair(1)),
    (Cat | Dog, {"type": "Dog", "name": "Rex"}, Dog("Rex")),
    (Box[int], {"content": 1}, Box(1)),
    (Box[Point | Circle], {"content": {"x": 1, "radius": 2}}, Box(Circle(1, 2.0))),
    (UserId, 3, 3),
    (
        Shapes,
        {"one": {"x": 1}, "more": [{"one": {"x": 1, "radius": 1}}]},
        Shapes(Point(1), [Shapes(Circle(1, 1.0))]),
    ),
    (Annotated[int | None, Meta(ge=1)], None, None),
    (Annotated[list[int] | str, Meta(min_length=1)], [1], [1]),
]


@pytest.mark.parametrize(("hint", "given_", "made"), STRICT)
def test_every_type_is_made_of_its_json(hint: Any, given_: Any, made: Any) -> None:
    found = take(hint, given_)
    assert found == made
    assert type(found) is type(made)


REFUSED: list[tuple[Any, Any, str]] = [
    (int, "3", "value: expected integer, got string"),
    (int, 3.5, "value: expected integer, got number"),
    (int, True, "value: expected integer, got boolean"),
    (int, None, "value: expected integer, got null"),
    (float, "3", "value: expected number, got string"),
    (float, True, "value: expected number, got boolean"),
    (bool, 1, "value: expected boolean, got integer"),
    (bool, "true", "value: expected boolean, got string"),
    (str, 3, "value: expected string, got integer"),
    (None, 0, "value: expected null, got integer"),
    (Literal["a", "b"], "c", 'value: must be one of "a", "b", got "c"'),
    (Literal[1], True, "value: expected integer, got boolean"),
    (Color, "green", 'value: must be one of "red", "blue", got "green"'),
    (Odd, 2, "value: must be one of 1.5, null, got 2"),
    (int | None, "x", "value: expected integer or null, got string"),
    (list[int], "1,2", "value: expected array, got string"),
    (list[int], [1, "2"], "value[1]: expected integer, got string"),
    (dict[str, int], {"a b": "x"}, 'value["a b"]: expected integer, got string'),
    (dict[str, list[Point]], {"k": [{"x": 1}, {"y": 1}]}, "value.k[1].x: is required but missing"),
    (tuple[int, str], [1], "value: must have at least 2 items, has 1"),
    (Point, {"x": "1"}, "value.x: expected integer, got string"),
    (Point, [1], "value: expected object, got array"),
    (Point | Circle, 3, "value: expected object, got integer"),
    (Shapes, {"one": {}, "more": []}, "value.one.x: is required but missing"),
    (datetime.datetime, 5, "value: expected string, got integer"),
    (datetime.datetime, "noon", "value: invalid RFC3339 encoded datetime"),
    (uuid.UUID, "x", "value: invalid UUID"),
    (bytes, "***", "value: invalid base64 encoded string"),
    (pathlib.Path, 3, "value: expected string, got integer"),
    (Annotated[int, Meta(ge=1, le=14)], 15, "value: must be at most 14, got 15"),
    (Annotated[int | None, Meta(ge=1)], 0, "value: must be at least 1, got 0"),
    (Annotated[str, Meta(pattern="^a")], "b", 'value: must match the pattern "^a", got "b"'),
    (Private, {"shown": 1}, "value.secret: is required but missing"),
    (Options, [], "value: expected object, got array"),
    (Pair, ["1"], "value[0]: expected integer, got string"),
    (Cat, {"type": "Cat"}, "value.lives: is required but missing"),
    (set[int], ["a"], "value[0]: expected integer, got string"),
    (dict[str, int], [], "value: expected object, got array"),
    (datetime.date, "2026-13-01", "value: "),
    (datetime.timedelta, "5 s", "value: "),
    (decimal.Decimal, "x", "value: "),
    (Annotated[list[int], Meta(max_length=2)], [1, 2, 3], "value: must have at most 2 items, has 3"),
]


@pytest.mark.parametrize(("hint", "given_", "text"), REFUSED)
def test_nothing_is_parsed_into_something_else(hint: Any, given_: Any, text: str) -> None:
    assert refused(taking(hint), {"value": given_}).startswith(text)


# -- Pydantic's types are validated and written by pydantic, wherever they stand, and never imported by us ---


class Model(BaseModel):
    """A model."""

    number: int = Field(ge=1, alias="no")
    at: datetime.datetime | None = None


class Lax(BaseModel):
    model_config = ConfigDict(strict=False, extra="forbid")
    number: int


class Tree(BaseModel):
    model: Model
    branches: list[Tree] = []


@pydantic.dataclasses.dataclass
class Checked:
    x: int = Field(ge=2)


@dataclass
class Holder:
    model: Model
    checked: list[Checked]


class Struct(msgspec.Struct):
    model: Model | None = None


MODEL = Model(no=1)
LEAF = {"model": {"no": 1}}


@pytest.mark.parametrize(
    ("hint", "value", "made"),
    [
        (Model, {"no": 1}, MODEL),
        (
            Model,
            {"no": 1, "at": "2026-01-02T03:04:05"},
            Model(no=1, at=datetime.datetime(2026, 1, 2, 3, 4, 5)),
        ),
        (list[Model], [{"no": 1}], [MODEL]),
        (dict[str, Model], {"a": {"no": 1}}, {"a": MODEL}),
        (Model | None, None, None),
        (Model | str | Checked, "x", "x"),
        (Model | str | Checked, {"no": 1}, MODEL),
        (Model | str | Checked, {"x": 2}, Checked(2)),
        (Model | Lax, {"number": 1}, Lax(number=1)),
        (
            Tree,
            {"model": {"no": 1}, "branches": [{"model": {"no": 1}}]},
            Tree(model=MODEL, branches=[Tree(model=MODEL)]),
        ),
        (Holder, {"model": {"no": 1}, "checked": [{"x": 2}]}, Holder(MODEL, [Checked(2)])),
        (Struct, {"model": {"no": 1}}, Struct(MODEL)),
        (Annotated[int, Field(ge=3)], 3, 3),
        (Annotated[list[Point], MinLen(1)], [{"x": 1}], [Point(1)]),
    ],
)
def test_in(hint: Any, value: Any, made: Any) -> None:
    assert take(hint, value) == made


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Model, {"no": "1"}, "value.no: expected integer, got string"),
        (Model, {}, "value.no: is required but missing"),
        (Model, {"no": 0}, "value.no: must be at least 1, got 0"),
        (Model, {"no": 1, "at": 5}, "value.at: expected string or null, got integer"),
        (Model, {"no": 1, "at": "noon"}, "value.at: input should be a valid datetime"),
        (Model, {"no": 3.5}, "value.no: expected integer, got number"),
        (Lax, {"number": "3"}, "value.number: expected integer, got string"),
        (Lax, {"number": 3, "more": 1}, "value.more: is not known here"),
        (dict[str, list[Model]], {"k": [{"no": 1, "at": "x"}]}, "value"),
        (
            Holder,
            {"model": {"no": 1}, "checked": [{"x": 1}]},
            "value.checked[0].x: must be at least 2, got 1",
        ),
        (Annotated[int, Field(ge=3)], 2, "value: must be at least 3, got 2"),
        (list[Annotated[int, Field(ge=3)]], [3, 2], "value[1]: must be at least 3, got 2"),
        (Annotated[int, Field(ge=3)], "3", "value: expected integer, got string"),
        (Annotated[list[int], MinLen(1)], [], "value: must have at least 1 items, has 0"),
    ],
)
def test_refused(hint: Any, value: Any, text: str) -> None:
    assert refused(taking(hint), {"value": value}).startswith(text)


def test_the_schema_is_the_models_own() -> None:
    def call(
        one: Model, many: list[Tree], size: Annotated[int, Field(ge=3, description="how big")] = 5
    ) -> None: ...

    schema = read(call).input_schema
    assert schema["properties"] == {
        "one": {"$ref": "#/$defs/Model"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        "size": {"type": "integer", "minimum": 3, "description": "how big", "default": 5},
    }
    assert schema["$defs"]["Model"] == Model.model_json_schema()
    assert schema["$defs"]["Tree"] == Tree.model_json_schema()["$defs"]["Tree"]
    compile_schema(schema)


def test_models_of_one_name_get_a_definition_each() -> None:
    def make(kind: Any) -> Any:
        return pydantic.create_model("Outer", inner=(pydantic.create_model("Inner", value=(kind, ...)), ...))

    def call(a: Any, b: Any) -> None: ...

    call.__annotations__.update(a=make(int), b=make(str))
    signature = read(call)
    compile_schema(signature.input_schema)
    assert signature.bind({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": "x"}}})
    with pytest.raises(ValueError, match="value: expected string, got integer"):
        signature.bind({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": 1}}})


@pytest.mark.parametrize(
    ("hint", "value", "encoded"),
    [
        (Model, MODEL, {"no": 1, "at": None}),
        (list[Model], [MODEL], [{"no": 1, "at": None}]),
        (Tree, Tree(model=MODEL), {"model": {"no": 1, "at": None}, "branches": []}),
        (Checked, Checked(2), {"x": 2}),
        (Holder, Holder(MODEL, []), {"model": {"no": 1, "at": None}, "checked": []}),
        (Any, {"a": MODEL}, {"a": {"no": 1, "at": None}}),
    ],
)
def test_out(hint: Any, value: Any, encoded: Any) -> None:
    def call() -> Any: ...

    call.__annotations__["return"] = hint
    assert read(call).encode_output(value) == encoded
    schema = read(call).output_schema
    if schema is not None:
        assert "$ref" not in schema
        assert compile_schema(schema).problems(encoded) == []


def test_a_field_for_a_default_is_refused_with_the_fix() -> None:
    def call(x: int = Field(3, ge=1)) -> None: ...

    with pytest.raises(TypeError, match=r"write x: Annotated\[<type>, Field\(\.\.\.\)\]"):
        read(call)


def test_what_pydantic_cannot_use_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(TypeError, match="pydantic cannot use"):
        read(taking(Annotated[Plain, Field(title="x")]))


def test_pydantic_is_never_imported_by_us() -> None:
    source = """
import sys
from typing import Annotated
from annotated_types import Ge
from mcp_actors._schema.signature import read_signature

class Context: pass
def good(a: int, b: list[dict[str, float]]) -> dict[str, int]: ...
def bad(a: Annotated[int, Ge(1)]) -> None: ...

signature = read_signature(good, injected=Context)
signature.encode_output({"a": 1})
try:
    read_signature(bad, injected=Context)
except TypeError as error:
    print(error)
assert "pydantic" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert "which is not imported; use Meta instead" in done.stdout
