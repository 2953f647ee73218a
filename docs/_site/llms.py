"""Writes ``llms.txt`` and ``llms-full.txt``: the list of the pages with what each is about, and their whole text."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from mcp_actors.cli.docs import DocumentPage, read_pages


def write(app: Sphinx, failure: Exception | None) -> None:
    if failure is not None or app.builder.name != "html":
        return
    pages = read_pages(Path(app.srcdir))
    out = Path(app.outdir)
    about = f"{app.config.html_title}: client, server and gateway for the Model Context Protocol, in Python."
    kinds = dict.fromkeys(page.kind for page in pages)
    sections = [section(kind, [page for page in pages if page.kind == kind]) for kind in kinds]
    (out / "llms.txt").write_text(f"# {app.config.project}\n\n> {about}\n" + "".join(sections))
    (out / "llms-full.txt").write_text("\n\n".join(page.text.strip() for page in pages) + "\n")


def section(kind: str, pages: list[DocumentPage]) -> str:
    rows = "".join(
        f"- [{page.title}]({page.path.with_suffix('.html').as_posix()}): {page.summary}\n" for page in pages
    )
    return f"\n## {kind}\n\n{rows}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
