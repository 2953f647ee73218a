"""Patterns in annotations: matched in time linear in what a peer sends, wherever in a type they stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, NewType, Optional, TypedDict

import attrs
import msgspec
import pytest
from msgspec import Meta

from .signature_samples import read, refused, take, taking

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


class Cat(msgspec.Struct, tag="cat", tag_field="kind"):
    name: Slow


class Dog(msgspec.Struct, tag="dog", tag_field="kind"):
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
    (Cat | Dog, {"kind": "dog", "name": "a"}, Dog("a"), {"kind": "dog", "name": HOSTILE}),
    (Cat | Dog, {"kind": "cat", "name": "a"}, Cat("a"), {"kind": "cow", "name": "a"}),
    (Cat, {"kind": "cat", "name": "a"}, Cat("a"), {"kind": "dog", "name": "a"}),
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
