"""A change of a file as lines for a person: what goes and what comes, without the values of variables and headers."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_actors.cli.install.config_text import ConfigText
from mcp_actors.cli.output import safe

__all__ = ["change_lines"]

# Characters of a line, from one that is longer as many as this beside those that differ: a file may stand on one line,
# with everything in it.
MAX_LINE = 120
MAX_DIFFERENT = 2_000
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
    start, end = _difference(gone[0], come[0]) if len(gone) == len(come) == 1 else (0, 0)
    for sign, lines in (("-", gone), ("+", come)):
        for line in lines:
            yield f"{sign}{safe(_cut(line, start, len(line) - end))}"


def _hidden(config: ConfigText) -> str:
    parts, end = [], 0
    for span in config.secrets:
        parts += [config.text[end : span.start], _HIDDEN]
        end = span.end
    return "".join([*parts, config.text[end:]])


def _difference(one: str, other: str) -> tuple[int, int]:
    """Returns how many characters at the start of two lines are the same, and how many at their ends."""
    start, most = 0, min(len(one), len(other))
    while start < most and one[start] == other[start]:
        start += 1
    end = 0
    while end < most - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return start, end


def _cut(line: str, start: int, end: int) -> str:
    if len(line) <= MAX_LINE:
        return line
    first = max(0, start - MAX_LINE // 2)
    last = min(len(line), max(end, start) + MAX_LINE // 2, first + MAX_DIFFERENT)
    return f"{'…' if first else ''}{line[first:last]}{'…' if last < len(line) else ''}"
