"""The members that an entry may have, as a table: what each may be, in words for whoever wrote something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN

__all__ = ["ENTRY_MEMBERS", "GATEWAY_MEMBERS", "SECTION_MEMBERS", "Check"]

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what it has to be."""


def _is_text(value: object) -> bool:
    # No program can be given a NUL, and no header or path can have one.
    return isinstance(value, str) and "\0" not in value


def _is_some_text(value: object) -> bool:
    return _is_text(value) and value != ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _maps_to_texts(value: object) -> bool:
    return (
        isinstance(value, Mapping) and all(map(_is_some_text, value)) and all(map(_is_text, value.values()))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_environment(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and all(_is_some_text(name) and "=" not in name for name in value)
        and all(each is None or _is_text(each) or _is_number(each) for each in value.values())
    )


_TEXT: Check = (_is_some_text, "a text")
_TEXTS: Check = (_are_texts, "a list of texts")
_BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
_SECONDS: Check = (lambda value: _is_number(value) and value > 0, "a number of seconds above 0")
_SESSIONS = ("auto", "shared", "own")
_ERAS = ("auto", "legacy", "modern", *LEGACY, *MODERN)

ENTRY_MEMBERS: Mapping[str, Check] = {
    "type": _TEXT,
    "command": _TEXT,
    "args": _TEXTS,
    "env": (_is_environment, "an object of names and texts"),
    "envFile": _TEXT,
    "cwd": _TEXT,
    "url": _TEXT,
    "serverUrl": _TEXT,
    "httpUrl": _TEXT,
    "headers": (_maps_to_texts, "an object of names and texts"),
    "disabled": _BOOLEAN,
    "enabled": _BOOLEAN,
    "disabledTools": _TEXTS,
    "excludeTools": _TEXTS,
}
"""Those that hosts have."""

GATEWAY_MEMBERS: Mapping[str, Check] = {
    "prefix": (_is_text, "a text"),
    "rename": (_maps_to_texts, "an object of names and texts"),
    "include": _TEXTS,
    "exclude": _TEXTS,
    "sessions": (lambda value: value in _SESSIONS, "one of " + ", ".join(map(repr, _SESSIONS))),
    "lazy": _BOOLEAN,
    "era": (lambda value: value in _ERAS, "one of " + ", ".join(map(repr, _ERAS))),
    "timeout": _SECONDS,
    "cap": _SECONDS,
    "scopes": _TEXTS,
}
"""Those for a gateway, which no host has."""

SECTION_MEMBERS: Mapping[str, Check] = {
    "listen": (
        lambda value: _is_some_text(value) or (_are_texts(value) and all(value)),
        "a URL, or a list of URLs",
    ),
    "name": _TEXT,
    "instructions": _TEXT,
}
"""Those of the object ``gateway`` of a file."""
