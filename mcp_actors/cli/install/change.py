"""A change of a client's file: it is read, the change is shown, a person is asked, and then it is written.

Anything odd about the file ends the command before anything is touched.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure, WrongUsage
from mcp_actors.cli.install.clients import CLIENTS, ClientProgram, place_of
from mcp_actors.cli.install.config_file import (
    Change,
    ChangedMeanwhile,
    ConfigFile,
    FileHistory,
    Untouchable,
    open_config,
)
from mcp_actors.cli.install.config_text import (
    ConfigText,
    Damaged,
    Foreign,
    found_entry,
    read_config,
    value_of,
    with_entry,
    without_entry,
)
from mcp_actors.cli.output import confirmed, echo, safe, styled

__all__ = ["Configuration", "Edit", "Manner", "change_lines", "undo"]


# How often a change is shown anew because another program has written the file meanwhile.
MAX_ROUNDS = 3

Edit = Callable[["Configuration", ConfigText], str]
"""Returns the new text of a file; raises `CommandFailure` if the file must be left alone."""


@attrs.frozen
class Manner:
    """The manner in which a change is made."""

    yes: bool = False
    """No person is asked."""
    dry_run: bool = False
    """The change is only shown."""

    def require_answerable(self) -> None:
        """Raises `WrongUsage` if a person has to be asked, but there is no terminal."""
        if not self.yes and not self.dry_run and not sys.stdin.isatty():
            raise WrongUsage(
                "there is nobody to ask: add --yes, or --dry-run to look only; nothing was changed"
            )


class Configuration:
    """The file of a client.

    Args:
        name: A key of `CLIENTS`.
        path: The file; by default that of the client, for this user.

    Raises:
        WrongUsage: Without a path, the system cannot say where the client has its file.
    """

    def __init__(self, name: str, path: str | None = None) -> None:
        self.client: ClientProgram = CLIENTS[name]
        try:
            self.path = Path(path) if path is not None else place_of(self.client)
        except RuntimeError as error:
            raise WrongUsage(f"{error}: name the file with --config") from error
        self._is_default = path is None

    def __repr__(self) -> str:
        return f"<Configuration {self.path}>"

    def opened(self) -> ConfigFile:
        """Reads the file.

        Raises:
            CommandFailure: It may not be replaced.
        """
        try:
            return open_config(self.path)
        except Untouchable as error:
            hint = ""
            if self._is_default and not self.path.parent.is_dir():
                hint = f": is {self.client.title} installed? --config names another file"
            raise self.left_alone(f"{error}{hint}") from error

    def parsed(self, file: ConfigFile) -> ConfigText:
        """Parses the content of the file.

        Raises:
            CommandFailure: The client could not read it as JSON.
        """
        try:
            return read_config(file.text(), self.client.section, comments=self.client.comments)
        except Untouchable as error:
            raise self.left_alone(str(error)) from error
        except Damaged as error:
            raise self.left_alone(f"it is no JSON that {self.client.title} reads: {error}") from error

    def left_alone(self, why: str) -> CommandFailure:
        """Returns the failure that says why nothing was changed."""
        return CommandFailure(f"{self.path} is left as it is: {why}")

    def entry(self, config: ConfigText, name: str) -> str | None:
        """Returns the text of an entry, ``None`` if it is missing.

        Raises:
            CommandFailure: The file is not what such a client has.
        """
        try:
            return found_entry(config, self.client.section, name)
        except Foreign as error:
            raise self.left_alone(str(error)) from error

    def with_entry(self, config: ConfigText, name: str, entry: dict[str, Any] | str) -> str:
        """Returns the text with an entry.

        Raises:
            CommandFailure: The file is not what such a client has.
        """
        try:
            return with_entry(config, self.client.section, name, entry)
        except Foreign as error:
            raise self.left_alone(str(error)) from error

    def without_entry(self, config: ConfigText, name: str) -> str:
        """Returns the text without an entry, which is there.

        If putting the entry there was the last change of the file, it is the text from before that, to the character.
        """
        before = self._before_entry(name)
        return without_entry(config, self.client.section, name) if before is None else before

    def _before_entry(self, name: str) -> str | None:
        file = self.opened()
        kept = FileHistory(file.path).last()
        if kept is None or file.data is None:
            return None
        change, copy = kept
        is_last = change.name == name and change.before is None and _hash(file.data) == change.written
        return attrs.evolve(file, data=copy).text() if is_last and copy is not None else None

    def change(self, name: str, edit: Edit, manner: Manner) -> bool:
        """Changes an entry, and keeps what it takes to undo that.

        Returns:
            Whether the file was written.

        Raises:
            CommandFailure: The file is left as it was; the message says why.
        """
        for _ in range(MAX_ROUNDS):
            file = self.opened()
            config = self.parsed(file)
            data = self.encoded(file, edit(self, config))
            if data == file.data:
                echo(f"there is nothing to change in {self.path}", err=True)
                return False
            before = self.entry(config, name)
            after = self.entry(self.parsed(attrs.evolve(file, data=data)), name)
            if not self.agreed(file, name, before, after, manner):
                return False
            change = Change(name, before, after, _hash(data), file.data is not None)
            try:
                copied = _written(file, data, change)
            except ChangedMeanwhile as error:
                echo(f"{error}; here is the change again", err=True)
                continue
            except Untouchable as error:
                raise self.left_alone(str(error)) from error
            if copied is not None:
                echo(f"a copy of the file as it was: {copied}", err=True)
            return True
        raise self.left_alone("another program changes it again and again: end it first")

    def encoded(self, file: ConfigFile, text: str) -> bytes:
        """Returns a text as the bytes of the file.

        Raises:
            CommandFailure: It cannot be written there.
        """
        try:
            return file.encoded(text)
        except Untouchable as error:
            raise self.left_alone(str(error)) from error

    def agreed(
        self, file: ConfigFile, name: str, before: str | None, after: str | None, manner: Manner
    ) -> bool:
        """Shows the change of an entry, and returns whether to make it.

        Raises:
            WrongUsage: A person has to be asked, but there is no terminal.
        """
        for line in change_lines(file.path, self.client.section, name, before, after):
            echo(_coloured(line))
        if manner.dry_run:
            echo("nothing was changed: --dry-run", err=True)
            return False
        manner.require_answerable()
        return manner.yes or _asked()


def undo(configuration: Configuration, manner: Manner) -> bool:
    """Undoes the last change that was made to a file, and leaves what others have changed since.

    Returns:
        Whether the file was written.

    Raises:
        CommandFailure: There is nothing to undo, or the entry was edited since. The file is left as it was.
    """
    for _ in range(MAX_ROUNDS):
        file = configuration.opened()
        history = FileHistory(file.path)
        change, copy = _last_made(configuration, file, history)
        data = _undone(configuration, file, change, copy)
        if not configuration.agreed(file, change.name, change.after, change.before, manner):
            return False
        try:
            history.locked(partial(_put_back, file, data, history))
        except ChangedMeanwhile as error:
            echo(f"{error}; here is the change again", err=True)
            continue
        except Untouchable as error:
            raise configuration.left_alone(str(error)) from error
        return True
    raise configuration.left_alone("another program changes it again and again: end it first")


def _last_made(
    configuration: Configuration, file: ConfigFile, history: FileHistory
) -> tuple[Change, bytes | None]:
    """Returns the last change that can be seen in the file; one that was never made, or undone by hand, is dropped."""
    while (kept := history.last()) is not None:
        if file.data != kept[1]:
            return kept
        history.locked(history.drop)
    raise configuration.left_alone("no change of it is kept that could be undone")


def _undone(
    configuration: Configuration, file: ConfigFile, change: Change, copy: bytes | None
) -> bytes | None:
    """Returns the new content of a file; ``None`` removes it."""
    if file.data is not None and _hash(file.data) == change.written:
        return copy
    config = configuration.parsed(file)
    if not _same(configuration.entry(config, change.name), change.after):
        kept = FileHistory(file.path).last_copy()
        raise configuration.left_alone(
            f"its entry {change.name} was edited since; undo that by hand"
            + (f", with the copy {kept} of the file before" if kept is not None else "")
        )
    if change.before is not None:
        text = configuration.with_entry(config, change.name, change.before)
    else:
        text = configuration.without_entry(config, change.name)
    return configuration.encoded(file, text)


def _same(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(value_of(one) == value_of(other))


def _put_back(file: ConfigFile, data: bytes | None, history: FileHistory) -> None:
    file.replace(data)
    history.drop()


def _written(file: ConfigFile, data: bytes, change: Change) -> Path | None:
    """Keeps a copy and then writes the file, while no other process of ours does. Returns where the copy is."""
    history = FileHistory(file.path)

    def write() -> Path | None:
        if not file.is_unchanged():
            raise ChangedMeanwhile(f"{file.path} was changed by another program meanwhile")
        copied = history.add(change, file.data)
        try:
            file.replace(data)
        except BaseException:
            history.drop()
            raise
        return copied

    return history.locked(write)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _asked() -> bool:
    try:
        if confirmed("write this?"):
            return True
    except (KeyboardInterrupt, click.Abort):  # Ctrl-C, or the end of the input
        echo("\nnothing was changed", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    echo("nothing was changed", err=True)
    return False


def _coloured(line: str) -> str:
    if not sys.stdout.isatty():
        return line
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return styled(line, fg=colour) if colour else line


# -- A change in lines for a person, without the values of variables and headers -----------------------
#
# Nothing else of the file is shown: the lines beside an entry may hold secrets too.

# Characters of a line, and lines of one side: any program may have written an entry.
MAX_LINE = 500
MAX_LINES = 200
_SECRET = frozenset({"env", "headers"})
_HIDDEN = "***"


def change_lines(path: str, section: str, name: str, before: str | None, after: str | None) -> Iterator[str]:
    """Yields the lines of a diff between two texts of an entry, ``None`` for a missing entry."""
    yield f"--- {safe(path)}"
    yield f"+++ {safe(path)}"
    yield f"@@ {section} @@"
    old, new = _lines(name, before), _lines(name, after)
    if old == new:
        yield "  (only values that are not shown here)"
    for line in list(difflib.unified_diff(old, new, n=MAX_LINES, lineterm=""))[3:]:
        yield safe(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…")


def _lines(name: str, entry: str | None) -> list[str]:
    if entry is None:
        return []
    shown = json.dumps({name: _without_secrets(value_of(entry))}, indent=2, ensure_ascii=False)
    # Without the braces round it, and one level less.
    lines = [line[2:] for line in shown.split("\n")[1:-1]]
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], "…"]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _hidden(each) if key in _SECRET else _without_secrets(each) for key, each in value.items()}


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, _HIDDEN) if isinstance(value, dict) else _HIDDEN
