"""An entry is put in and taken out, and every other character stays."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.install.config_text import (
    MAX_DEPTH,
    Damaged,
    Foreign,
    found_entry,
    read_config,
    value_of,
    with_entry,
    without_entry,
)

SECTION = "mcpServers"
ENTRY = {"command": "/bin/python", "args": ["-m", "it"]}


def added(text: str, *, comments: bool = True, name: str = "ours", entry: Any = ENTRY) -> str:
    return with_entry(read_config(text, SECTION, comments=comments), SECTION, name, entry)


def removed(text: str, name: str = "ours") -> str:
    return without_entry(read_config(text, SECTION, comments=True), SECTION, name)


def without_comments(text: str) -> str:
    """For texts whose strings have nothing that looks like a comment or a comma before a brace."""
    text = re.sub(r"//[^\n\r]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r",(\s*[}\]])", r"\1", text)


ALLOWED = [
    '{"mcpServers": {"theirs": {"a": 1}}, "b": [1, {"mcpServers": 2}]}',
    '{\n  "theme": "dark", // why not\n  "mcpServers": {\n    "theirs": {"a": 1} /* last */\n  }\n}\n',
    '{\n\t"mcpServers": {\n\t\t"theirs": {}, // with a comma\n\t},\n}',
    "// a comment\n{\n  // and another\n}\n// the end",
    '{"theme": 1 // one\n}',
    '{\r\n    "theme": {\r\n    }\r\n}\r\n',
    "",
    "  \n",
    "// nothing but a comment",
    "/* nothing */",
    '{\n  "mcpServers": {}\n}',
    '{\n  "mcpServers": {\n    // none yet\n  }\n}',
]


@pytest.mark.parametrize("text", ALLOWED)
def test_an_entry_comes_and_goes_and_the_rest_stays(text: str) -> None:
    there = added(text)
    before = json.loads(without_comments(text) or "{}") if without_comments(text).strip() else {}
    now = json.loads(without_comments(there))
    assert now[SECTION].pop("ours") == ENTRY
    before.setdefault(SECTION, {})
    assert now == before
    assert json.loads(without_comments(removed(there))) == before
    for comment in re.findall(r"//[^\n\r]*|/\*.*?\*/", text):
        assert comment in there
        assert comment in removed(there)


@pytest.mark.parametrize(
    "text",
    [
        '{\n  "mcpServers": {\n    "theirs": {\n      "a": 1\n    }\n  }\n}\n',
        '{\n  "mcpServers": {\n    "theirs": 1 // c\n  }\n}\n',
        '{\n\t"mcpServers": {\n\t\t"theirs": {}, // c\n\t}\n}',
        '{"mcpServers": {"theirs": 1}}',
        '{"mcpServers": {}}',
    ],
)
def test_what_was_put_in_leaves_nothing_behind(text: str) -> None:
    assert removed(added(text)) == text


def test_the_layout_is_that_of_the_file() -> None:
    assert added('{\n    "theme": 1\n}\n') == (
        '{\n    "theme": 1,\n    "mcpServers": {\n        "ours": {\n            "command": "/bin/python",\n'
        '            "args": [\n                "-m",\n                "it"\n            ]\n        }\n    }\n}\n'
    )
    assert added('{"theme": 1}') == (
        '{"theme": 1, "mcpServers": {"ours": {"command": "/bin/python", "args": ["-m", "it"]}}}'
    )
    assert "\n" not in added('{\r\n\t"theme": 1\r\n}').replace("\r\n", "")


def test_an_entry_takes_the_place_of_an_older_one() -> None:
    text = '{\n  "mcpServers": {\n    "ours": {"command": "old"}, // keep\n    "theirs": 1\n  }\n}'
    fresh = added(text)
    assert json.loads(without_comments(fresh)) == {SECTION: {"ours": ENTRY, "theirs": 1}}
    assert "// keep" in fresh
    assert fresh.index('"ours"') < fresh.index('"theirs"')


def test_one_in_the_middle_goes_and_a_comment_before_it_ends_where_it_did() -> None:
    assert removed('{"mcpServers": {"a": 1, // one\n "ours": {}, "b": 2}}') == (
        '{"mcpServers": {"a": 1, // one\n "b": 2}}'
    )
    assert removed('{"mcpServers": {"ours": {} /* x */ , "b": 2}}') == '{"mcpServers": { /* x */  "b": 2}}'
    assert removed('{"mcpServers": {"a": 1, // one\n "ours": {} }}') == (
        '{"mcpServers": {"a": 1 // one\n  }}'
    )


DAMAGED = [
    '{"a": 1',
    '{"a": 1}}',
    '{"a" 1}',
    '{"a": 1,, "b": 2}',
    "{a: 1}",
    "{'a': 1}",
    '{"a": 01}',
    '{"a": .5}',
    '{"a": 1.}',
    '{"a": NaN}',
    '{"a": truely}',
    '{"a": "\\x"}',
    '{"a": "\n"}',
    '{"a": "open}',
    '{"a": [1}',
    '{"a": 1]',
    "{,}",
    '{"a":}',
    "[]",
    "1",
    '"text"',
    "null",
    "{} {}",
    "{}\0",
    "/* open",
    "{/}",
    "\ufeff{}",
]


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize("text", DAMAGED)
def test_what_is_damaged_is_refused_with_its_place(text: str, comments: bool) -> None:
    with pytest.raises(Damaged, match=r"line \d+, column \d+: "):
        read_config(text, SECTION, comments=comments)


@pytest.mark.parametrize("text", ["{} // c", '{"a": 1,}', '{"a": [1,]}', "/* c */ {}"])
def test_comments_and_a_last_comma_are_for_clients_that_read_them(text: str) -> None:
    assert read_config(text, SECTION, comments=True).root is not None
    with pytest.raises(Damaged):
        read_config(text, SECTION, comments=False)


def test_the_place_of_the_damage_is_said() -> None:
    with pytest.raises(Damaged, match="line 2, column 10: there is a comment"):
        read_config('{\n "a": [1,//\n 1]}', SECTION, comments=False)
    with pytest.raises(Damaged, match="line 3, column 5: there is a comment"):
        read_config('{\n  "a":\n    // c\n 1}', SECTION, comments=False)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"mcpServers": []}', "is no object"),
        ('{"mcpServers": null}', "is no object"),
        ('{"mcpServers": {}, "mcpServers": {}}', "stands there 2 times"),
        ('{"mcpServers": {"ours": {}, "ours": {}}}', "stands there 2 times"),
        ('{"mcpServers": {"ours": {}, "o\\u0075rs": {}}}', "stands there 2 times"),
    ],
)
def test_what_is_ambiguous_or_foreign_is_refused(text: str, what: str) -> None:
    with pytest.raises(Foreign, match=what):
        added(text)
    with pytest.raises(Foreign, match=what):
        removed(text)


@pytest.mark.parametrize("comments", [False, True])
def test_no_nesting_ends_the_reader(comments: bool) -> None:
    with pytest.raises(Damaged, match="nested"):
        read_config('{"a": ' + "[" * 1_000_000, SECTION, comments=comments)
    deep = '{"mcpServers": {"ours": ' + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + "}}"
    assert (
        json.loads(found_entry(read_config(deep, SECTION, comments=comments), SECTION, "ours") or "")
        is not None
    )


def test_the_value_of_an_entry_is_read_without_its_comments() -> None:
    entry = '{"a": "// no comment", /* one */ "b": [1, 2,], // two\n "c": {"d": ",}",}, }'
    assert value_of(entry) == {"a": "// no comment", "b": [1, 2], "c": {"d": ",}"}}
    assert value_of("[]") == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FILES = st.dictionaries(st.text(), VALUES, max_size=4).flatmap(
    lambda rest: st.dictionaries(st.text(max_size=4), VALUES, max_size=4).map(
        lambda servers: rest | {SECTION: servers}
    )
)


@given(FILES, st.sampled_from([None, 2, "\t", 0]), st.text(min_size=1, max_size=8), st.booleans())
def test_any_file_keeps_what_it_has(file: dict[str, Any], indent: Any, name: str, ascii_only: bool) -> None:
    text = json.dumps(file, indent=indent, ensure_ascii=ascii_only)
    there = added(text, comments=False, name=name)
    expected = file | {SECTION: file[SECTION] | {name: ENTRY}}
    assert json.loads(there) == expected
    assert list(json.loads(there)) == list(file)
    del expected[SECTION][name]
    assert json.loads(removed(there, name)) == expected


@given(st.text(alphabet='{}[]:,"/*\\ \nae1-.', max_size=30), st.booleans())
def test_the_reader_takes_what_the_standard_one_takes(text: str, comments: bool) -> None:
    try:
        value = json.loads(text, parse_constant=lambda _: {}["no"])
    except (ValueError, KeyError):
        value = None
    try:
        read = read_config(text, SECTION, comments=comments)
    except Damaged:
        read = None
    if isinstance(value, dict):
        assert read is not None
    elif not comments and text.strip(" \n"):
        assert read is None
