"""``mcp-actors docs``: pages are listed, printed and found, without a network."""

from __future__ import annotations

import pytest

from mcp_actors.cli.docs import read_pages
from tests.cli.conftest import Mcp
from tests.pages import PAGES


def test_the_pages_are_listed_by_what_they_are_for(mcp: Mcp) -> None:
    done = mcp("docs")
    assert done.returncode == 0
    assert done.stdout.index("Start") < done.stdout.index("How to") < done.stdout.index("Reference")
    assert "start/ten-minutes" in done.stdout
    assert "how-to/asyncio" in done.stdout


@pytest.mark.parametrize("name", ["tasks", "how-to/tasks", "how-to/tasks.md"])
def test_a_page_is_printed_as_it_is(mcp: Mcp, name: str) -> None:
    assert mcp("docs", name).stdout.strip() == PAGES["how-to/tasks.md"].strip()


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
