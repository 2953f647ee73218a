"""The output while a call runs, all of it on stderr: a progress bar on a terminal, and the server's log lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mcp_actors.cli.output import safe

__all__ = ["CallView"]

_COLOURS = {"debug": "bright_black", "info": "blue", "notice": "cyan", "warning": "yellow"}


class CallView:
    """Use it round one call; give `progress` and `log` to the client.

    Without a terminal there is no bar, only the log lines: a file full of progress reports helps nobody.
    """

    def __init__(self, title: str) -> None:
        self._title = safe(title)
        self._bar: Any = None
        self._task: Any = None

    @contextmanager
    def shown(self) -> Iterator[CallView]:
        """The bar is there inside the block and gone after it."""
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
        if self._bar is not None:
            from rich.text import Text

            colour = _COLOURS.get(level, "red")
            self._bar.console.print(Text.assemble((f"{level:>9} ", colour), line))
        else:
            click.echo(f"{click.style(f'{level:>9}', fg=_COLOURS.get(level, 'red'))} {line}", err=True)


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
