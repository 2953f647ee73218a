"""The README and the pages in ``docs``: the programs that they show, and the tables that are written from the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PATHS = {path.name: path for path in sorted((ROOT / "docs").rglob("*.md"))}
PAGES = {name: path.read_text() for name, path in PATHS.items()}
# Its programs are a guide that is followed step by step: tests/examples/test_transports.py.
GUIDE = PAGES["transports.md"]
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
        for page in pages or (README, *(page for page in PAGES.values() if page is not GUIDE))
        for language, text in blocks(page)
        if language == "python"
    }


def with_table(page: str, name: str, table: str) -> str:
    """Returns ``page`` with ``table`` between the comments ``name: begin`` and ``name: end``."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after
