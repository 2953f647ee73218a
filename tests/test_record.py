"""Comparison, hash and representation that all records share, against those that attrs makes."""

from __future__ import annotations

import attrs
import pytest

from mcp_actors.types import Implementation, Resource, ResourceLink, Tool
from mcp_actors.types.records import ValueRecord


@attrs.frozen(eq=False, repr=False)
class Shared(ValueRecord):
    name: str
    secret: str = attrs.field(default="", repr=lambda text: f"<{len(text)}>")
    unseen: int = attrs.field(default=0, repr=False, eq=False)


@attrs.frozen
class Made:
    name: str
    secret: str = attrs.field(default="", repr=lambda text: f"<{len(text)}>")
    unseen: int = attrs.field(default=0, repr=False, eq=False)


@pytest.mark.parametrize("other", [("a", "b", 1), ("a", "b", 2), ("a", "c", 1), ("b", "b", 1)])
def test_it_compares_and_shows_as_attrs_does(other: tuple[str, str, int]) -> None:
    assert (Shared("a", "b", 1) == Shared(*other)) == (Made("a", "b", 1) == Made(*other))
    assert (hash(Shared("a", "b", 1)) == hash(Shared(*other))) == (
        hash(Made("a", "b", 1)) == hash(Made(*other))
    )
    assert repr(Shared(*other)) == repr(Made(*other)).replace("Made", "Shared")


def test_objects_of_other_classes_are_different() -> None:
    assert Resource("file:///a", "a") != ResourceLink("file:///a", "a")
    assert Implementation("a", "1") != ("a", "1")


def test_what_may_change_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Tool("a", {}))


def test_an_object_that_contains_itself_is_shown() -> None:
    tool = Tool("a", {})
    tool.extra["self"] = tool

    assert "'self': ..." in repr(tool)
