"""A change of a file as lines for a person: what goes and what comes, without the values of variables and headers."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_actors.cli.install.config_text import ConfigText
from mcp_actors.cli.output import safe

__all__ = ["change_lines"]

# Characters of a line: a file may stand on one line, with everything in it.
MAX_LINE = 160
_HIDDEN = '"***"'


def change_lines(before: ConfigText, after: ConfigText, path: str) -> Iterator[str]:
    """Yields the lines of a unified diff without context.

    A change is one place of a file, so the lines that are the same before it and behind it are all that is left out.
    """
    old, new = _hidden(before).splitlines(), _hidden(after).splitlines()
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    end = 0
    while end < min(len(old), len(new)) - same and old[-1 - end] == new[-1 - end]:
        end += 1
    yield f"--- {safe(path)}"
    yield f"+++ {safe(path)}"
    gone, come = old[same : len(old) - end], new[same : len(new) - end]
    yield f"@@ -{same + 1},{len(gone)} +{same + 1},{len(come)} @@"
    if not gone and not come:
        yield "  (only values that are not shown here)"
    place = _difference(gone[0], come[0]) if gone and come else 0
    for sign, lines in (("-", gone), ("+", come)):
        for line in lines:
            yield f"{sign}{_cut(safe(line), place)}"


def _hidden(config: ConfigText) -> str:
    parts, end = [], 0
    for span in config.secrets:
        parts += [config.text[end : span.start], _HIDDEN]
        end = span.end
    return "".join([*parts, config.text[end:]])


def _difference(one: str, other: str) -> int:
    """The first place at which two lines differ."""
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return place
    return min(len(one), len(other))


def _cut(line: str, place: int) -> str:
    if len(line) <= MAX_LINE:
        return line
    start = max(0, min(place, len(line)) - 20) if place > MAX_LINE // 2 else 0
    shown = line[start : start + MAX_LINE]
    return f"{'…' if start else ''}{shown}{'…' if start + MAX_LINE < len(line) else ''}"
