"""The habits that every class of the vocabulary keeps."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors import types
from mcp_actors.types import (
    UNSET,
    BooleanSchema,
    CallToolResult,
    CreateMessageResult,
    EnumOption,
    ImageContent,
    LegacyTitledEnumSchema,
    NumberSchema,
    ResourceLink,
    SamplingMessage,
    StringSchema,
    TextContent,
    TitledMultiSelectEnumSchema,
    TitledSingleSelectEnumSchema,
    ToolResultContent,
    ToolUseContent,
    Unset,
    UntitledMultiSelectEnumSchema,
    UntitledSingleSelectEnumSchema,
    fill_defaults,
    form_schema,
    validate_form_answer,
)
from mcp_actors.types.records import ValueRecord, frozen_record, record

# -- Forms: made from typed schemas, filled with defaults, and answers checked against them --------------

RED, BLUE = EnumOption("#f00", "Red"), EnumOption("#00f", "Blue")

FORMS: list[tuple[Any, dict[str, Any]]] = [
    (
        StringSchema(title="Mail", min_length=3, max_length=9, format="email", default="a@b"),
        {
            "type": "string",
            "title": "Mail",
            "minLength": 3,
            "maxLength": 9,
            "format": "email",
            "default": "a@b",
        },
    ),
    (
        NumberSchema(minimum=0, maximum=1.5, default=0),
        {"type": "number", "minimum": 0, "maximum": 1.5, "default": 0},
    ),
    (NumberSchema(type="integer"), {"type": "integer"}),
    (
        BooleanSchema(description="Sure?", default=False),
        {"type": "boolean", "description": "Sure?", "default": False},
    ),
    (
        UntitledSingleSelectEnumSchema(("a", "b"), default="a"),
        {"type": "string", "enum": ["a", "b"], "default": "a"},
    ),
    (
        TitledSingleSelectEnumSchema([RED, BLUE]),
        {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#00f", "title": "Blue"}]},
    ),
    (
        UntitledMultiSelectEnumSchema(["a", "b"], min_items=1, max_items=2, default=["b"]),
        {
            "type": "array",
            "items": {"type": "string", "enum": ["a", "b"]},
            "minItems": 1,
            "maxItems": 2,
            "default": ["b"],
        },
    ),
    (
        TitledMultiSelectEnumSchema([RED], title="Colours"),
        {"type": "array", "title": "Colours", "items": {"anyOf": [{"const": "#f00", "title": "Red"}]}},
    ),
    (
        LegacyTitledEnumSchema(["a", "b"], ["A", "B"]),
        {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    ),
]


@pytest.mark.parametrize(("typed", "plain"), FORMS, ids=lambda each: type(each).__name__)
def test_typed_schema_becomes_json_schema(typed: Any, plain: dict[str, Any]) -> None:
    assert form_schema({"x": typed}) == {"type": "object", "properties": {"x": plain}}


def test_plain_schemas_mix_with_typed_ones_and_names_may_be_required() -> None:
    schema = form_schema({"a": {"type": "string"}, "b": BooleanSchema()}, required=["a"])
    assert schema["properties"] == {"a": {"type": "string"}, "b": {"type": "boolean"}}
    assert schema["required"] == ["a"]


def test_defaults_fill_what_was_left_out_and_nothing_else() -> None:
    schema = form_schema(
        {
            "name": StringSchema(default="John Doe"),
            "age": NumberSchema(type="integer", default=30),
            "verified": BooleanSchema(default=False),
            "tags": UntitledMultiSelectEnumSchema(["a", "b"], default=["a"]),
            "note": StringSchema(),
        }
    )
    given_answer = {"name": "", "more": 1}
    filled = fill_defaults(schema, given_answer)
    assert filled == {"name": "", "more": 1, "age": 30, "verified": False, "tags": ["a"]}
    assert given_answer == {"name": "", "more": 1}
    filled["tags"].append("b")
    assert schema["properties"]["tags"]["default"] == ["a"]
    assert fill_defaults(schema, None)["name"] == "John Doe"
    assert fill_defaults({}, {"a": 1}) == {"a": 1}


GOOD_AND_BAD: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "string"}, ["", "x"], [1, None, True, ["x"]]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    ({"type": "string", "format": "email"}, ["a@b.c"], ["a", "@b", "a@", "a b@c"]),
    (
        {"type": "string", "format": "uri"},
        ["https://a.b/c", "mailto:a@b"],
        ["a/b", "https:", "http://[", "x:a b"],
    ),
    (
        {"type": "string", "format": "date"},
        ["2024-02-29"],
        ["2023-02-29", "20240229", "2024-02-29T00:00:00Z"],
    ),
    (
        {"type": "string", "format": "date-time"},
        ["2024-02-29T12:00:00Z", "2024-02-29t12:00:00.123+02:00"],
        ["2024-02-29", "2024-02-29T12:00:00", "2024-02-29T25:00:00Z"],
    ),
    ({"type": "string", "format": "unknown"}, ["x"], []),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1], [-0.1, 2, "1", True]),
    ({"type": "integer"}, [3, 3.0], [3.5, "3", False]),
    ({"type": "boolean"}, [True, False], [0, 1, "true"]),
    ({"type": "string", "enum": ["a", "b"]}, ["a"], ["c", ["a"]]),
    ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, ["a"], ["A"]),
    ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, [[], ["a", "b"]], ["a", ["c"], [1]]),
    (
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "minItems": 1},
        [["a"]],
        [[], ["A"]],
    ),
    (
        {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 1},
        [["a"]],
        [["a", "b"]],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), GOOD_AND_BAD, ids=lambda each: str(each)[:40])
def test_answers_are_checked(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    form = {"type": "object", "properties": {"x": schema}}
    assert [value for value in good if validate_form_answer(form, {"x": value})] == []
    assert [value for value in bad if not validate_form_answer(form, {"x": value})] == []
    for value in bad:
        (fault,) = validate_form_answer(form, {"x": value})
        assert fault.startswith("x: must ")


def test_required_members_must_be_there_and_others_need_not() -> None:
    form = form_schema({"a": StringSchema(), "b": StringSchema()}, required=["a"])
    assert validate_form_answer(form, {}) == ["a: is required"]
    assert validate_form_answer(form, None) == ["a: is required"]
    assert validate_form_answer(form, {"a": "x", "stray": 1}) == []


@pytest.mark.parametrize(("typed", "plain"), FORMS, ids=lambda each: type(each).__name__)
@settings(deadline=None)
@given(
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text() | st.integers())
)
def test_no_answer_upsets_the_check(typed: Any, plain: dict[str, Any], value: Any) -> None:
    faults = validate_form_answer(form_schema({"x": plain}), {"x": value})
    assert len(faults) <= 1


# -- Habits that every class of the vocabulary keeps -----------------------------------------------------

CLASSES = [each for name in types.__all__ if attrs.has(each := getattr(types, name))]
# Schemas of forms are written by `form_schema` and never read: they keep no unknown members.
# Skills and pages are described by values that are read of an entry, and hold no messages.
WIRE_CLASSES = [
    each for each in CLASSES if each.__module__.rpartition(".")[2] not in ("apps", "form", "skills")
]


@pytest.mark.parametrize("cls", WIRE_CLASSES, ids=lambda cls: cls.__name__)
def test_unknown_members_have_a_place_at_the_end(cls: type) -> None:
    *_, last = attrs.fields(cls)
    assert last.name == "extra"
    assert last.kw_only


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_says_what_it_is(cls: type) -> None:
    assert inspect.getdoc(cls)


def test_every_public_name_exists_once() -> None:
    assert len(set(types.__all__)) == len(types.__all__)
    assert [name for name in types.__all__ if not hasattr(types, name)] == []


def test_type_checkers_are_told_the_names_that_are_loaded_late() -> None:
    stub = ast.parse(Path(types.__file__).with_suffix(".pyi").read_text())
    told = {
        name.name: getattr(importlib.import_module(node.module or ""), name.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert {name: getattr(types, name) for name in types.__all__} == told
    assert set(told) <= set(dir(types))
    with pytest.raises(AttributeError, match="no attribute 'Pigeon'"):
        getattr(types, "Pigeon")  # noqa: B009


def test_discriminators_are_constants_and_not_arguments() -> None:
    assert TextContent("hi").type == "text"
    assert ResourceLink("file:///a", "a").type == "resource_link"
    assert CallToolResult([]).result_type == "complete"
    with pytest.raises(TypeError):
        TextContent(type="text", text="hi")  # type: ignore[call-arg]


def test_objects_share_no_extra() -> None:
    one, other = TextContent("a"), TextContent("a")
    one.extra["x"] = 1
    assert other.extra == {}
    assert one != other


def test_unset_is_false_and_is_not_none() -> None:
    assert not UNSET
    assert UNSET is not None
    assert repr(UNSET) == "UNSET"
    assert CallToolResult([]).structured_content is Unset.UNSET
    assert CallToolResult([], structured_content=None).structured_content is None


# -- Records, which attrs completes when they are first used ---------------------------------------------


class Line(ValueRecord):
    """Is made by the decorators in the tests, anew in each of them."""

    __hash__ = ValueRecord.__hash__

    begin: int
    end: int = 9
    name: ClassVar[str] = "line"
    marks: list[int] = attrs.field(factory=list, kw_only=True, eq=False, repr=False)
    width: int = attrs.field(default=1, kw_only=True, validator=attrs.validators.ge(0))


def made(*, frozen: bool = False, full: bool = False) -> Any:
    """The class as attrs makes it at once, if ``full``, or as it is until attrs completes it."""
    if full:
        return (attrs.frozen if frozen else attrs.define)(eq=False, repr=False)(Line)
    return (frozen_record if frozen else record)(eq=False, repr=False)(Line)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_record_is_what_attrs_makes(frozen: bool) -> None:
    late, full = made(frozen=frozen), made(frozen=frozen, full=True)
    assert inspect.signature(late) == inspect.signature(full)
    assert late.__match_args__ == full.__match_args__ == ("begin", "end")
    assert late.name == "line"
    assert [each.name for each in attrs.fields(late)] == [each.name for each in attrs.fields(full)]
    for cls in (late, full):
        line = cls(1, width=2)
        assert repr(line) == "Line(begin=1, end=9, width=2)"
        assert line == copy.copy(line) == attrs.evolve(line, marks=[1]) != attrs.evolve(line, end=8)
        assert hash(line) == hash(cls(1, width=2))
        assert attrs.asdict(line) == {"begin": 1, "end": 9, "marks": [], "width": 2}
        assert weakref.ref(line)() is line
        assert not hasattr(line, "__dict__")
        with pytest.raises(ValueError, match="width"):
            cls(1, width=-1)
        with pytest.raises(TypeError):
            cls()
        with pytest.raises(AttributeError):
            line.length = 8


def test_a_frozen_record_cannot_be_changed() -> None:
    line = made(frozen=True)(1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        line.begin = 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del line.begin
    assert line.begin == 1


def test_a_record_checks_what_is_assigned() -> None:
    line = made()(1)
    line.begin = 2
    with pytest.raises(ValueError, match="width"):
        line.width = -1
    assert (line.begin, line.width) == (2, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda cls: cls(1),
        attrs.fields,
        attrs.has,
        inspect.signature,
        lambda cls: cls.__match_args__,
        lambda cls: cls.__new__(cls).__setstate__({"begin": 1}),
    ],
    ids=["constructor", "fields", "has", "signature", "pattern", "unpickling"],
)
def test_a_record_is_completed_by_the_first_question(ask: Callable[[type], object]) -> None:
    cls = made()
    assert not isinstance(vars(cls)["__attrs_attrs__"], tuple)
    ask(cls)
    assert isinstance(vars(cls)["__attrs_attrs__"], tuple)
    assert cls(1).end == 9


def test_a_record_of_a_record_has_the_fields_of_both() -> None:
    base = made()
    longer = record(eq=False, repr=False)(
        type("Longer", (base,), {"__annotations__": {"far": "int"}, "far": 3, "__doc__": "Longer."})
    )
    assert repr(longer(1, 2, 4)) == "Longer(begin=1, end=2, width=1, far=4)"
    assert repr(base(1)) == "Line(begin=1, end=9, width=1)"


def test_records_can_be_pickled() -> None:
    block = TextContent("x", annotations=types.Annotations(priority=1.0))
    assert pickle.loads(pickle.dumps(block)) == block


@pytest.mark.parametrize("frozen", [False, True])
def test_two_threads_may_complete_a_record_at_once(frozen: bool) -> None:
    cls, found = made(frozen=frozen), []
    declaration = vars(cls)["__init__"].declaration
    threads = [threading.Thread(target=lambda: found.append(cls(1))) for _ in range(8)]
    # Whoever asked before it was completed may complete it again afterwards.
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    declaration.complete()
    assert [*found, cls(1)] == [cls(1)] * 9
    if frozen:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            found[0].begin = 2


BLOCK, CALL = TextContent("one"), ToolUseContent("1", "add", {})
SAID = ToolResultContent("1", [TextContent("two"), ImageContent("", "image/png"), TextContent("three")])


@pytest.mark.parametrize(
    ("content", "text"),
    [(BLOCK, "one"), ([BLOCK, CALL, BLOCK], "one\none"), (CALL, ""), ([], ""), (SAID, "two\nthree")],
)
def test_a_message_of_a_model_has_the_text_of_its_blocks(content: Any, text: str) -> None:
    assert SamplingMessage("user", content).text == text
    assert CreateMessageResult("assistant", content, "a model").text == text
