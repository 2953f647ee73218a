"""Draws what ``mcp-actors top`` shows, as lines of text for a terminal of any size, or for a file."""

from __future__ import annotations

import time
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text

from mcp_actors.admin import cleaned
from mcp_actors.cli.top.panes import PANES, Column, Row, node_line
from mcp_actors.cli.top.state import TopState

__all__ = ["everything", "picture"]

# Nodes that have a line of their own above every pane; the pane of nodes has all.
_MOST_NODES = 4
_KEYS = "q quit  tab pane  s sort  r reverse  / filter  x end  space pause"
# Cells of the column that takes what the others leave.
_LEAST = 14
# Columns in a file, where nothing is cut.
_FILE_WIDTH = 120


def picture(state: TopState, name: str, width: int, height: int) -> list[Text]:
    """Returns the lines of a screen: ``height`` of them, ``width`` cells each.

    Args:
        state: What is shown.
        name: Where the server is.
        width: Cells of a line.
        height: Lines.
    """
    lines = _head(state, name, width)
    rows = state.rows()
    space = max(1, height - len(lines) - 2)
    first = max(0, min(state.choice.index - space // 2, len(rows) - space))
    lines.append(_titles(state, width))
    for number, row in enumerate(rows[first : first + space], first):
        lines.append(_line(row, state.pane.columns, width, chosen=number == state.choice.index))
    lines += [Text()] * (height - 1 - len(lines))
    return [*lines[: height - 1], _last(state, width)]


def everything(state: TopState, name: str) -> list[Text]:
    """Returns all panes below each other, every row of them, for a file or a pipe."""
    lines = _head(state, name, _FILE_WIDTH)[:-1]
    for number, pane in enumerate(PANES):
        state.number = number
        rows = state.rows()
        if rows:
            lines += [Text(), Text(f"{pane.name} ({len(rows)})"), _titles(state, _FILE_WIDTH)]
            lines += [_line(row, pane.columns, _FILE_WIDTH, chosen=False) for row in rows]
    for each in lines:
        each.rstrip()
    return lines


def _head(state: TopState, name: str, width: int) -> list[Text]:
    snapshot = state.snapshot
    if snapshot is None:
        return [_cut(f"mcp-actors top  {name}", width, "bold"), Text()]
    at = time.strftime("%H:%M:%S", time.localtime(min(max(snapshot.at, 0), 4e9)))
    count = len(snapshot.nodes)
    said = [f"mcp-actors top  {cleaned(name)}", at, f"{count} node{'s' if count != 1 else ''}"]
    said.append(f"{snapshot.watchers} watching, every {snapshot.interval:.1f} s")
    if state.paused:
        said.append("PAUSED")
    lines = [_cut("  ".join(said), width, "bold")]
    lines += [_cut(node_line(each), width) for each in snapshot.nodes[:_MOST_NODES]]
    if count > _MOST_NODES:
        lines.append(_cut(f"and {count - _MOST_NODES} more: pane 5", width, "dim"))
    return [*lines, _tabs(state, width)]


def _tabs(state: TopState, width: int) -> Text:
    tabs = Text()
    for number, pane in enumerate(PANES):
        if not pane.is_shown(state.snapshot):
            continue
        heading = pane.name if state.snapshot is None else pane.heading(state.snapshot)
        tabs.append(f" {number + 1} {heading} ", "reverse" if number == state.number else "").append(" ")
    if state.pattern or state.typing:
        tabs.append(f" /{state.pattern}{'_' if state.typing else ''}", "yellow")
    tabs.truncate(width)
    return tabs


def _titles(state: TopState, width: int) -> Text:
    choice, columns = state.choice, state.pane.columns
    line = Text(style="bold underline")
    for number, (column, size) in enumerate(zip(columns, _widths(columns, width), strict=False)):
        mark = ("▼" if choice.reverse else "▲") if number == choice.sort else ""
        line.append(_cell(column.title + mark, size, column.right)).append(" ")
    line.truncate(width)
    return line


def _line(row: Row, columns: tuple[Column, ...], width: int, *, chosen: bool) -> Text:
    cells = [
        _cell(text, size, column.right)
        for text, column, size in zip(row.cells, columns, _widths(columns, width), strict=False)
    ]
    line = Text(" ".join(cells), f"{row.style} reverse".strip() if chosen else row.style)
    line.truncate(width)
    return line


def _widths(columns: tuple[Column, ...], width: int) -> list[int]:
    """Returns the cells of each column. In a narrow terminal the last ones are left out, and have none."""
    widths = [each.width or _LEAST for each in columns]
    while len(widths) > 1 and sum(widths) + len(widths) - 1 > width:
        widths.pop()
    rest = max(0, width - sum(widths) - len(widths) + 1)
    return [size if column.width else size + rest for column, size in zip(columns, widths, strict=False)]


def _cell(text: str, size: int, right: bool) -> str:
    text = text.replace("\n", " ")
    if right and len(text) < size:
        return text.rjust(size)
    fitted = set_cell_size(text, size)
    return fitted if len(text) <= size else f"{set_cell_size(text, size - 1)}…"


def _cut(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


def _last(state: TopState, width: int) -> Text:
    if state.wanted is not None:
        does = "cancel this call" if state.wanted.action == "cancel_call" else "end this session"
        return _cut(f"{does}, and tell its client: {_chosen(state)}? y/n", width, "bold red")
    said = state.message or state.trouble
    return _cut(said or _KEYS, width, "yellow" if said else "dim")


def _chosen(state: TopState) -> str:
    rows: list[Any] = state.rows()
    return " ".join(rows[state.choice.index].cells[:3]).strip() if rows else ""
