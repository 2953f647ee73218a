"""The README and the pages in ``docs``: the programs that they show, and the tables that are written from the code."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
"""The text of each page, by its path below ``docs``."""
# Its programs are a guide that is followed step by step: tests/examples/test_transports.py.
GUIDE = PAGES["how-to/transports.md"]
WITH_PROGRAMS = (README, *(page for page in PAGES.values() if page is not GUIDE))
# These need frameworks and drivers of others, and are run where those are: tests/worlds/test_pages.py.
WITH_FRAMEWORKS = {
    "books.py",
    "shop.py",
    "pool.py",
    "page.py",
    "forms.py",
    "members.py",
    "with_pydantic_ai.py",
    "warehouse.py",
}
# These need frameworks that no environment of the tests has. Who changes one runs it by hand, as its page says.
RUN_BY_HAND = {"with_langgraph.py", "with_openai_agents.py", "site_with_tools.py"}
# Programs that start or import a program of another page. All others are run with the files of their own page alone.
BORROWED = {
    "reader.py": ["bookshop.py"],
    "ask_asyncio.py": ["weather.py"],
    "ask_sync.py": ["weather.py"],
    "test_weather.py": ["weather.py"],
    "record_calls.py": ["weather.py"],
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def python_path() -> str:
    """Where the programs of the pages find the package: in this checkout.

    With ``MCP_ACTORS_PAGES=installed`` they have no such path and find what is installed, which is a wheel where
    ``.ci/release`` runs them.
    """
    installed = os.environ.get("MCP_ACTORS_PAGES") == "installed"
    return "" if installed else os.pathsep.join([str(ROOT), str(ROOT / "transports")])


def blocks(page: str = README) -> list[tuple[str, str]]:
    """(language, text) of every fenced block, in order."""
    return [(found[1], found[2]) for found in _FENCE.finditer(page)]


def name_in(program: str) -> str:
    """The file name in the first line of a program."""
    return program.partition("\n")[0].removeprefix("# ")


def programs(*pages: str) -> dict[str, str]:
    """The Python blocks of some pages, or of all, by the file name in their first line."""
    return {
        name_in(text): text
        for page in pages or WITH_PROGRAMS
        for language, text in blocks(page)
        if language == "python"
    }


def commands(page: str) -> list[list[str]]:
    """The words of every command line with this package, or that talks to a server, in the blocks of a page."""
    texts = [text for language, text in blocks(page) if language not in {"python", "text"}]
    lines = [line.removeprefix("$ ") for text in texts for line in text.splitlines()]
    return [
        shlex.split(line, comments=True) for line in lines if re.match("(mcp-actors|curl|uvicorn) .", line)
    ]


def local_addresses(words: list[str]) -> list[str]:
    """The addresses of this machine that a command names; those of Redis are other programs' and not among them."""
    if words[0] == "uvicorn":
        return [f"http://127.0.0.1:{words[words.index('--port') + 1]}/mcp"]
    if words[0] == "curl" and "--unix-socket" in words:
        return [f"unix:{words[words.index('--unix-socket') + 1]}"]
    return [word for word in words if re.match(r"(https?|wss?|tcp)://(127|localhost)|unix:", word)]


def is_server(words: list[str]) -> bool:
    """Whether a command serves where it says, until somebody ends it."""
    return (
        words[0] == "uvicorn"
        or words[1] in {"bridge", "record", "rest"}
        or (words[1] in {"serve", "gateway", "mock"} and "--listen" in words)
    )


def outputs(*pages: str) -> dict[str, str]:
    """The text directly below a program, by the program's name: what it prints."""
    return {
        name_in(program[2]): shown[2]
        for page in pages or WITH_PROGRAMS
        for program, shown in pairwise(_FENCE.finditer(page))
        if program[1] == "python" and shown[1] == "text" and not page[program.end() : shown.start()].strip()
    }


def page_with(name: str) -> str:
    """The text of the page that has the program ``name``."""
    return next(page for page in WITH_PROGRAMS if name in programs(page))


def files_beside(name: str) -> Iterator[tuple[str, str]]:
    """The names and texts of the files that a reader of its page has when running the program ``name``."""
    yield from programs(page_with(name)).items()
    for other in BORROWED.get(name, ()):
        yield other, programs()[other]


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    return {
        re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }


def with_table(page: str, name: str, table: str) -> str:
    """Returns ``page`` with ``table`` between the comments ``name: begin`` and ``name: end``."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + table + end + after
