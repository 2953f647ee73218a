"""One self-contained HTML page: its frame and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["STYLE", "document_head", "table"]

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 1440px; margin: 2rem auto; padding: 0 1rem } h1 { font-size: 1.6rem }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; padding-bottom: .3rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem } dt { color: #666 } dd { margin: 0 }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); gap: 1rem }
svg { width: 100%; border: 1px solid #eee; border-radius: 6px }
svg text { font: 11px system-ui, sans-serif; fill: #333 } svg .title { font-size: 13px; font-weight: 600 }
svg .end { text-anchor: end } svg .mid { text-anchor: middle } svg .grid { stroke: #e6e6e6 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap }
th { background: #f6f6f6 } th:nth-child(-n+4), td:nth-child(-n+4) { text-align: left }
.goals td { white-space: normal } .goals td, .goals th { text-align: left } .missed { color: #b00020; font-weight: 600 }
.mind { background: #fff7e0; border-left: 4px solid #e69f00; padding: .4rem 1rem }
"""


def document_head(title: str, about: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the parts of a page before its first section: the title, and what is known of the run."""
    return [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style><h1>{escape(title)}</h1><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in about),
        "</dl>",
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that can be moved sideways; the first of ``rows`` is its head."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
