"""``mcp-actors docs``: pages are listed, printed and found, without a network."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import mcp_transports
from mcp_actors.cli.docs import read_pages, texts_named
from mcp_actors.errors import McpError
from tests.cli.conftest import Mcp
from tests.pages import PAGES, ROOT


def test_the_pages_are_listed_by_what_they_are_for(mcp: Mcp) -> None:
    done = mcp("docs")
    assert done.returncode == 0
    assert done.stdout.index("Start") < done.stdout.index("How to") < done.stdout.index("Reference")
    assert done.stdout.index("start/ten-minutes") < done.stdout.index("start/client")
    assert "how-to/asyncio" in done.stdout


@pytest.mark.parametrize("name", ["tasks", "how-to/tasks", "how-to/tasks.md"])
def test_a_page_is_printed_as_it_is(mcp: Mcp, name: str) -> None:
    assert mcp("docs", name).stdout.strip() == PAGES["how-to/tasks.md"].strip()


def test_a_section_is_printed_by_the_name_under_which_it_is_found(mcp: Mcp) -> None:
    found = mcp("docs", "kept", "tasks").stdout
    assert "how-to/tasks#where-tasks-are-kept  Where tasks are kept" in found
    shown = mcp("docs", "how-to/tasks#where-tasks-are-kept").stdout
    assert shown.startswith("## Where tasks are kept\n")
    assert shown.strip() in PAGES["how-to/tasks.md"]
    assert "## When a process ends" not in shown
    assert mcp("docs", "tasks#no-such-section").returncode == 1


def test_words_find_the_sections_that_have_all_of_them(mcp: Mcp) -> None:
    found = mcp("docs", "shared", "redis").stdout
    assert "how-to/processes" in found
    assert all(len(line) < 400 for line in found.splitlines())


def test_what_no_page_has_is_said(mcp: Mcp) -> None:
    done = mcp("docs", "xyzzy")
    assert done.returncode == 1
    assert "no section has 'xyzzy'" in done.stderr


def test_every_page_has_a_title_and_says_what_it_is_about() -> None:
    pages = read_pages()
    assert {page.path.as_posix() for page in pages} == {
        path for path in PAGES if "/" in path and "api/" not in path
    }
    assert [page.path for page in pages if not page.title or not page.summary] == []


def test_a_comment_of_a_program_is_not_a_heading() -> None:
    (page,) = (page for page in read_pages() if page.path.name == "server.md")
    assert not any("bookshop.py" in section.title for section in page.sections)


# -- the pages that messages name ----------------------------------------------------------------------


def all_kinds(of: type[McpError] = McpError) -> Iterator[type[McpError]]:
    yield of
    for each in of.__subclasses__():
        yield from all_kinds(each)


def pages_in_messages() -> dict[str, set[str]]:
    """The pages that messages name, each with what names it: a class of errors, or a file."""
    for module in pkgutil.walk_packages(mcp_transports.__path__, "mcp_transports."):
        if ".windows" not in module.name:
            importlib.import_module(module.name)
    found: dict[str, set[str]] = {}
    for kind in all_kinds():
        if kind.PAGE:
            found.setdefault(kind.PAGE, set()).add(kind.__name__)
    for path in (*(ROOT / "mcp_actors").rglob("*.py"), *(ROOT / "transports").rglob("*.py")):
        for page in re.findall(r"see_page\(['\"]([^'\"]+)['\"]\)", path.read_text()):
            found.setdefault(page, set()).add(path.name)
    return found


def test_a_page_that_a_message_names_is_there() -> None:
    pages = read_pages()
    named = pages_in_messages()
    assert len(named) >= 6
    assert {name: sum(1 for _ in texts_named(name, pages)) for name in named} == dict.fromkeys(named, 1)


def test_troubleshooting_links_to_each_page_that_a_message_names() -> None:
    linked = set(re.findall(r"\]\((?:[./\w-]*/)?([\w-]+)\.md", PAGES["how-to/troubleshooting.md"]))
    named = {name.partition("#")[0] for name in pages_in_messages()}
    assert named - linked == {"troubleshooting"}
