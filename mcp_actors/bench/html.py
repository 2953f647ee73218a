"""One self-contained HTML page: its frame and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["STYLE", "about_list", "document_head", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --pale: #666; --line: #ddd; --head: #f4f4f4 }
:root { --grid: #e6e6e6; --missed: #b00020; --mind: #fff7e0; --link: #0055aa }
@media (prefers-color-scheme: dark) {
:root { --ink: #ddd; --paper: #16181b; --pale: #9aa0a6; --line: #3a3f45; --head: #24282d }
:root { --grid: #30353b; --missed: #ff8a8a; --mind: #3a3015; --link: #82b7ff }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
body { max-width: 1440px; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere } h1 { font-size: 1.6rem }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem }
a { color: var(--link) } .sentence { font-weight: 600 } nav { margin: 1rem 0 }
nav ol { columns: 20rem; column-gap: 2rem; list-style: none; margin: 0; padding: 0 }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1rem } dt { color: var(--pale) }
dd { margin: 0; overflow-wrap: anywhere }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr)); gap: 1rem }
svg { width: 100%; border: 1px solid var(--line); border-radius: 6px; color: var(--ink) }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .title { font-size: 13px; font-weight: 600 }
svg .end { text-anchor: end } svg .mid { text-anchor: middle } svg .grid { stroke: var(--grid) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { background: var(--head) } th:nth-child(-n+4), td:nth-child(-n+4) { text-align: left }
.goals td { white-space: normal; min-width: 9rem } .goals td, .goals th { text-align: left }
.missed { color: var(--missed); font-weight: 600 }
.mind { background: var(--mind); border-left: 4px solid #e69f00; padding: .4rem 1rem }
@media (max-width: 600px) {
dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } .mind ul { padding-left: 1rem }
}
"""


def document_head(title: str, about: Sequence[tuple[str, str]], sentence: str = "") -> list[str]:
    """Returns the parts of a page before its first section: the title, what came of it, what is known of the run."""
    return [
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>",
        f'<p class="sentence">{escape(sentence)}</p>' if sentence else "",
        about_list(about) if about else "",
    ]


def about_list(about: Sequence[tuple[str, str]]) -> str:
    """Returns what is known of a run, as a list of names and values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in about)
    return f"<dl>{items}</dl>"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that can be moved sideways; the first of ``rows`` is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
