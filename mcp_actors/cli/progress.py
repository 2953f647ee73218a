"""The display on stderr while a command waits, and the questions of a server (elicitation) on the terminal.

On a terminal that is a progress bar, and what the server logs and prints. Without a terminal questions are declined.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from mcp_actors import types
from mcp_actors.cli.output import echo, overwrite, rendered, safe, styled
from mcp_actors.supervision.platform import wait_for_input

__all__ = ["CallView", "TerminalElicitation", "answer_field"]


_COLOURS = {"debug": "bright_black", "info": "blue", "notice": "cyan", "warning": "yellow"}


class CallView:
    """The display of one connection; `progress`, `log` and `server_line` are for the client and its transport.

    Without a terminal there is neither a bar nor a line that says what is waited for: they would only fill a file.

    Args:
        title: What the bar is called.
        server: What the server is called, in front of what it writes to its stderr, until its own name is known.
    """

    def __init__(self, title: str = "", server: str = "server") -> None:
        self._title = safe(title)
        self.server = server
        self.url = ""
        """Where the server is, once that is known."""
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
        """Inside the block the terminal is free for a question to the user."""
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
        self._print(styled(f"{level:>9}", fg=colour) + f" {line}")

    def server_line(self, line: str) -> None:
        """Takes a line that the server wrote to its stderr."""
        self._print(styled(f"[{safe(self.server)}] {safe(line)}", dim=True))

    def said(self, line: str) -> None:
        """Prints a line of the command itself, above the bar if there is one."""
        self._print(safe(line))

    def waits_for(self, text: str) -> None:
        """Says what is being waited for, in a line that the next one overwrites; an empty text removes it."""
        if self._bar is None and sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            text = safe(text)[:width]
            if text or self._waiting:
                # The cursor stays at the line's beginning, so that the log, which writes by itself, writes over it.
                overwrite(text, len(self._waiting))
            self._waiting = text

    def _print(self, line: str) -> None:
        if self._bar is not None:
            from rich.text import Text

            self._bar.console.print(Text.from_ansi(rendered(line)))
            return
        waiting = self._waiting
        self.waits_for("")
        echo(line, err=True)
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


# -- Questions of a server -----------------------------------------------------------------------------
#
# A line is read without a thread, once the terminal has one, so that Ctrl-C ends a question at once.


class _LeftQuestion(Exception):
    """End of input: the user left without an answer."""


class TerminalElicitation:
    """The client's elicitation handler."""

    def __init__(self, view: CallView) -> None:
        self._view = view
        self._one_at_a_time = trio.Lock()

    async def __call__(self, params: types.ElicitFormParams | types.ElicitUrlParams) -> types.ElicitResult:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._view.log(
                "notice", f"declined, for there is no terminal to ask on: {params.message}", "mcp-actors"
            )
            return types.ElicitResult(action="decline")
        async with self._one_at_a_time:
            with self._view.paused():
                try:
                    return await self._asked(params)
                except _LeftQuestion:
                    echo(err=True)
                    return types.ElicitResult(action="cancel")

    async def _asked(self, params: types.ElicitFormParams | types.ElicitUrlParams) -> types.ElicitResult:
        echo(styled(f"The server asks: {safe(params.message)}", bold=True), err=True)
        if isinstance(params, types.ElicitUrlParams):
            echo(f"  open this yourself if you trust it: {safe(params.url)}", err=True)
            agreed = await _line("  do you agree? [y/N] ")
            return types.ElicitResult(action="accept" if agreed.lower() in ("y", "yes") else "decline")
        schema: Any = params.requested_schema
        schema = schema if isinstance(schema, dict) else {}
        while True:
            wanted = await _line("  answer? [Y/n, n declines] ")
            if wanted.lower() in ("n", "no"):
                return types.ElicitResult(action="decline")
            try:
                begun = {} if wanted.lower() in ("", "y", "yes") else _first_answer(schema, wanted)
            except ValueError as error:
                echo(styled(f"    {error}", fg="red"), err=True)
                continue
            return types.ElicitResult(action="accept", content=await _form(schema, begun))


