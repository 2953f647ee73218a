"""Texts of peers as people may see them: nothing steers a terminal, hides, or turns the writing round."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import (
    printable,
    safe,
    safe_json,
    spelled_out,
    without_paths,
)

ANYTHING = st.text(st.characters(codec=None), max_size=40)
STEERING = (
    "\x1b",
    "\x9b",
    "\x7f",
    "\r",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\ud800",
)


@given(ANYTHING)
def test_what_is_left_is_printable_and_can_be_written(text: str) -> None:
    shown = safe(text)
    assert all(each.isprintable() or each in "\n\t" or unicodedata.category(each) == "Zs" for each in shown)
    assert not any(each in shown for each in STEERING)
    assert isinstance(shown.encode(), bytes)
    assert spelled_out(text).isprintable()
    assert printable(text, 20).isprintable()


@given(st.recursive(ANYTHING, lambda inner: st.lists(inner, max_size=4), max_leaves=10))
def test_json_keeps_its_value(value: object) -> None:
    for indent in (None, 2):
        shown = safe_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(shown) == value
        assert not any(each in shown for each in STEERING)


@pytest.mark.parametrize("text", ["", "plain ASCII", "日本語\u3000テスト", "naïve\n\tÀ\u00a0la", "🙂"])
def test_what_people_write_stays(text: str) -> None:
    assert safe(text) == text


@pytest.mark.parametrize("steering", STEERING)
def test_no_log_line_steers_a_terminal(steering: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(f"said {steering}x\nand more")
    except ValueError:
        log.error(f"failed{steering}", peer=f"a{steering}b", many=[steering], exc_info=True)
    written = capsys.readouterr().err
    assert "ValueError: said" in written
    assert "\nand more" in written
    assert not any(each in written for each in STEERING)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot connect to ws://h:9/key: refused", "cannot connect to ws://h:9/...: refused"),
        ("https://h/key?a=b#c; is it there?", "https://h/...; is it there?"),
        ("at 'HTTP://h?key'.", "at 'HTTP://h/...'."),
        ("http://[::1]:80/a (b) and http://h.", "http://[::1]:80/... (b) and http://h."),
        ("unix:///run/x and a/b", "unix:///run/x and a/b"),
    ],
)
def test_of_the_urls_in_a_text_the_hosts_are_left(text: str, shown: str) -> None:
    assert without_paths(text) == shown
