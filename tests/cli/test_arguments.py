from __future__ import annotations

import click
import pytest

from mcp_actors.cli.arguments import text_arguments, tool_arguments


def test_text_and_json() -> None:
    words = ["city=Berlin", "days:=3", "exact:=true", 'box:={"a": [1]}', "empty=", "nothing:=null"]
    assert tool_arguments(words) == {
        "city": "Berlin",
        "days": 3,
        "exact": True,
        "box": {"a": [1]},
        "empty": "",
        "nothing": None,
    }


def test_text_is_never_parsed() -> None:
    assert tool_arguments(["a=3", "b=true", "c=x=y", "d=:=1", "e=k:=1"]) == {
        "a": "3",
        "b": "true",
        "c": "x=y",
        "d": ":=1",
        "e": "k:=1",
    }


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("city", "write key=text"),
        ("=x", "has no key"),
        (":=1", "has no key"),
        ("days:=three", "is not JSON"),
        ("days:=", "write days="),
    ],
)
def test_what_is_no_argument_is_wrong_usage(word: str, says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        tool_arguments([word])


def test_a_key_comes_once() -> None:
    with pytest.raises(click.UsageError, match="given twice"):
        tool_arguments(["a=1", "a:=1"])


def test_prompts_take_text_only() -> None:
    assert text_arguments(["branch=main", "since=2026"]) == {"branch": "main", "since": "2026"}
    with pytest.raises(click.UsageError, match="write n=3"):
        text_arguments(["n:=3"])
