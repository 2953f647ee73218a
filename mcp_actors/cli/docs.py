"""``mcp-actors docs``: the pages of the documentation, which come with the package, found without a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

import mcp_actors
from mcp_actors.cli.failures import CommandFailure, reported, traceback_option
from mcp_actors.cli.output import echo, styled

__all__ = ["DocumentPage", "DocumentSection", "command", "read_pages", "texts_named"]

KINDS = {
    "start": "Start",
    "how-to": "How to",
    "reference": "Reference",
    "why": "Why",
    "project": "Project",
}
MOST_FOUND = 12
"""Sections that are shown for some words: as many as fit on a terminal together with a line of each."""


@dataclass(frozen=True)
class DocumentSection:
    """One heading of a page with the text below it."""

    title: str
    anchor: str
    text: str
    heading: str

    @property
    def whole(self) -> str:
        """The heading as it is written, and the text."""
        return f"{self.heading}{self.text.rstrip()}"


@dataclass(frozen=True)
class DocumentPage:
    """One page of the documentation, as Markdown."""

    path: PurePosixPath
    text: str

    @property
    def kind(self) -> str:
        """The kind of the page: to start, to do one thing, to look something up, or to understand."""
        return KINDS.get(self.path.parts[0], "Start")

    @property
    def title(self) -> str:
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return found[1].replace("`", "") if found else self.path.stem

    @property
    def summary(self) -> str:
        """The first sentence below the title."""
        prose = re.sub(r"^```.*?^```$", "", self.text, flags=re.S | re.M)
        for paragraph in re.split(r"\n\s*\n", prose):
            words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            if words and words[0] not in "#|<:-*":
                return re.split(r"(?<=[.:]) ", words)[0].replace("`", "")
        return ""

    @property
    def sections(self) -> list[DocumentSection]:
        """The page cut at its headings; the first one has the title of the page and no anchor."""
        parts = re.split(
            r"^(#{1,4}) (.+)$", re.sub(r"^```.*?^```$", _shielded, self.text, flags=re.S | re.M), flags=re.M
        )
        found = []
        for mark, title, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            anchor = "" if len(mark) == 1 else re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
            text = text.replace("\0", "")
            found.append(DocumentSection(title.replace("`", ""), anchor, text, f"{mark} {title}"))
        return found


def _shielded(block: re.Match[str]) -> str:
    """A program with a mark before each line, so that its comments are not headings."""
    return re.sub(r"^", "\0", block[0], flags=re.M)


def read_pages(folder: Path | None = None) -> list[DocumentPage]:
    """Reads the pages in the order in which ``index.md`` has them: those to start with first.

    Args:
        folder: where they are; by default those that come with the package, or those of its checkout.

    Raises:
        FileNotFoundError: there are none.
    """
    if folder is None:
        package = Path(mcp_actors.__file__).parent
        folder = next((each for each in (package / "docs", package.parent / "docs") if each.is_dir()), None)
        if folder is None:
            raise FileNotFoundError("this installation has no pages")
    listed = re.findall(
        rf"^((?:{'|'.join(KINDS)})/[\w-]+)$", (folder / "index.md").read_text("utf-8"), re.MULTILINE
    )
    return [
        DocumentPage(PurePosixPath(f"{name}.md"), (folder / f"{name}.md").read_text("utf-8"))
        for name in listed
    ]


def _rank(section: DocumentSection, page: DocumentPage, words: list[str]) -> int:
    """Rates how well a section fits: each word counts most in a title, then as a name in code, then in the text."""
    title, text = f"{page.path.stem} {page.title} {section.title}".lower(), section.text.lower()
    score = 0
    for word in words:
        if word not in title and word not in text:
            return 0
        score += 100 * (word in section.title.lower()) + 40 * (word in title) + 10 * (f"`{word}" in text)
        score += min(text.count(word), 9)
    return score


def _line_with(section: DocumentSection, words: list[str]) -> str:
    for line in section.text.splitlines():
        if any(word in line.lower() for word in words):
            return " ".join(line.split())
    return ""


@click.command("docs", short_help="Find a page of the documentation.")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@traceback_option
def command(words: tuple[str, ...], show_traceback: bool) -> None:
    """Find a page of the documentation, which comes with the package.

    Without a word it lists the pages. With the name of a page, such as how-to/tasks or tasks, it prints that page, and
    with that of a section, such as tasks#from-a-terminal, that section. With other words it lists the sections that
    have all of them.

    \b
    mcp-actors docs
    mcp-actors docs tasks
    mcp-actors docs call_tool timeout
    """
    with reported(show_traceback):
        try:
            pages = read_pages()
        except FileNotFoundError as error:
            raise CommandFailure(f"{error}; they are in the folder docs of the source") from None
        named = texts_named(" ".join(words), pages)
        if not words:
            _list(pages)
        elif len(named) == 1:
            echo(named[0])
        else:
            _find(pages, [word.lower() for word in words])


def texts_named(name: str, pages: list[DocumentPage]) -> list[str]:
    """Returns the texts that a name leads to: ``page``, ``kind/page``, or either with ``#section``."""
    path, _, anchor = name.partition("#")
    found = [
        page
        for page in pages
        if path.removesuffix(".md") in (page.path.with_suffix("").as_posix(), page.path.stem)
    ]
    if not anchor:
        return [page.text for page in found]
    return [each.whole for page in found for each in page.sections if each.anchor == anchor]


def _list(pages: list[DocumentPage]) -> None:
    width = max(len(page.path.with_suffix("").as_posix()) for page in pages)
    for kind in dict.fromkeys(page.kind for page in pages):
        echo(styled(kind, bold=True))
        for page in pages:
            if page.kind == kind:
                echo(f"  {page.path.with_suffix('').as_posix():{width}}  {page.title}")
    echo("\nmcp-actors docs PAGE prints one, mcp-actors docs WORD finds sections.")


def _find(pages: list[DocumentPage], words: list[str]) -> None:
    found = [(_rank(section, page, words), page, section) for page in pages for section in page.sections]
    best = sorted((each for each in found if each[0]), key=lambda each: -each[0])
    if not best:
        raise CommandFailure(
            f"no section has {' and '.join(repr(word) for word in words)}; mcp-actors docs lists the pages"
        )
    for _, page, section in best[:MOST_FOUND]:
        anchor = f"#{section.anchor}" if section.anchor else ""
        echo(f"{styled(page.path.with_suffix('').as_posix() + anchor, bold=True)}  {section.title}")
        echo(f"    {_line_with(section, words)}")
    if len(best) > MOST_FOUND:
        echo(f"\n{len(best) - MOST_FOUND} more sections have that; more words find fewer.")
