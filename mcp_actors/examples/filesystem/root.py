"""A directory that no path leaves.

A path is walked from the root one component at a time, each opened relative to the descriptor of the one before with
``O_NOFOLLOW``. Nothing is checked first and opened later, so there is no moment in which a swapped directory or a
planted link could lead outside; links are refused, also those that stay inside. ``..`` is refused as text.
What this cannot see: hard links and mounts that somebody with access to the disk made inside the root on purpose.
Windows has no such calls, so this module cannot be imported there.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from mcp_actors.errors import ToolError

if sys.platform == "win32":
    raise ImportError("the filesystem example needs openat(2) and O_NOFOLLOW, which Windows does not have")

MAX_FILE_BYTES = 2_000_000  # sixfold when every byte needs escaping, and still under the limit of a message
MAX_ENTRIES = 5_000  # of one directory in one answer
MAX_PATH_BYTES = 4_000  # what other programs can open (PATH_MAX), less a part for where the root is
MAX_DEPTH = 32  # directories that a write may make on its way, one in the other, counted from the root

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe that somebody put there must not hold the thread that opens it
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["file", "directory", "link", "other"]


class NoSuchPath(ToolError):
    """There is nothing under that path."""


@dataclass(frozen=True)
class Entry:
    """One name in a directory; ``size`` in bytes, ``modified`` in UTC."""

    name: str
    kind: Kind
    size: int
    modified: datetime


@dataclass(frozen=True)
class Found:
    """A file or directory that the walk met; ``path`` is relative to the root."""

    path: str
    kind: Kind


class RootFolder:
    """The directory ``directory``. All paths are relative to it, with ``/`` between components; ``""`` is the root.

    Every method blocks: call it in a thread. They raise `ToolError` with a text that says what is wrong with the
    path, `NoSuchPath` when there is nothing.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ValueError(f"there is no directory {str(directory)!r}")
        self.directory: Path = directory.resolve()
        self.uri: str = self.directory.as_uri()

    def uri_of(self, path: str) -> str:
        """The ``file:`` URI of a path."""
        return "/".join([self.uri.rstrip("/"), *(quote(part) for part in _components(path))])

    def read(self, path: str) -> bytes:
        """The whole content of a regular file of at most `MAX_FILE_BYTES`."""
        parts = _components(path)
        with _explained(path), self._parent(parts) as (parent, name):
            descriptor = os.open(name, _FILE, dir_fd=parent)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ToolError(f"{path!r} is not a regular file")
                data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{path!r} is larger than {MAX_FILE_BYTES} bytes")
        return data

    def write(self, path: str, data: bytes, *, create_directories: bool = False) -> None:
        """Puts a file there in one step: whoever reads sees the old content or the new, never a part.

        The mode of a file that is replaced is kept. Raises `ToolError` if something else than a regular file is there,
        or if directories would be made deeper than `MAX_DEPTH`.
        """
        parts = _components(path)
        if create_directories and len(parts) - 1 > MAX_DEPTH:
            raise ToolError(
                f"the file would be {len(parts) - 1} directories deep, and none is made deeper than {MAX_DEPTH};"
                " choose a shorter path, or leave out create_directories if they are there"
            )
        with _explained(path), self._parent(parts, create=create_directories) as (parent, name):
            mode = _mode_of_regular_file(name, parent, path)
            temporary = f".mcp-{secrets.token_hex(8)}.tmp"
            descriptor = os.open(temporary, _NEW_FILE, 0o666, dir_fd=parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if mode is not None:
                        os.fchmod(descriptor, mode)
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                os.unlink(temporary, dir_fd=parent)
                raise

    def entries(self, path: str) -> tuple[list[Entry], bool]:
        """The names in a directory, sorted, and whether there were more than `MAX_ENTRIES`."""
        with _explained(path), self._opened(_components(path)) as descriptor:
            entries: list[Entry] = []
            with os.scandir(descriptor) as found:
                for entry in found:
                    if len(entries) == MAX_ENTRIES:
                        return sorted(entries, key=_name), True
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # gone since it was listed
                        continue
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                    entries.append(Entry(_shown(entry.name), _kind(status.st_mode), size, modified))
        return sorted(entries, key=_name), False

    def walk(self, path: str, limit: int) -> Iterator[Found]:
        """The first ``limit`` things under a directory, depth first.

        What vanishes or may not be read meanwhile is left out. A directory is read whole before the first of its
        names comes, so ``limit`` bounds the names that are held as well.
        """
        pending = [_components(path)]
        with _explained(path), self._opened(pending[0]):
            pass  # the first one must be there
        while pending:
            parts = pending.pop()
            try:
                with self._opened(parts) as descriptor, os.scandir(descriptor) as entries:
                    children = sorted((entry.name, _kind_of(entry)) for entry in islice(entries, limit))
            except OSError:
                continue
            limit -= len(children)
            pending.extend((*parts, name) for name, kind in reversed(children) if kind == "directory")
            for name, kind in children:
                yield Found(_shown("/".join((*parts, name))), kind)

    def is_directory(self, path: str) -> bool:
        """Whether a directory is there; False for a link to one."""
        with _explained(path):
            try:
                with self._opened(_components(path)):
                    return True
            except NotADirectoryError:
                return False

    def signature(self, path: str) -> tuple[int, ...] | None:
        """A value that is another one after a change of the file or directory; None if there is nothing."""
        try:
            parts = _components(path)
            if not parts:
                return _signature(os.stat(self.directory))
            with self._parent(parts) as (parent, name):
                return _signature(os.stat(name, dir_fd=parent, follow_symlinks=False))
        except (OSError, ToolError):
            return None

    @contextmanager
    def _parent(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[tuple[int, str]]:
        if not parts:
            raise ToolError("the path names the root directory, not a file in it")
        with self._opened(parts[:-1], create=create) as descriptor:
            yield descriptor, parts[-1]

    @contextmanager
    def _opened(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        descriptor = os.open(self.directory, _DIRECTORY)
        try:
            for part in parts:
                if create:
                    try:
                        os.mkdir(part, dir_fd=descriptor)
                    except FileExistsError:
                        pass
                inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _components(path: str) -> tuple[str, ...]:
    if "\0" in path:
        raise ToolError("a path cannot contain a NUL character")
    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise ToolError(f"a path of more than {MAX_PATH_BYTES} bytes: {path[:40]!r}…")
    if path.startswith("/"):
        raise ToolError(f"{path!r} is absolute; give a path relative to the root of this server")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ToolError(f"{path!r} contains '..'; paths cannot leave the root of this server")
    return parts


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Says what the operating system refused, by the caller's path and without a word about where the root is."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchPath(f"there is nothing at {path!r}") from error
    except UnicodeEncodeError as error:
        raise ToolError(f"{path!r} cannot be the name of a file") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise ToolError(
                f"{path!r} leads through a symbolic link, or a file where a directory must be"
            ) from error
        raise ToolError(f"{path!r}: {os.strerror(error.errno or errno.EIO)}") from error


def _mode_of_regular_file(name: str, parent: int, path: str) -> int | None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise ToolError(f"{path!r} is not a regular file")
    return stat.S_IMODE(mode)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _kind_of(entry: os.DirEntry[str]) -> Kind:
    """Asks the directory alone, not the file: the walk costs no system call for each."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")  # a name can be any bytes, a JSON string cannot


def _name(entry: Entry) -> str:
    return entry.name
