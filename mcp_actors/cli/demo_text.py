"""The lines of the demo, as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

import click

from mcp_actors.cli.demo_tour import TOUR, Shown
from mcp_actors.cli.output import safe

__all__ = ["columns", "paragraph", "tour_lines"]

_TITLE_WIDTH = max(len(each.title) for each in TOUR) + 2
_LEAST_BESIDE = 60  # columns; in fewer the title stands above its line, not beside it


def columns() -> int:
    """The width of the terminal, or of the variable COLUMNS; 80 where there is neither."""
    return shutil.get_terminal_size().columns


def paragraph(text: str, width: int) -> str:
    """The text, broken between words."""
    return _filled(text, width, "")


def tour_lines(shown: Shown, width: int) -> str:
    """The title of a demonstration, and what came of it."""
    colour = "red" if shown.failed else None
    text = safe(shown.text)
    if width < _LEAST_BESIDE:
        return "\n".join(
            [click.style(shown.title, bold=True), click.style(_filled(text, width, "  "), fg=colour)]
        )
    margin = " " * _TITLE_WIDTH
    beside = _filled(text, width, margin).removeprefix(margin)
    return click.style(shown.title.ljust(_TITLE_WIDTH), bold=True) + click.style(beside, fg=colour)


def _filled(text: str, width: int, margin: str) -> str:
    lines: Iterable[str] = textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    return "\n".join(lines)
