"""The habits that every class of the vocabulary keeps."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import attrs
import pytest

from mcp_actors import types
from mcp_actors.types import UNSET, CallToolResult, ResourceLink, TextContent, Unset

CLASSES = [each for name in types.__all__ if attrs.has(each := getattr(types, name))]
# Schemas of forms are written by `form_schema` and never read: they keep no unknown members.
WIRE_CLASSES = [each for each in CLASSES if each.__module__ != "mcp_actors.types.form"]


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
