"""The table of clients, and the words of an entry."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.install.clients import (
    CLIENTS,
    is_ours,
    name_from,
    named,
    place_of,
    started_with,
    variables,
)
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

HOME = Path("/home/ann")
MAC = "~/Library/Application Support"
ROAMING = "/roaming"


@pytest.mark.parametrize(
    ("client", "linux", "darwin", "win32"),
    [
        (
            "claude-desktop",
            "~/.config/Claude/claude_desktop_config.json",
            f"{MAC}/Claude/claude_desktop_config.json",
            f"{ROAMING}/Claude/claude_desktop_config.json",
        ),
        ("claude-code", *["~/.claude.json"] * 3),
        ("cursor", *["~/.cursor/mcp.json"] * 3),
        (
            "vscode",
            "~/.config/Code/User/mcp.json",
            f"{MAC}/Code/User/mcp.json",
            f"{ROAMING}/Code/User/mcp.json",
        ),
        (
            "vscode-insiders",
            "~/.config/Code - Insiders/User/mcp.json",
            f"{MAC}/Code - Insiders/User/mcp.json",
            f"{ROAMING}/Code - Insiders/User/mcp.json",
        ),
        ("windsurf", *["~/.codeium/windsurf/mcp_config.json"] * 3),
        ("zed", *["~/.config/zed/settings.json"] * 2, f"{ROAMING}/Zed/settings.json"),
        ("gemini-cli", *["~/.gemini/settings.json"] * 3),
        ("cline", *["~/.cline/data/settings/cline_mcp_settings.json"] * 3),
        ("lm-studio", *["~/.lmstudio/mcp.json"] * 3),
    ],
)
def test_each_client_has_its_place_on_each_system(client: str, linux: str, darwin: str, win32: str) -> None:
    for system, place in (("linux", linux), ("darwin", darwin), ("win32", win32)):
        found = place_of(CLIENTS[client], system=system, environ={"APPDATA": ROAMING}, home=HOME)
        assert found == Path(place.replace("~", str(HOME)))


@pytest.mark.parametrize(
    ("client", "system", "environ", "place"),
    [
        ("zed", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/zed/settings.json"),
        ("zed", "linux", {"XDG_CONFIG_HOME": "x"}, "/home/ann/.config/zed/settings.json"),
        ("zed", "darwin", {"XDG_CONFIG_HOME": "/x"}, "/home/ann/.config/zed/settings.json"),
        ("vscode", "win32", {}, "/home/ann/AppData/Roaming/Code/User/mcp.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": ""}, "/home/ann/.claude.json"),
        ("cline", "darwin", {"CLINE_MCP_SETTINGS_PATH": "/c/m.json"}, "/c/m.json"),
    ],
)
def test_variables_may_move_it(client: str, system: str, environ: dict[str, str], place: str) -> None:
    assert place_of(CLIENTS[client], system=system, environ=environ, home=HOME) == Path(place)


def test_an_entry_has_the_form_of_its_client() -> None:
    words = ["/bin/python", "-m", "mcp_actors", "serve", "a.py"]
    plain = {"command": "/bin/python", "args": words[1:]}
    forms = {name: client.entry(words, {}) for name, client in CLIENTS.items()}
    typed = {"claude-code", "cursor", "vscode", "vscode-insiders"}
    assert forms == {name: {"type": "stdio", **plain} if name in typed else plain for name in CLIENTS}
    assert CLIENTS["zed"].entry(words, {"A": "1"}) == {**plain, "env": {"A": "1"}}
    sections = {name: client.section for name, client in CLIENTS.items() if client.section != "mcpServers"}
    assert sections == {"vscode": "servers", "vscode-insiders": "servers", "zed": "context_servers"}
    assert all(client.afterwards for client in CLIENTS.values())


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"command": "python", "args": ["-P", "-m", "mcp_actors", "serve", "a.py"]}, True),
        ({"command": "python", "args": ["-P", "-m", "mcp_actors", "gateway", "a.json"]}, True),
        ({"command": "python", "args": ["-m", "mcp_actors", "call"]}, False),
        ({"command": "python", "args": ["mcp_actors", "serve", "-m"]}, False),
        ({"command": "python", "args": "-m mcp_actors serve"}, False),
        ({"url": "https://example.org"}, False),
        (["-m", "mcp_actors", "serve"], False),
        (None, False),
    ],
)
def test_our_entries_are_recognised_by_what_they_start(entry: object, ours: bool) -> None:
    assert is_ours(entry) is ours


def test_nothing_in_the_words_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("weather.py", "shop.db", "odd:name.py"):
        Path(name).touch()
    start = [sys.executable, "-P", "-m", "mcp_actors", "serve"]
    assert Path(sys.executable).is_absolute()
    assert started_with("weather.py", []) == [*start, f"{tmp_path}/weather.py"]
    assert started_with("./weather.py:make", []) == [*start, f"{tmp_path}/weather.py:make"]
    assert started_with("odd:name.py", []) == [*start, f"{tmp_path}/odd:name.py"]
    assert started_with("my.package:make", ["shop.db", "--fast", ""]) == [
        *start, "my.package:make", "--", f"{tmp_path}/shop.db", "--fast", "",
    ]  # fmt: skip
    Path("mcp.json").touch()
    assert started_with("mcp.json", []) == [*start[:-1], "gateway", f"{tmp_path}/mcp.json"]
    with pytest.raises(WrongUsage, match="a gateway takes no ARGS"):
        started_with("mcp.json", ["shop.db"])
    with pytest.raises(WrongUsage, match=r"there is no file no\.json"):
        started_with("no.json", [])
    with pytest.raises(WrongUsage, match=r"there is no file missing\.py"):
        started_with("missing.py:make", [])
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(WrongUsage, match="cannot say where it is"):
        started_with("weather.py", [])


def test_variables_are_given_or_taken_over() -> None:
    assert variables(["A=1", "B", "C=", "D=x=y"], {"B": "2"}) == {"A": "1", "B": "2", "C": "", "D": "x=y"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["=secret"], "--env takes NAME=VALUE"),
        (["9A=secret"], "--env takes NAME=VALUE"),
        (["A B=secret"], "--env takes NAME=VALUE"),
        (["A=1", "A=secret"], "A is given twice"),
        (["A"], "A is not set here"),
        (["A=secret\0"], "NUL"),
    ],
)
def test_odd_variables_are_refused_without_their_values(words: list[str], why: str) -> None:
    with pytest.raises(WrongUsage, match=why) as raised:
        variables(words, {})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["a", "Weather-2", "a_b", "a" * 64])
def test_a_name_that_every_client_takes(name: str) -> None:
    assert named(name) == name
    assert name_from(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "__proto__", "a b", "a.b", "a/b", "a" * 65, "wétter", "a\n", "\x1b[31m"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match="is no name for an entry"):
        named(name)


def test_a_name_is_made_of_the_servers_own() -> None:
    assert name_from("my weather! (2)") == "my-weather-2"
    assert name_from("__proto__") == "proto"
    assert len(name_from("a" * 100)) == 64
    with pytest.raises(WrongUsage, match="give one with --name"):
        name_from("天気")


def test_the_places_are_those_of_this_user_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert place_of(CLIENTS["cursor"]) == Path("/home/ann/.cursor/mcp.json")
    assert os.environ["HOME"] == "/home/ann"


# -- An entry is put in and taken out, and every other character stays -----------------------------------

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
        '{\n  "mcpServers": {}\n}\n',
        '{\r\n  "mcpServers": {}\r\n}',
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
        ('{"mcpServers": {}, "mcpServers": {}}', "occurs 2 times"),
        ('{"mcpServers": {"ours": {}, "ours": {}}}', "occurs 2 times"),
        ('{"mcpServers": {"ours": {}, "o\\u0075rs": {}}}', "occurs 2 times"),
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
