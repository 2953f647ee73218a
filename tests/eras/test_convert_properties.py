"""Properties: what is written can be read back, and what cannot be read is refused in one way only."""

from __future__ import annotations

import functools
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_actors import types as vocabulary
from mcp_actors._eras.convert import StructureError, make_converter
from mcp_actors._eras.era import Era, ValueResult
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors._wire.codec import COLLECTOR_PAUSES, decode_value, encode_value
from mcp_actors.types import UNSET, CallToolResult, TextContent

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
        # An icon with another source is left out by who reads it.
        else TEXT.map("https://icons.example.com/{}".format)
        if cls is vocabulary.Icon and field.name == "src"
        else values(hints[field.name])
        for field in attrs.fields(cls)
        if field.init
        if field.name != "extra"
    }
    return st.builds(cls, **fields, extra=UNKNOWN)


@pytest.mark.slow
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


# -- results of tools in their common form: read without the converter, and read as it does ------------------------

ERAS = pytest.mark.parametrize("era", [*LEGACY.values(), LATEST_MODERN], ids=lambda era: era.version)
TOOL_CALL = LATEST_MODERN.server_methods["tools/call"]

BLOCK = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
USUAL = st.fixed_dictionaries(
    {"content": st.lists(BLOCK, max_size=2)},
    optional={
        "structuredContent": JSON,
        "isError": st.booleans(),
        "_meta": st.dictionaries(TEXT, JSON, max_size=2),
        "resultType": st.just("complete"),
    },
)
# One member is odd, so that nothing else is why the short way is not taken.
ODD_BLOCKS = [
    {"type": "image", "text": "a"},
    {"type": "image", "data": "YQ==", "mimeType": "image/png"},
    {"type": None, "text": "a"},
    {"type": "text", "text": 1},
    {"type": "text", "text": None},
    {"type": "text"},
    {"text": "a"},
    {"type": "text", "text": "a", "_meta": {"a": 1}},
    {"type": "text", "text": "a", "annotations": None},
    {"type": "text", "text": "a", "x-unknown": 1},
    "a",
    None,
]
ODD: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("content"), st.sampled_from([[each] for each in ODD_BLOCKS]) | JSON),
    st.tuples(st.just("isError"), st.sampled_from([None, 0, 1, 1.0, "true"])),
    st.tuples(st.just("_meta"), st.sampled_from([None, [], "", 1])),
    st.tuples(st.just("resultType"), st.sampled_from(["input_required", "task", None, 1])),
    st.tuples(st.just("x-unknown"), JSON),
)
# Pairs and not a dict, because a peer may repeat a member.
TOOL_RESULTS = st.builds(
    lambda usual, odd, last: [*usual.items(), *odd] if last else [*odd, *usual.items()],
    USUAL,
    st.lists(ODD, max_size=1),
    st.booleans(),
)


def as_json(pairs: list[tuple[str, Any]], blank: bytes) -> bytes:
    members = [encode_value(name) + b":" + blank + encode_value(value) for name, value in pairs]
    return b"{" + (b"," + blank).join(members) + b"}"


@pytest.mark.slow
@ERAS
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs=TOOL_RESULTS, blank=st.sampled_from([b"", b" "]))
def test_what_is_read_in_the_short_way_is_what_the_converter_reads(
    era: Era, pairs: list[tuple[str, Any]], blank: bytes
) -> None:
    data = as_json(pairs, blank)
    read = era.read_tool_result(msgspec.Raw(data))
    plain = decode_value(data)
    if read is not None:
        # A result of another kind than a complete one is not for this reader.
        assert plain.get("resultType", "complete") == "complete"
        whole = era.structure(plain, CallToolResult)
        # 1 == True and 1 == 1.0, but they are written in different ways.
        assert (read, repr(read)) == (whole, repr(whole))
        assert encode_value(era.unstructure(read)) == encode_value(era.unstructure(whole))


@ERAS
@MODEST
@given(text=TEXT, value=JSON | st.just(UNSET), meta=st.none() | st.dictionaries(TEXT, JSON, max_size=2))
def test_what_our_servers_answer_is_read_in_the_short_way(
    era: Era, text: str, value: Any, meta: dict[str, Any] | None
) -> None:
    for result in (ValueResult(text, value), CallToolResult([TextContent(text)], value, True, meta=meta)):
        sealed = encode_value(era.seal(result, TOOL_CALL, {"server_info": {"name": "s"}}))
        read = era.read_tool_result(msgspec.Raw(sealed))
        assert read == era.structure(decode_value(sealed), CallToolResult)


@ERAS
def test_a_long_result_is_left_to_the_reader_that_pauses_the_collector(era: Era) -> None:
    block = {"type": "text", "text": "a" * COLLECTOR_PAUSES}
    assert era.read_tool_result(msgspec.Raw(encode_value({"content": [block]}))) is None
    assert era.read_tool_result(msgspec.Raw(encode_value({"content": []}))) == CallToolResult([])
