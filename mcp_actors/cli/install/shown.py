"""A change of an entry as lines for a person, without the values of variables and headers.

Nothing else of the file is shown: the lines beside an entry may hold secrets too.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from mcp_actors.cli.install.config_text import value_of
from mcp_actors.cli.output import safe

__all__ = ["change_lines"]

# Characters of a line, and lines of one side: an entry may have been written by anybody.
MAX_LINE = 500
MAX_LINES = 200
_SECRET = frozenset({"env", "headers"})
_HIDDEN = "***"


def change_lines(path: str, section: str, name: str, before: str | None, after: str | None) -> Iterator[str]:
    """Yields the lines of a diff between two texts of an entry, ``None`` where there is none."""
    yield f"--- {safe(path)}"
    yield f"+++ {safe(path)}"
    yield f"@@ {section} @@"
    old, new = _lines(name, before), _lines(name, after)
    if old == new:
        yield "  (only values that are not shown here)"
    for line in list(difflib.unified_diff(old, new, n=MAX_LINES, lineterm=""))[3:]:
        yield safe(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…")


def _lines(name: str, entry: str | None) -> list[str]:
    if entry is None:
        return []
    shown = json.dumps({name: _without_secrets(value_of(entry))}, indent=2, ensure_ascii=False)
    # Without the braces round it, and one level less.
    lines = [line[2:] for line in shown.split("\n")[1:-1]]
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _hidden(each) if key in _SECRET else _without_secrets(each) for key, each in value.items()}


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, _HIDDEN) if isinstance(value, dict) else _HIDDEN
