"""Pydantic's types are validated and written by pydantic, wherever they stand, and never imported by us."""

from __future__ import annotations

import datetime
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, Field

from mcp_actors._schema.validate import compile_schema

from .signature_samples import Point, read, refused, take, taking


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
