"""The display of a load while it runs, on stderr: a line that is redrawn on a terminal, a line a second elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mcp_actors.bench.figures import milliseconds

__all__ = ["LoadView"]

_EVERY_SECONDS = 1.0


class LoadView:
    """Shows the reports of a load.

    Args:
        quiet: Nothing is shown.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._last = 0.0

    @contextmanager
    def shown(self) -> Iterator[LoadView]:
        """The display is there inside the block and gone after it."""
        if self._quiet or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console  # only a terminal needs it
        from rich.live import Live

        with Live("", console=Console(stderr=True), auto_refresh=False, transient=True) as self._live:
            yield self
        self._live = None

    def report(self, told: dict[str, Any]) -> None:
        """Shows one report of `mcp_actors.bench.load.RunningLoad`."""
        if self._live is not None:
            self._live.update(_picture(told), refresh=True)
        elif not self._quiet and time.monotonic() - self._last >= _EVERY_SECONDS:
            self._last = time.monotonic()
            click.echo(_line(told), err=True)


def _line(told: dict[str, Any]) -> str:
    if not told["seconds"]:
        return f"{told['phase']}: {told['sessions']:,} open"
    text = (
        f"{told['phase']}, {told['elapsed']:.1f} of {told['seconds']:.4g} s: {told['calls']:,} calls, "
        f"{told['per_second']:,.0f}/s"
    )
    if told["calls"]:
        text += f", p50 {milliseconds(told['p50'])}, p99 {milliseconds(told['p99'])}"
    return text + (f", {told['failed']:,} failed" if told["failed"] else "")


def _picture(told: dict[str, Any]) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    line = Text(_line(told))
    if not told["seconds"]:
        return line
    done = min(told["elapsed"], told["seconds"])
    return Group(
        line, ProgressBar(total=told["seconds"], completed=done, width=40), Text("Ctrl-C ends it early")
    )
