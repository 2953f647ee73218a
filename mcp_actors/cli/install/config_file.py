"""The file of another program: replaced as a whole, with its rights, unless it has changed; and its history."""

from __future__ import annotations

import codecs
import hashlib
import importlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.start import uninterrupted

__all__ = [
    "KEPT",
    "MAX_CONFIG_BYTES",
    "Change",
    "ChangedMeanwhile",
    "ConfigFile",
    "FileHistory",
    "Untouchable",
    "open_config",
    "state_folder",
]


# Bytes. The largest that are known, of a client that keeps its history there too, have some tens of MiB.
MAX_CONFIG_BYTES = 32 * 1024 * 1024
# The mode of a new file: an entry may hold secrets.
NEW_MODE = 0o600
_BOM = codecs.BOM_UTF8


class Untouchable(Exception):
    """The file is left alone; the message says why."""


class ChangedMeanwhile(Exception):
    """Another program has written the file since it was read, and it was left alone."""


@attrs.frozen
class ConfigFile:
    """A file as it was read."""

    path: str
    """The path of the file itself: symbolic links are followed, so that they stay."""
    data: bytes | None = attrs.field(repr=False)
    """``None`` if it does not exist."""
    found: os.stat_result | None = attrs.field(repr=False)

    def text(self) -> str:
        """Returns its text without a byte order mark; empty if it does not exist.

        Raises:
            Untouchable: It is not UTF-8.
        """
        try:
            return (self.data or b"").removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            raise Untouchable(f"it is not UTF-8 (byte {error.start})") from None

    def encoded(self, text: str) -> bytes:
        """Returns a text as the bytes of this file: with a byte order mark, if it has one.

        Raises:
            Untouchable: The text cannot be written as UTF-8.
        """
        try:
            return (_BOM if (self.data or b"").startswith(_BOM) else b"") + text.encode()
        except UnicodeEncodeError:
            raise Untouchable("a word of the entry is no text that a JSON file can hold") from None

    def is_unchanged(self) -> bool:
        """Returns whether the file and its content are still those that were read."""
        try:
            now = open_config(self.path)
        except Untouchable:
            return False
        if now.data != self.data:
            return False
        return (
            now.found is None
            or self.found is None
            or (now.found.st_ino, now.found.st_mode) == (self.found.st_ino, self.found.st_mode)
        )

    def replace(self, data: bytes | None) -> None:
        """Replaces the file at once, so that no reader and no crash ever sees a part of it.

        Args:
            data: The new content; ``None`` removes the file.

        Raises:
            ChangedMeanwhile: Another program has written it since it was read.
            Untouchable: It cannot be written, or would be too large. It is left as it was.
        """
        try:
            if data is None:
                self._require_unchanged()
                os.unlink(self.path)
            else:
                self._replace(data)
            _sync_folder(os.path.dirname(self.path))
        except OSError as error:
            raise Untouchable(f"it cannot be written ({error.strerror})") from error

    def _require_unchanged(self) -> None:
        if not self.is_unchanged():
            raise ChangedMeanwhile(f"{self.path} was changed by another program meanwhile")

    def _replace(self, data: bytes) -> None:
        if len(data) > MAX_CONFIG_BYTES:
            raise Untouchable(f"it would have more than {MAX_CONFIG_BYTES} bytes")
        folder, name = os.path.split(self.path)
        fresh = os.path.join(folder, f".{name}.mcp-actors.new")
        _remove(fresh)  # left behind by a process that was killed
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), NEW_MODE
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            self._give_rights(fresh)
            self._require_unchanged()
            os.replace(fresh, self.path)
        except BaseException:
            _remove(fresh)
            raise

    def _give_rights(self, fresh: str) -> None:
        if self.found is None:
            return
        if sys.platform != "win32" and os.stat(fresh).st_gid != self.found.st_gid:
            os.chown(fresh, -1, self.found.st_gid)
        shutil.copystat(self.path, fresh)  # access lists too, where the system has them
        os.utime(fresh)


def open_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Reads a file, if it is one that may be replaced.

    Raises:
        Untouchable: It is not: the message says why.
    """
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        raise Untouchable(f"there is no folder {folder}")
    try:
        # Without blocking: a pipe of that name would wait for a writer.
        descriptor = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        if sys.platform != "win32" and os.stat(folder).st_uid != os.geteuid():
            raise Untouchable(f"{folder} belongs to another user: run this as that user") from None
        return ConfigFile(real, None, None)
    except OSError as error:
        raise Untouchable(f"it cannot be read ({error.strerror})") from error
    try:
        found = os.fstat(descriptor)
        _require_replaceable(found)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise Untouchable(f"it cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_CONFIG_BYTES:
        raise Untouchable(f"it has more than {MAX_CONFIG_BYTES} bytes")
    return ConfigFile(real, data, found)


def _require_replaceable(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Untouchable("it is no file")
    if sys.platform != "win32" and found.st_uid != os.geteuid():
        raise Untouchable("it belongs to another user, who would lose it: run this as that user")
    if not found.st_mode & stat.S_IWUSR:
        raise Untouchable("it is read-only")
    if found.st_nlink > 1:
        raise Untouchable("it has several names (hard links), of which one would be replaced")


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _sync_folder(folder: str) -> None:
    """Makes the change of a name survive a crash of the machine, where the system can."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # the change is made anyway
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems cannot do this
    finally:
        os.close(descriptor)


# -- History: a copy of the file as it was before each change, and what it takes to undo it ------------
#
# They are in a folder of their own below the state directory of this user, one for each file, and only that user may
# read them: an entry may hold secrets. The last ones are kept.

# Copies of one file: somebody who tries something makes a few changes in a row.
KEPT = 20
# Seconds for another process that changes the same file: it writes two small files and does not wait for a person.
LOCK_TIMEOUT = 10.0

_T = TypeVar("_T")


@attrs.frozen
class Change:
    """A change of one entry of a file."""

    name: str
    """The name of the entry."""
    before: str | None = attrs.field(repr=False)
    """The text of the entry before; ``None`` if the entry is new."""
    after: str | None = attrs.field(repr=False)
    """The text of the entry afterwards."""
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
        """Runs ``operation`` while no other process can, and returns its result.

        Raises:
            CommandFailure: Another process takes more than ten seconds, or the file cannot be locked.
        KeyboardInterrupt: A signal came meanwhile; the operation has ended.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with uninterrupted():
            return trio.run(self._locked, operation)

    async def _locked(self, operation: Callable[[], _T]) -> _T:
        lock = importlib.import_module("mcp_transports.auth.file_store").FileLock(str(self._folder / "lock"))
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
        """Returns the last change and the copy of the file before it, ``None`` if no change is kept.

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
