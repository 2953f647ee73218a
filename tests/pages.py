"""The README and the pages in ``docs``: the programs that they show, and the tables that are written from the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
# These need frameworks and drivers of others, and are run where those are: tests/worlds/test_pages.py.
WITH_FRAMEWORKS = {"books.py", "shop.py", "pool.py", "page.py", "forms.py", "members.py"}


def blocks(page: str = README) -> list[tuple[str, str]]:
    """(language, text) of every fenced block, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found]


def programs(*pages: str) -> dict[str, str]:
    """The Python blocks of some pages, or of all, by the file name in their first line."""
    return {
        text.partition("\n")[0].removeprefix("# "): text
        for page in pages or (README, *PAGES.values())
        for language, text in blocks(page)
        if language == "python"
    }


def commands(page: str) -> list[list[str]]:
    """The words of every command line with this package, or that talks to a server, in the blocks of a page."""
    texts = [text for language, text in blocks(page) if language not in {"python", "text"}]
    lines = [line.removeprefix("$ ") for text in texts for line in text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if re.match("(mcp-actors|curl) .", line)]


def local_addresses(words: list[str]) -> list[str]:
    """The addresses of this machine that a command names; those of Redis are other programs' and not among them."""
    if words[0] == "curl" and "--unix-socket" in words:
        return [f"unix:{words[words.index('--unix-socket') + 1]}"]
    return [word for word in words if re.match(r"(https?|wss?|tcp)://(127|localhost)|unix:", word)]


def is_server(words: list[str]) -> bool:
    """Whether a command serves where it says, until somebody ends it."""
    return words[1] == "bridge" or (words[1] in {"serve", "gateway"} and "--listen" in words)


def with_table(page: str, name: str, table: str) -> str:
    """Returns ``page`` with ``table`` between the comments ``name: begin`` and ``name: end``."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after
