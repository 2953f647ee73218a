"""What is read from a function: what it injects, what it binds, how strictly, and what it says when it cannot."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import pathlib
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NoReturn, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from mcp_actors._capabilities.signature import (
    InvalidArguments,
    JsonType,
    Signature,
    injected_parameter,
    read_signature,
)
from mcp_actors.types import CallToolResult, ImageContent, TextContent

T = TypeVar("T")


class Context:
    """Stands for the context class: which one it is, is a parameter."""


class Special(Context, Generic[T]):
    """A context with more to it."""


def read(call: Callable[..., Any]) -> Signature:
    return read_signature(call, injected=Context)


def refused(call: Callable[..., Any], arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        read(call).bind(arguments)
    return str(caught.value).removeprefix("invalid arguments: ")


def taking(hint: Any) -> Callable[..., Any]:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = hint
    return take


def take(hint: Any, value: Any) -> Any:
    return read(taking(hint)).bind({"value": value})["value"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    HALF = 1.5
    NONE = None


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Circle:
    x: int
    radius: float


@attrs.define
class Private:
    _secret: str
    shown: int = 1
    made: int = attrs.field(init=False, default=7)


class Options(TypedDict, total=False):
    verbose: bool


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Shapes:
    """Holds a union that cannot be told apart by its tags."""

    one: Point | Circle
    more: list[Shapes] = field(default_factory=list)


UserId = NewType("UserId", int)


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


STRICT: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 10**30, 10**30),
    (float, 3, 3.0),
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
    (int, 3.0, "value: expected integer, got number"),
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
    (Annotated[str, Meta(pattern="^(?!b)")], "b", "value: expected string matching regex '^(?!b)'"),
    (Private, {"shown": 1}, "value.secret: is required but missing"),
]


@pytest.mark.parametrize(("hint", "given_", "text"), REFUSED)
def test_nothing_is_parsed_into_something_else(hint: Any, given_: Any, text: str) -> None:
    assert refused(taking(hint), {"value": given_}).startswith(text)


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
    scope: dict[str, Any] = dict(globals())
    exec(compile(source, "<test>", "exec", flags=0, dont_inherit=False), scope)
    with pytest.raises(TypeError, match=message):
        read(scope["f"])


def test_positional_only_with_a_default_keeps_it() -> None:
    def call(a: int = 1, /, b: int = 2) -> None: ...

    assert read(call).bind({"b": 3}) == {"b": 3}
    assert "a" not in read(call).input_schema["properties"]


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
            (Point, None, "not of the declared type: expected object, got null"),
            (list[Point], [Point("x")], r"not of the declared type: \[0\].x: expected integer, got string"),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_not_of_the_declared_type_is_an_error(self, hint: Any, value: Any, message: str) -> None:
        def call() -> Any: ...

        call.__annotations__["return"] = hint
        with pytest.raises(TypeError, match=message):
            read(call).encode_output(value)

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
