"""What the project promises beside its programs: the front page, licences, the pages in the package, the changelog."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest

from mcp_actors.client import VERSION
from tests.pages import DOCS, PAGES, README, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Those that are installed to work on the project, and with none of its users.
OF_DEVELOPERS = {"benchmarks", "docs", "test"}


def test_the_front_page_is_a_first_visit() -> None:
    lines = README.splitlines()
    assert len(lines) <= 180
    wishes = README.partition("| I want to … | |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(wishes) == 10
    assert all("](docs/" in each for each in wishes)


def ratio(row: str, column: int) -> float:
    """A figure of the table of performance: how many times one of ours is one of theirs, or how much it is."""
    (line,) = re.findall(rf"^\| {re.escape(row)} \|.*$", PAGES["why/performance.md"], re.MULTILINE)
    found = re.search(r"\d+(\.\d+)?", line.split("|")[column].replace(",", ""))
    assert found is not None
    return float(found[0])


# The words of the README, with the row of the table and its column: 2 is ours, 3 the official Python SDK, 4 TypeScript.
FIGURES = {
    r"Over stdio it answers (\d+) times": ("stdio, legacy, 64 in flight", 3),
    r"over HTTP (\d+) times": ("HTTP with JSON, legacy, 32 connections", 3),
    r"times and (\d+\.\d) times as many": ("HTTP with JSON, legacy, 32 connections", 4),
    r"session over HTTP takes (\d+\.\d) KiB": ("idle legacy HTTP session, memory", 2),
}


@pytest.mark.parametrize("words", FIGURES)
def test_the_figures_of_the_front_page_are_those_of_the_table(words: str) -> None:
    (shown,) = re.findall(words, " ".join(README.split()))
    digits = len(shown.partition(".")[2])
    assert float(shown) == round(ratio(*FIGURES[words]), digits)


def test_as_many_as_typescript_is_what_the_table_says() -> None:
    assert "as many as the official TypeScript SDK" in " ".join(README.split())
    assert 0.9 <= ratio("stdio, legacy, 64 in flight", 4) <= 1.1


def rows_of_revisions(page: str) -> list[str]:
    rows = page.partition("| | 2024-11-05 |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", row) for row in rows]


def test_the_revisions_are_the_same_on_both_pages() -> None:
    rows = rows_of_revisions(README)
    assert rows == rows_of_revisions(PAGES["reference/revisions.md"])
    assert len(rows) > 10


def licences() -> dict[str, str]:
    """The packages of the table of dependencies with their licences."""
    rows = (
        PAGES["project/dependencies.md"]
        .partition("<!-- licences: begin -->")[2]
        .partition("<!-- licences: end")[0]
    )
    found = re.findall(r"^\| (`[^|]*) \|[^|]*\| (.*?) \|$", rows, re.MULTILINE)
    return {
        name: licence
        for names, licence in found
        for name in re.findall(r"`([\w-]+)`", names.partition("(")[0])
    }


def test_every_dependency_is_in_the_table() -> None:
    extras = {
        name: each for name, each in PROJECT["optional-dependencies"].items() if name not in OF_DEVELOPERS
    }
    wanted = [*PROJECT["dependencies"], *(each for group in extras.values() for each in group)]
    assert sorted(licences()) == sorted({re.split(r"[<>=]", each)[0] for each in wanted})


@pytest.mark.parametrize("name", licences())
def test_a_licence_is_the_one_that_the_package_names(name: str) -> None:
    said = importlib.metadata.metadata(name)
    named = " ".join(
        filter(None, (said["License-Expression"], said["License"], *said.get_all("Classifier", ())))
    )
    for licence in licences()[name].split(" or "):
        words = {"Apache-2.0": "Apache", "BSD-3-Clause": "BSD", "PSF-2.0": "PSF"}.get(licence, licence)
        assert words in named


def test_the_pages_of_each_kind_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    kinds = {
        path.parent.name for path in DOCS.rglob("*.md") if path.parent != DOCS and path.parent.name != "api"
    }
    parts = {*kinds, "index.md"}
    assert included == {f"docs/{part}": f"mcp_actors/docs/{part}" for part in parts}


def test_the_version_is_the_newest_of_the_changelog() -> None:
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == PROJECT["version"] == VERSION


def test_what_a_newcomer_looks_for_is_there() -> None:
    folder = ROOT / ".github"
    for name in ("SECURITY.md", "CONTRIBUTING.md", "ISSUE_TEMPLATE/defect.md", "ISSUE_TEMPLATE/wish.md"):
        assert (folder / name).stat().st_size > 200
    for name in ("roadmap", "versions", "dependencies", "tier-1"):
        assert f"project/{name}.md" in PAGES
