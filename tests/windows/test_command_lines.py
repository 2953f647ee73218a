"""Commands as one line, by the rules of Windows."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.supervision.platform import join_words, split_line, split_windows_line

WORDS = st.lists(st.text(st.sampled_from('ab \\"\t\n%&é'), max_size=8), max_size=5)


@given(WORDS)
def test_the_words_of_a_line_are_those_it_was_made_of(words: list[str]) -> None:
    # A new line needs no quotation for Python, although it separates words; it cannot be in a line that is typed.
    words = [each.replace("\n", "x") for each in words]
    assert split_windows_line(subprocess.list2cmdline(words)) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"python C:\servers\weather.py", ["python", r"C:\servers\weather.py"]),
        (r'"C:\Program Files\x.exe" -a "b c" ""', [r"C:\Program Files\x.exe", "-a", "b c", ""]),
        (r"a\\\b d\"e f\\\"g", [r"a\\\b", 'd"e', r"f\"g"]),
        (r'a\\"b c" d', [r"a\b c", "d"]),
        ('"a""b"', ['a"b']),
        ("  \t ", []),
        ("x\\", ["x\\"]),
    ],
)
def test_examples_of_the_rules(line: str, words: list[str]) -> None:
    assert split_windows_line(line) == words


def test_a_mark_without_another_is_refused() -> None:
    with pytest.raises(ValueError, match="No closing quotation"):
        split_windows_line('python "a')


def test_elsewhere_the_rules_are_those_of_posix() -> None:
    words = ["python", "a b", "c\\d", "'"]
    assert join_words(words) == shlex.join(words)
    assert split_line(join_words(words)) == words
