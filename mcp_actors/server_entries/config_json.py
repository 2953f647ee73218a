"""JSON as programs write and read it in their settings: comments, and a comma behind the last member, are allowed."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

__all__ = ["NotReadable", "read_json"]

# Each of these takes an unfinished one up to its end, so that no text is looked at twice.
_PARTS = re.compile(
    r"""
      (?P<string> " (?: [^"\\\n]++ | \\. )*+ "? )
    | (?P<comment> // [^\n\r]*+ | /\* (?s: .*? ) (?: \*/ | \Z ) )
    """,
    re.VERBOSE,
)
_COMMAS = re.compile(r'(?P<string>"(?:[^"\\\n]++|\\.)*+"?)|(?P<comma>,)(?=\s*+[}\]])')
_VISIBLE = re.compile(r"[^\n\r]")


class NotReadable(Exception):
    """The text is no JSON. The message says where, and shows nothing of the text."""


def read_json(text: str) -> dict[str, Any]:
    """Returns the object that a text has.

    Raises:
        NotReadable: It is no JSON even so, an object has a name twice, or it is no object.
    """
    if not text.strip():
        raise NotReadable("it is empty")
    # What is left out becomes blanks, so that the places in errors are those of the text.
    bare = _PARTS.sub(lambda found: _blanks(found) if found["comment"] else found[0], text)
    bare = _COMMAS.sub(lambda found: " " if found["comma"] else found[0], bare)
    try:
        value = json.loads(bare, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise NotReadable(message) from None
    except RecursionError:
        raise NotReadable("it is nested too deep") from None
    except ValueError as error:
        # Ours, and Python's own for a number with thousands of digits.
        raise NotReadable(
            str(error) if isinstance(error, _NoJson) else "it has a number that is too long"
        ) from None
    if not isinstance(value, dict):
        raise NotReadable("the whole is no object")
    return value


class _NoJson(ValueError):
    """Leaves the JSON reader."""


def _blanks(found: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", found[0])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in made if counts[name] > 1)
        raise _NoJson(f"an object has the name {twice[:80]!r} twice")
    return made


def _no_constant(_name: str) -> None:
    raise _NoJson("it has NaN or an infinity, which is no JSON")
