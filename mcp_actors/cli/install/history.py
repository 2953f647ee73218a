"""The changes that were made to a file: a copy of it as it was before each, and what it takes to undo them.

They are in a folder of their own below the state directory of this user, one for each file, and nobody else may read
them: an entry may hold secrets. The last ones are kept.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from mcp_actors.cli.failures import CommandFailure

__all__ = ["KEPT", "Change", "FileHistory", "state_folder"]

# Copies of one file: somebody who tries something makes a few changes in a row.
KEPT = 20
# Seconds for another process that changes the same file: it writes two small files and does not wait for a person.
LOCK_TIMEOUT = 10.0

_T = TypeVar("_T")


@attrs.frozen
class Change:
    """A change of one entry of a file."""

    name: str
    """That of the entry."""
    before: str | None = attrs.field(repr=False)
    """The text of the entry before; ``None`` if there was none."""
    after: str | None = attrs.field(repr=False)
    """And afterwards."""
    written: str
    """The hash of the whole file afterwards."""
    was_there: bool
    """Whether there was a file before."""


def state_folder(*, system: str = sys.platform, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns where programs of this user keep what is neither settings nor data."""
    if system == "win32":
        return Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG Base Directory Specification has relative paths ignored.
    return Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"


class FileHistory:
    """The changes of one file.

    Args:
        path: The file, without symbolic links in it.
    """

    def __init__(self, path: str) -> None:
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        self._folder = state_folder() / "mcp-actors" / "installs" / name

    def __repr__(self) -> str:
        return f"<FileHistory {self._folder}>"

    def locked(self, operation: Callable[[], _T]) -> _T:
        """Returns what ``operation`` returns, which no other process does meanwhile.

        Raises:
            CommandFailure: Another process is at it for more than ten seconds, or there can be no lock.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return trio.run(self._locked, operation)

    async def _locked(self, operation: Callable[[], _T]) -> _T:
        lock = importlib.import_module("mcp_transports.auth.file_lock").FileLock(str(self._folder / "lock"))
        with trio.move_on_after(LOCK_TIMEOUT) as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            raise CommandFailure("another mcp-actors changes that file for more than 10 s: end it")
        try:
            return await trio.to_thread.run_sync(operation)
        finally:
            lock.release()

    def add(self, change: Change, copy: bytes | None) -> Path | None:
        """Keeps a change and a copy of the file before it. The lock is held.

        Returns:
            Where the copy is, ``None`` if there was no file.
        """
        number = max(self._numbers(), default=0) + 1
        copied = None if copy is None else self._path(number, "copy")
        if copied is not None and copy is not None:
            _write(copied, copy)
        _write(self._path(number, "json"), json.dumps(attrs.asdict(change)).encode())
        for old in self._numbers()[:-KEPT]:
            self._remove(old)
        return copied

    def last(self) -> tuple[Change, bytes | None] | None:
        """Returns the last change and the copy of the file before it, ``None`` if none is kept.

        Raises:
            CommandFailure: What was kept is damaged.
        """
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._path(numbers[-1], "json")
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            change = Change(**value)
            copy = self._path(numbers[-1], "copy").read_bytes() if change.was_there else None
        except (OSError, ValueError, TypeError) as error:
            raise CommandFailure(
                f"{path} is damaged, so that nothing can be undone by it: {error}"
            ) from error
        return change, copy

    def last_copy(self) -> Path | None:
        """Returns where the copy of the last change is."""
        numbers = self._numbers()
        copied = self._path(numbers[-1], "copy") if numbers else None
        return copied if copied is not None and copied.exists() else None

    def drop(self) -> None:
        """Forgets the last change. The lock is held."""
        self._remove(self._numbers()[-1])

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal())

    def _path(self, number: int, ending: str) -> Path:
        return self._folder / f"{number:06}.{ending}"

    def _remove(self, number: int) -> None:
        for ending in ("json", "copy"):
            self._path(number, ending).unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
