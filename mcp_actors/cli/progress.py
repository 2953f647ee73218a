"""Shows on stderr while a command waits: a progress bar on a terminal, and what the server logs and prints."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mcp_actors.cli.output import safe

__all__ = ["CallView"]

_COLOURS = {"debug": "bright_black", "info": "blue", "notice": "cyan", "warning": "yellow"}


class CallView:
    """Use it for one connection; give `progress`, `log` and `server_line` to the client and its transport.

    Without a terminal there is no bar and no line that says what is waited for: a file full of them helps nobody.

    Args:
        title: What the bar is called.
        server: What the server is called, in front of what it writes to its stderr, until its own name is known.
    """

    def __init__(self, title: str = "", server: str = "server") -> None:
        self._title = safe(title)
        self.server = server
        self._bar: Any = None
        self._task: Any = None
        self._waiting = ""

    @contextmanager
    def shown(self) -> Iterator[CallView]:
        """The bar is there inside the block and gone after it."""
        self.waits_for("")
        if not sys.stderr.isatty():
            yield self
            return
        self._bar = _bar()
        self._task = self._bar.add_task(self._title, total=None, note="")
        with self._bar:
            yield self
        self._bar = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The terminal belongs to somebody else inside the block (a question to the user)."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()

    def progress(self, report: Any) -> None:
        """The client's ``on_progress``."""
        if self._bar is not None:
            note = safe(report.message or "")
            self._bar.update(self._task, completed=report.progress, total=report.total, note=note)

    def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """The client's ``on_log``."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
        line = safe(f"{logger}: {text}" if logger else text)
        colour = _COLOURS.get(level, "red")
        self._print(click.style(f"{level:>9}", fg=colour) + f" {line}")

    def server_line(self, line: str) -> None:
        """Takes a line that the server wrote to its stderr."""
        self._print(click.style(f"[{safe(self.server)}] {safe(line)}", dim=True))

    def said(self, line: str) -> None:
        """Prints a line of the command itself, above the bar if there is one."""
        self._print(safe(line))

    def waits_for(self, text: str) -> None:
        """Says in a line that is overwritten by the next one what is being waited for; an empty text removes it."""
        if self._bar is None and sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            text = safe(text)[:width]
            if text or self._waiting:
                # The cursor stays at the line's beginning, so that the log, which writes by itself, writes over it.
                # Spaces instead of a control sequence: they work on every terminal, without colours too.
                click.echo(f"\r{text.ljust(len(self._waiting))}\r", err=True, nl=False)
            self._waiting = text

    def _print(self, line: str) -> None:
        if self._bar is not None:
            from rich.text import Text

            self._bar.console.print(Text.from_ansi(line))
            return
        waiting = self._waiting
        self.waits_for("")
        click.echo(line, err=True)
        self.waits_for(waiting)


def _bar() -> Any:
    # Only a terminal needs rich, which takes longer to import than most calls take.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False, style="dim"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