def _first_answer(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Takes a text that is neither yes nor no as the answer to the first field.

    Raises:
        ValueError: The field does not exist, or the text is not a value of it; the message says what to write.
    """
    for name, field in (schema.get("properties") or {}).items():
        return {name: answer_field(field if isinstance(field, dict) else {}, text)}
    raise ValueError("write y to agree or n to decline")


async def _form(schema: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Asks for the fields that are not in ``content`` yet."""
    required = schema.get("required") or []
    for name, field in (schema.get("properties") or {}).items():
        field = field if isinstance(field, dict) else {}
        while name not in content:
            text = await _line(f"  {_label(name, field, name in required)}: ")
            if not text and (name not in required or "default" in field):
                break  # the client fills the schema's defaults in
            try:
                content[name] = answer_field(field, text)
            except ValueError as error:
                echo(styled(f"    {error}", fg="red"), err=True)
    return content


def _label(name: str, field: dict[str, Any], required: bool) -> str:
    notes = [] if required else ["optional"]
    choices = _choices(field)
    if choices:
        notes.append(
            ("some of " if field.get("type") == "array" else "one of ") + ", ".join(choices.values())
        )
    elif field.get("type") in ("integer", "number", "boolean"):
        notes.append({"boolean": "yes or no"}.get(field["type"], field["type"]))
    elif field.get("format"):
        notes.append(str(field["format"]))
    if "default" in field:
        notes.append(f"default {json.dumps(field['default'], ensure_ascii=False)}")
    title = str(field.get("title") or name)
    description = f" - {field['description']}" if field.get("description") else ""
    remarks = f" ({'; '.join(notes)})" if notes else ""
    return safe(f"{title}{description}{remarks}".replace("\n", " "))


def answer_field(field: dict[str, Any], text: str) -> Any:
    """Converts a line of the user to the value that the schema of the field demands.

    Raises:
        ValueError: The line is not such a value; the message says what to write.
    """
    choices = _choices(field)
    if field.get("type") == "array":
        return [_choice(choices, part.strip()) for part in text.split(",") if part.strip()]
    if choices:
        return _choice(choices, text)
    convert = _CONVERTERS.get(str(field.get("type")), str)
    return convert(text)


def _boolean(text: str) -> bool:
    if text.lower() in ("y", "yes", "true", "1"):
        return True
    if text.lower() in ("n", "no", "false", "0"):
        return False
    raise ValueError("write yes or no")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("write a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("write a number") from None


_CONVERTERS: dict[str, Callable[[str], Any]] = {"boolean": _boolean, "integer": _integer, "number": _number}


def _choices(field: dict[str, Any]) -> dict[str, str]:
    """Returns the choices of a schema as value -> title, whichever way it lists them."""
    holder = field.get("items") if field.get("type") == "array" else field
    holder = holder if isinstance(holder, dict) else {}
    titled = holder.get("oneOf") or holder.get("anyOf") or []
    if titled:
        return {
            str(each["const"]): str(each.get("title", each["const"])) for each in titled if "const" in each
        }
    values = [str(value) for value in holder.get("enum") or []]
    titles = [str(title) for title in holder.get("enumNames") or values]
    return dict(zip(values, titles, strict=False))


def _choice(choices: dict[str, str], text: str) -> str:
    for value, title in choices.items():
        if text in (value, title):
            return value
    raise ValueError(f"write one of: {', '.join(safe(title) for title in choices.values())}")


async def _line(question: str) -> str:
    """Reads one line. The terminal is in line mode, so once it is readable a read returns a whole line."""
    echo(question, err=True, nl=False)
    descriptor = sys.stdin.fileno()
    await wait_for_input(descriptor)
    data = os.read(descriptor, 65536)
    if not data:
        raise _LeftQuestion
    return data.decode(errors="replace").strip()
