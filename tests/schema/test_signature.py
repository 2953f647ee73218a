"""What is read from a function: what it injects, what it binds, what it refuses to read."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NoReturn, Optional, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from mcp_actors._schema.signature import InvalidArguments, JsonType, injected_parameter, read_signature
from mcp_actors.types import CallToolResult, ImageContent, TextContent

from .signature_samples import (
    Cat,
    Circle,
    Color,
    Context,
    Dog,
    Odd,
    Options,
    Point,
    Private,
    Shapes,
    Special,
    read,
    refused,
    take,
    taking,
)


class TestInjected:
    def test_any_position_and_kind(self) -> None:
        def first(ctx: Context, a: int) -> None: ...
        def last(a: int, *, here: Context | None = None) -> None: ...
        def middle(a: int, ctx: Annotated[Context, "x"], b: int) -> None: ...
        def generic(a: int, ctx: Special[int]) -> None: ...
        def none(a: int) -> None: ...

        found = {call.__name__: read(call) for call in (first, last, middle, generic, none)}
        assert {name: signature.injected_name for name, signature in found.items()} == {
            "first": "ctx",
            "last": "here",
            "middle": "ctx",
            "generic": "ctx",
            "none": None,
        }
        for signature in found.values():
            assert not {"ctx", "here"} & set(signature.input_schema["properties"])
            assert signature.bind(
                {"a": 1, **({"b": 2} if "b" in signature.input_schema["properties"] else {})}
            )

    def test_the_context_cannot_be_given_by_the_peer(self) -> None:
        def call(ctx: Context, a: int) -> None: ...

        assert refused(call, {"a": 1, "ctx": {}}) == "ctx: is not an argument; the arguments are a"

    def test_its_name_alone(self) -> None:
        def call(value: str, ctx: Context) -> None: ...

        assert injected_parameter(call, Context) == "ctx"
        assert injected_parameter(len, Context) is None

    def test_twice_is_an_error(self) -> None:
        def call(one: Context, two: Context) -> None: ...

        with pytest.raises(TypeError, match="takes the context twice: one and two"):
            read(call)


class TestBinding:
    def test_what_is_not_given_is_left_to_python(self) -> None:
        def call(a: int, b: str = "b", *, c: list[int] | None = None) -> None: ...

        bind = read(call).bind
        assert bind({"a": 1}) == {"a": 1}
        assert bind({"c": [2], "a": 1}) == {"a": 1, "c": [2]}

    def test_no_arguments(self) -> None:
        def call() -> None: ...

        assert read(call).bind({}) == {}
        assert refused(call, {"x": 1}) == "x: is not an argument; there are no arguments"

    def test_unannotated_is_anything(self) -> None:
        def call(a, b=3): ...  # type: ignore[no-untyped-def]

        assert read(call).bind({"a": [1, {"x": None}], "b": "text"}) == {"a": [1, {"x": None}], "b": "text"}

    def test_partials_methods_objects_and_wrapped_functions(self) -> None:
        class Greeter:
            """Greets."""

            def greet(self, name: str, ctx: Context) -> str:
                """Greets by name."""
                return name

            def __call__(self, name: str) -> str:
                """Greets when called."""
                return name

        def add(a: int, b: int) -> int:
            """Adds."""
            return a + b

        @functools.wraps(add)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return add(*args, **kwargs)

        assert read(Greeter().greet).bind({"name": "x"}) == {"name": "x"}
        assert read(Greeter().greet).injected_name == "ctx"
        assert read(Greeter()).bind({"name": "x"}) == {"name": "x"}
        assert read(Greeter()).description == "Greets when called."
        assert read(wrapped).bind({"a": 1, "b": 2}) == {"a": 1, "b": 2}
        partial = functools.partial(add, b=2)
        assert read(partial).bind({"a": 1}) == {"a": 1}
        assert read(partial).description == "Adds."
        assert read(functools.partial(add, 1)).bind({"b": 1}) == {"b": 1}

    def test_the_annotations_of_an_object_that_is_called(self) -> None:
        class Adder:
            base: int

            def __init__(self) -> None:
                self.base = 1

            def __call__(self, number: int) -> int:
                return self.base + number

        class Own(Adder):
            pass

        @functools.cache
        def cached(number: int) -> int:
            return number

        class Counted:
            calls: int = 0

            def __init__(self, call: Any) -> None:
                functools.update_wrapper(self, call)

            def __call__(self, *args: Any) -> Any: ...

        for call in (
            Adder(),
            Own(),
            functools.partial(Adder()),
            cached,
            Counted(cached),
            Counted(Own().__call__),
        ):
            assert read(call).input_schema["properties"] == {"number": {"type": "integer"}}, call
            assert read(call).output_schema is not None, call

    def test_types_that_live_inside_a_function(self) -> None:
        @dataclass
        class Inner:
            x: int
            next: Inner | None = None

        def call(inner: Inner, many: list[Inner]) -> Inner: ...

        signature = read(call)
        bound = signature.bind({"inner": {"x": 1, "next": {"x": 2}}, "many": [{"x": 3}]})
        assert bound == {"inner": Inner(1, Inner(2)), "many": [Inner(3)]}
        assert signature.encode_output(Inner(1)) == {"x": 1, "next": None}

    def test_raw_takes_all_as_one_dict(self) -> None:
        def call(everything: dict[str, Any], ctx: Context) -> None: ...
        def two(a: dict[str, Any], b: int) -> None: ...

        signature = read_signature(call, injected=Context, raw=True)
        assert signature.bind({"a": 1}) == {"everything": {"a": 1}}
        assert signature.injected_name == "ctx"
        with pytest.raises(TypeError, match="takes one parameter"):
            read_signature(two, injected=Context, raw=True)


def test_every_offending_argument_is_named() -> None:
    def call(
        city: str, days: int, unit: Literal["c", "f"] = "c", *, deep: dict[str, Point] | None = None
    ) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        read(call).bind({"days": "3", "unit": "k", "deep": {"p": {"x": None}}, "town": "Paris"})
    assert str(caught.value) == (
        "invalid arguments: city: is required but missing; days: expected integer, got string; "
        'unit: must be one of "c", "f", got "k"; deep.p.x: expected integer, got null; '
        "town: is not an argument; the arguments are city, days, unit, deep"
    )
    assert [problem.path for problem in caught.value.problems] == ["city", "days", "unit", "deep.p.x", "town"]


def test_all_that_is_missing_is_listed() -> None:
    names = [f"p{i}" for i in range(15)]
    scope: dict[str, Any] = {}
    exec(f"def call({', '.join(names)}): ...", scope)  # a signature of that width is best written by a loop
    assert refused(scope["call"], {}) == "; ".join(f"{name}: is required but missing" for name in names)


def test_arguments_that_are_no_object() -> None:
    assert refused(taking(int), [1]) == "expected object, got array"


def test_a_message_stays_short() -> None:
    text = refused(taking(int), {"value": 1, **{f"x{i}": 1 for i in range(500)}})
    assert text.endswith("; and 480 more")
    assert len(refused(taking(Literal["a"]), {"value": "b" * 10_000})) < 200


def test_what_a_class_says_of_its_values_reaches_the_model() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("n must be even")

    assert take(Even, {"n": 2}) == Even(2)
    assert "n must be even" in refused(taking(list[Even]), {"value": [{"n": 3}]})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(*args): ...", "declare each parameter"),
        ("def f(a, **more): ...", r"\*\*more has no names"),
        ("def f(a, /): ...", "remove the '/'"),
        ("def f(ctx: Context, /): ...", "remove the '/'"),
        ("def f(a: Missing): ...", "a name that is not defined: Missing"),
        ("def f(a: complex): ...", "the parameter a cannot be used: complex has no form in JSON"),
        ("def f(a: list[Context]): ...", "Context has no form in JSON"),
        ("def f(a: Annotated[int, Meta(pattern='x')]): ...", "cannot be limited by"),
    ],
)
def test_what_cannot_be_called_by_name_is_refused_at_once(source: str, message: str) -> None:
    scope: dict[str, Any] = {"Annotated": Annotated, "Context": Context, "Meta": Meta}
    exec(source, scope)
    with pytest.raises(TypeError, match=message):
        read(scope["f"])


def test_positional_only_with_a_default_keeps_it() -> None:
    def call(a: int = 1, /, b: int = 2) -> None: ...

    assert read(call).bind({"b": 3}) == {"b": 3}
    assert "a" not in read(call).input_schema["properties"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d", "x"]), json_values, max_size=5))
def test_any_arguments_are_bound_or_refused_with_words(arguments: dict[str, Any]) -> None:
    def call(
        a: int, b: list[Point | str] | None = None, c: Shapes | None = None, d: Literal[1, "x"] = 1
    ) -> None: ...

    problems, bound = [], arguments
    try:
        bound = read(call).bind(arguments)
    except InvalidArguments as error:
        problems = error.problems
    assert bound.keys() == arguments.keys()
    assert problems or bound.keys() >= {"a"}
    assert all(problem.path and problem.text for problem in problems)


# -- What becomes of what a function returns -------------------------------------------------------------


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


# -- Patterns in annotations: matched in time linear in what a peer sends, wherever in a type they stand ---

# Backtracks in 2ⁿ steps: with Python's own engine no test that meets `HOSTILE` would end.
Slow = Annotated[str, Meta(pattern="^(a+)+$")]
# The first alternative fails as slowly, and then the second one fits.
SlowWhereItFits = Annotated[str, Meta(pattern="^(a+)+$|b$")]
HOSTILE = "a" * 5_000 + "b"
SlowName = NewType("SlowName", Slow)  # type: ignore[valid-newtype]


@dataclasses.dataclass
class Data:
    x: Slow


@attrs.define
class Attrs:
    x: Slow


class Typed(TypedDict):
    x: Slow


class Named(NamedTuple):
    x: Slow


class Struct(msgspec.Struct):
    x: Slow


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    x: Slow


class CatSignaturePatterns(msgspec.Struct, tag="cat", tag_field="kind"):
    name: Slow


class DogSignaturePatterns(msgspec.Struct, tag="dog", tag_field="kind"):
    name: Slow


@dataclasses.dataclass
class Tree:
    x: Slow
    children: list[Tree]


ANYWHERE: list[tuple[Any, Any, Any, Any]] = [
    (Slow, "aa", "aa", HOSTILE),
    (SlowName, "aa", "aa", HOSTILE),
    (Optional[Slow], None, None, HOSTILE),  # noqa: UP045
    (Annotated[str | None, Meta(pattern="^(a+)+$")], "a", "a", HOSTILE),
    (Annotated[str | int, Meta(pattern="^(a+)+$")], 5, 5, HOSTILE),
    (Annotated[Slow, Meta(min_length=2)], "aa", "aa", HOSTILE),
    (Annotated[Slow, Meta(min_length=2)], "aa", "aa", "a"),
    (list[Slow], ["a"], ["a"], ["a", HOSTILE]),
    (tuple[Slow, int], ["a", 1], ("a", 1), [HOSTILE, 1]),
    (dict[str, Slow], {"k": "a"}, {"k": "a"}, {"k": HOSTILE}),
    (dict[Slow, int], {"a": 1}, {"a": 1}, {HOSTILE: 1}),
    (Mapping[Slow, Slow], {"a": "a"}, {"a": "a"}, {"a": HOSTILE}),
    (Data, {"x": "a"}, Data("a"), {"x": HOSTILE}),
    (Attrs, {"x": "a"}, Attrs("a"), {"x": HOSTILE}),
    (Typed, {"x": "a"}, {"x": "a"}, {"x": HOSTILE}),
    (Named, ["a"], Named("a"), [HOSTILE]),
    (Struct, {"x": "a"}, Struct("a"), {"x": HOSTILE}),
    (list[Data], [{"x": "a"}], [Data("a")], [{"x": HOSTILE}]),
    (Data | int, {"x": "a"}, Data("a"), {"x": HOSTILE}),
    (Closed, {"x": "a"}, Closed("a"), {"x": "a", "more": 1}),
    (
        CatSignaturePatterns | DogSignaturePatterns,
        {"kind": "dog", "name": "a"},
        DogSignaturePatterns("a"),
        {"kind": "dog", "name": HOSTILE},
    ),
    (
        CatSignaturePatterns | DogSignaturePatterns,
        {"kind": "cat", "name": "a"},
        CatSignaturePatterns("a"),
        {"kind": "cow", "name": "a"},
    ),
    (
        CatSignaturePatterns,
        {"kind": "cat", "name": "a"},
        CatSignaturePatterns("a"),
        {"kind": "dog", "name": "a"},
    ),
    (
        Tree,
        {"x": "a", "children": [{"x": "aa", "children": []}]},
        Tree("a", [Tree("aa", [])]),
        {"x": "a", "children": [{"x": HOSTILE, "children": []}]},
    ),
]


@pytest.mark.parametrize(("hint", "good", "made", "bad"), ANYWHERE)
def test_a_pattern_never_backtracks(hint: Any, good: Any, made: Any, bad: Any) -> None:
    assert take(hint, good) == made
    assert refused(taking(hint), {"value": bad})


def test_nor_does_one_that_fits_in_the_end() -> None:
    assert take(SlowWhereItFits, HOSTILE) == HOSTILE


def test_what_is_wrong_is_said_with_its_place() -> None:
    text = refused(taking(list[Data]), {"value": [{"x": "c"}]})
    assert text == 'value[0].x: must match the pattern "^(a+)+$", got "c"'


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(?<!a)b", "(a{1000}){1000}"])
def test_a_pattern_that_needs_backtracking_is_refused_at_registration(pattern: str) -> None:
    hint = Annotated[str, Meta(pattern=pattern)]
    with pytest.raises(TypeError, match=r"the parameter value cannot be used: .*pattern"):
        read(taking(hint))
    with pytest.raises(TypeError, match="pattern"):
        read(taking(list[hint]))
