"""Links from a page to a file of the repository that is no page: the site names the file, and has no copy of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent.parent
LINK = re.compile(r"\[([^\]]+)\]\((\.\.?/[^)#\s]+)(#[^)\s]*)?\)")


def name_files(app: Sphinx, page: str, source: list[str]) -> None:
    folder = (DOCS / page).parent

    def replaced(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2]))
        if target.is_relative_to(DOCS) or not target.exists():
            return match[0]
        return f"{match[1]} (`{target.relative_to(DOCS.parent).as_posix()}`)"

    source[0] = LINK.sub(replaced, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
