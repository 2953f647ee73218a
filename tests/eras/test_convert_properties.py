"""Properties: what is written can be read back, and what cannot be read is refused in one way only."""

from __future__ import annotations

import functools
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_actors import types as vocabulary
from mcp_actors._eras.convert import StructureError, make_converter
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.types import UNSET

FULL = make_converter()
CLASSES = [
    each
    for name in vocabulary.__all__
    if attrs.has(each := getattr(vocabulary, name)) and "extra" in attrs.fields_dict(each)
]

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    SCALARS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SIMPLE = {str: TEXT, bool: st.booleans(), int: st.integers(-(2**53), 2**53), Any: JSON}
UNKNOWN = st.dictionaries(TEXT.map("x-{}".format), JSON, max_size=2)


# Few examples for each class, as there are many classes; how long one takes says nothing about the code.
MODEST = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def values(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation is float:
        return SIMPLE[int] | st.floats(allow_nan=False, allow_infinity=False)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is list:
        return st.lists(values(parts[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXT, values(parts[1]), max_size=2)
    if origin in (Union, types.UnionType):
        return st.one_of([st.none() if part is types.NoneType else values(part) for part in parts])
    return st.deferred(lambda: objects(annotation))


@functools.cache
def objects(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    fields = {
        # Nothing is made that is good for less than nothing.
        field.name: st.none() | st.integers(min_value=0)
        if field.name == "ttl_ms"
        else (st.just(UNSET) | JSON)
        if field.default is UNSET
        else values(hints[field.name])
        for field in attrs.fields(cls)
        if field.init
        if field.name != "extra"
    }
    return st.builds(cls, **fields, extra=UNKNOWN)


@pytest.mark.long
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@MODEST
@given(data=st.data())
def test_what_is_written_is_read_back(cls: type, data: st.DataObject) -> None:
    thing = data.draw(objects(cls))
    plain = decode_value(encode_value(FULL.unstructure(thing)))
    assert FULL.structure(plain, cls) == thing
    assert FULL.unstructure(FULL.structure(plain, cls)) == plain


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@MODEST
@given(data=st.data())
def test_what_any_revision_wrote_any_revision_reads(cls: type, data: st.DataObject) -> None:
    """Members that the reader does not know are kept, so what it read it writes again."""
    eras = [*LEGACY.values(), LATEST_MODERN]
    reader = data.draw(st.sampled_from(eras))
    plain = decode_value(encode_value(FULL.unstructure(data.draw(objects(cls)))))
    thing = reader.structure(plain, cls)
    kept = {name: value for name, value in plain.items() if name in thing.extra}
    assert thing.extra == kept


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@MODEST
@given(data=st.data())
def test_any_json_is_read_or_refused(cls: type, data: st.DataObject) -> None:
    plain = FULL.unstructure(data.draw(objects(cls)))
    spoilt = data.draw(
        JSON
        if not plain
        else st.sampled_from(sorted(plain)).flatmap(lambda name: JSON.map(lambda v: {**plain, name: v}))
    )
    assert outcome(spoilt, cls) in ("read", "refused")


def outcome(value: Any, cls: type) -> str:
    """Any exception but the one that is meant for it comes out and fails the test."""
    try:
        thing: Any = FULL.structure(value, cls)
    except StructureError as error:
        return "refused" if str(error) else "refused without a word"
    return "read" if isinstance(thing, cls) else "read as something else"
