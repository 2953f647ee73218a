"""Serves the files under one directory, and nothing outside it::

    mcp-actors serve mcp_actors.examples.filesystem -- ~/notes
    mcp-actors serve mcp_actors.examples.filesystem -- ~/notes --read-only

Tools ``read_file``, ``write_file``, ``list_directory``, ``search_files``; every file and directory is a resource with
its ``file:`` URI, and its subscribers hear of changes on the disk. Files of up to two megabytes are read,
and directories are made up to 32 deep; a search looks at 250,000 names, and four searches run at once.
"""

from __future__ import annotations

import base64
import errno
import fnmatch
import mimetypes
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, unquote

import trio
from msgspec import Meta
from watchfiles import watch

from mcp_actors import Context, ResourceNotFound, RpcError, Server, ToolError
from mcp_actors.errors import INVALID_PARAMS
from mcp_actors.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    Resource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

__all__ = ["Entry", "Found", "Listing", "SearchResult", "server"]


# -- A directory that no path leaves -------------------------------------------------------------------
#
# A path is walked from the root one component at a time, each opened relative to the descriptor of the one before with
# ``O_NOFOLLOW``. Nothing is checked first and opened later, so a swapped directory or a planted link can never lead
# outside; links are refused, also those that stay inside. ``..`` is refused as text.
# What this cannot see: hard links and mounts that a user with access to the disk made inside the root on purpose.
# Windows has no such calls, so this module cannot be imported there.

if sys.platform == "win32":
    raise ImportError("the filesystem example needs openat(2) and O_NOFOLLOW, which Windows does not have")

MAX_FILE_BYTES = 2_000_000  # sixfold when every byte needs escaping, and still under the limit of a message
MAX_ENTRIES = 5_000  # of one directory in one answer
MAX_PATH_BYTES = 4_000  # what other programs can open (PATH_MAX), less a part for where the root is
MAX_DEPTH = 32  # directories that a write may make on its way, one in the other, counted from the root

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a pipe at that place must not hold the thread that opens it
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["file", "directory", "link", "other"]


class NoSuchPath(ToolError):
    """Nothing exists at that path."""


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
        """Puts a file there in one step: a reader sees the old content or the new, never a part.

        The mode of a file that is replaced is kept. Raises `ToolError` if anything but a regular file is there,
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
        """A value that changes with the file or directory; None if it does not exist."""
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
    """Says what the operating system refused, with the caller's path, and without revealing where the root is."""
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


# -- Search by name and content, a slice at a time so that it can report and be cancelled in between ---

SLICE_SECONDS = (
    0.1  # of work in a thread between two reports; a cancelled search ends after the slice that runs
)
MAX_LOOKED_AT = 250_000  # files and directories in one search; their names are held
MAX_MATCHED_BYTES = 1_000_000  # of the paths in one answer
MAX_SEARCHES = 4  # at once; further ones wait for their turn

Progress = Callable[[float, float | None, str | None], Awaitable[None]]


@dataclass(frozen=True)
class SearchResult:
    """Paths relative to the root. ``truncated`` says that the search stopped before it had seen everything."""

    matches: list[Found]
    looked_at: int
    truncated: bool


class Search:
    """One search under ``directory``: names that fit ``pattern``, and of those, files that contain ``text``."""

    def __init__(self, root: RootFolder, pattern: str, text: str, directory: str, max_results: int) -> None:
        self.matches: list[Found] = []
        self.looked_at = 0
        self._root = root
        self._fits = re.compile(fnmatch.translate(pattern)).match
        self._by_path = "/" in pattern
        self._text = text.encode("utf-8", "surrogatepass")
        self._walk = root.walk(directory, MAX_LOOKED_AT + 1)
        self._max_results = max_results
        self._bytes_left = MAX_MATCHED_BYTES
        self._finished = False
        self._truncated = False

    async def run(self, progress: Progress) -> SearchResult:
        """Searches to the end; reports how many files and directories were looked at."""
        while not self._finished:
            await trio.to_thread.run_sync(self._slice)
            await progress(self.looked_at, None, f"{len(self.matches)} found")
        return SearchResult(self.matches, self.looked_at, self._truncated)

    def _slice(self) -> None:
        end = time.monotonic() + SLICE_SECONDS
        for found in self._walk:
            if (
                len(self.matches) == self._max_results
                or self.looked_at == MAX_LOOKED_AT
                or self._bytes_left < 0
            ):
                self._finished = self._truncated = True
                return
            self.looked_at += 1
            if self._matches(found):
                self._bytes_left -= len(found.path) + 40
                self.matches.append(found)
            if time.monotonic() > end:
                return
        self._finished = True

    def _matches(self, found: Found) -> bool:
        if not self._fits(found.path if self._by_path else found.path.rpartition("/")[2]):
            return False
        if not self._text:
            return True
        try:
            return found.kind == "file" and self._text in self._root.read(found.path)
        except ToolError:  # too large, gone, not ours to read
            return False


# -- Watching: subscribers hear of changes on the disk; without one nothing is watched -------------------

LOOK_EVERY = 1_000  # ms: how often to look, for file systems that send no notices


class Watch:
    """Calls ``changed(uri)`` when the file or directory behind a subscribed URI changes, comes or goes.

    ``add`` and ``discard`` are called for the first and after the last subscriber of a URI.
    """

    def __init__(
        self, root: RootFolder, path_of: Callable[[str], str | None], changed: Callable[[str], None]
    ) -> None:
        self._root = root
        self._path_of = path_of
        self._changed = changed
        self._seen: dict[str, tuple[str, tuple[int, ...] | None]] = {}
        self._turn = trio.Lock()
        self._wanted = trio.Event()
        self._unwanted = trio.Event()

    def add(self, uri: str) -> None:
        """Remembers how it looks now, so that a change before the watching begins is noticed at the first look."""
        path = self._path_of(uri)
        if path is not None:
            self._seen[uri] = (path, self._root.signature(path))
            self._wanted.set()

    def discard(self, uri: str) -> None:
        """Forgets it; without anything left to look at, the watching ends."""
        self._seen.pop(uri, None)
        if not self._seen:
            self._unwanted.set()

    async def run(self) -> None:
        """Watches whenever there is something to watch; never returns. Run twice, the second is a spare."""
        async with self._turn:
            while True:
                await self._wanted.wait()
                self._unwanted = trio.Event()
                if self._seen:
                    await self._watch_until(self._unwanted)
                self._wanted = trio.Event()
                if self._seen:
                    self._wanted.set()

    async def _watch_until(self, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_when_cancelled, stop)
            try:
                # In a thread of our own for as long as it lasts: to begin means to visit every directory.
                await trio.to_thread.run_sync(self._look_when_told, stop, limiter=trio.CapacityLimiter(1))
            except (OSError, RuntimeError):  # no more watches allowed on this machine, or the root is gone
                await self._look_now_and_then(stop)
            nursery.cancel_scope.cancel()

    def _look_when_told(self, stop: trio.Event) -> None:
        for _ in watch(
            self._root.directory,
            watch_filter=None,
            debounce=200,
            stop_event=stop,
            rust_timeout=LOOK_EVERY,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        ):
            self._look()

    async def _look_now_and_then(self, stop: trio.Event) -> None:
        while not stop.is_set():
            await trio.to_thread.run_sync(self._look)
            with trio.move_on_after(LOOK_EVERY / 1_000):
                await stop.wait()

    def _look(self) -> None:
        for uri, (path, _) in list(self._seen.items()):
            trio.from_thread.run_sync(self._compare, uri, self._root.signature(path))

    def _compare(self, uri: str, now: tuple[int, ...] | None) -> None:
        if uri in self._seen and self._seen[uri][1] != now:
            self._seen[uri] = (self._seen[uri][0], now)
            self._changed(uri)


async def _set_when_cancelled(stop: trio.Event) -> None:
    """The thread of the watching library cannot be cancelled; it looks at this event instead."""
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


# -- The server ----------------------------------------------------------------------------------------

USAGE = "usage: mcp-actors serve mcp_actors.examples.filesystem -- DIRECTORY [--read-only]"
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
DIRECTORY_TYPE = "inode/directory"


@dataclass(frozen=True)
class Listing:
    """The entries of a directory; ``truncated`` says that there is more than fits into one answer."""

    entries: list[Entry]
    truncated: bool


def server(*args: str) -> Server:
    """Makes the server for ``DIRECTORY [--read-only]``.

    Raises `ValueError`, with a text for people, if the arguments do not name a directory.
    """
    places = [arg for arg in args if arg != "--read-only"]
    if len(places) != 1 or places[0].startswith("-"):
        raise ValueError(USAGE)
    root = RootFolder(Path(places[0]).expanduser())
    template = f"{root.uri.rstrip('/')}/{{+path}}"

    @asynccontextmanager
    async def lifespan(app: Server) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watching.run)
            yield
            nursery.cancel_scope.cancel()

    app = Server(
        "filesystem",
        version="1.0",
        title=f"Files: {root.directory.name}",
        instructions="Paths are relative to the root of this server, with / between names. Links are not followed.",
        lifespan=lifespan,
    )
    watching = Watch(root, lambda uri: _path_of(root, uri), app.resource_updated)
    app.on_subscribe, app.on_unsubscribe = watching.add, watching.discard
    _add_reading_tools(app, root)
    if "--read-only" not in args:
        _add_writing_tool(app, root)
    _add_resources(app, root, template)
    return app


def _add_reading_tools(app: Server, root: RootFolder) -> None:
    searches = trio.CapacityLimiter(MAX_SEARCHES)

    @app.tool(annotations=READ_ONLY)
    async def read_file(path: str) -> CallToolResult:
        """Reads a file of at most two megabytes; what is not text comes as an embedded resource.

        Args:
            path: Relative to the root of this server.
        """
        contents = await trio.to_thread.run_sync(_read, root, path)
        if isinstance(contents, TextResourceContents):
            return CallToolResult(content=[TextContent(text=contents.text)])
        return CallToolResult(content=[EmbeddedResource(resource=contents)])

    @app.tool(annotations=READ_ONLY)
    async def list_directory(path: str = "") -> Listing:
        """Lists a directory.

        Args:
            path: Relative to the root of this server, which is listed when this is left out.
        """
        return Listing(*await trio.to_thread.run_sync(root.entries, path))

    @app.tool(annotations=READ_ONLY)
    async def search_files(
        pattern: Annotated[str, Meta(max_length=200)],
        text: Annotated[str, Meta(max_length=1_000)] = "",
        path: str = "",
        max_results: Annotated[int, Meta(ge=1, le=1_000)] = 100,
        *,
        ctx: Context,
    ) -> SearchResult:
        """Searches a directory and everything below it.

        Args:
            pattern: Such as *.py for names, or docs/*.md for paths, where * also matches several directories.
            text: Only files that contain exactly this.
            path: The directory to search, relative to the root of this server.
            max_results: Stop after so many.
        """
        async with searches:
            return await Search(root, pattern, text, path, max_results).run(ctx.progress)


def _add_writing_tool(app: Server, root: RootFolder) -> None:
    @app.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False))
    async def write_file(path: str, content: str, create_directories: bool = False) -> str:
        """Writes a text file, in the place of any that is there, whole or not at all.

        Args:
            path: Relative to the root of this server.
            content: The new content, all of it.
            create_directories: Make the directories on the way, at most 32 deep.
        """
        data = content.encode()
        await trio.to_thread.run_sync(lambda: root.write(path, data, create_directories=create_directories))
        return f"wrote {len(data)} bytes to {path}"


def _add_resources(app: Server, root: RootFolder, template: str) -> None:
    @app.resource(root.uri, name=root.directory.name or "/", mime_type=DIRECTORY_TYPE)
    async def top() -> TextResourceContents:
        """The directory that is served: one name in a line, directories with a slash at the end."""
        return await trio.to_thread.run_sync(_listing, root, "")

    async def files_at_the_top() -> list[Resource]:
        entries, _ = await trio.to_thread.run_sync(root.entries, "")
        return [_as_resource(root, entry) for entry in entries if entry.kind == "file"]

    @app.resource(template, name="files", list=files_at_the_top)
    async def file(path: str) -> TextResourceContents | BlobResourceContents:
        """A file, or the names in a directory."""
        try:
            return await trio.to_thread.run_sync(_read_or_list, root, path)
        except NoSuchPath as error:
            raise ResourceNotFound(f"{root.uri}/{path}") from error
        except ToolError as error:  # a link, too large, not allowed: a resource has no other way to say so
            raise RpcError(INVALID_PARAMS, str(error)) from error

    @app.completion(resource=template, argument="path")
    async def complete_path(value: str) -> list[str]:
        directory, slash, start = value.rpartition("/")
        try:
            entries, _ = await trio.to_thread.run_sync(root.entries, directory)
        except ToolError:
            return []
        return [
            f"{directory}{slash}{entry.name}{'/' if entry.kind == 'directory' else ''}"
            for entry in entries
            if entry.name.startswith(start)
        ]


def _path_of(root: RootFolder, uri: str) -> str | None:
    """The path that a ``file:`` URI names, or None if it is not below the root, or longer than any path."""
    if uri == root.uri:
        return ""
    prefix = f"{root.uri.rstrip('/')}/"
    path = unquote(uri[len(prefix) :]) if uri.startswith(prefix) else None
    return path if path is not None and len(path) <= MAX_PATH_BYTES else None


def _as_resource(root: RootFolder, entry: Entry) -> Resource:
    mime_type, _ = mimetypes.guess_type(entry.name)
    return Resource(root.uri_of(entry.name), entry.name, size=entry.size, mime_type=mime_type)


def _read_or_list(root: RootFolder, path: str) -> TextResourceContents | BlobResourceContents:
    if root.is_directory(path):
        return _listing(root, path)
    return _read(root, path)


def _read(root: RootFolder, path: str) -> TextResourceContents | BlobResourceContents:
    data = root.read(path)
    guessed, encoding = mimetypes.guess_type(path)
    uri = root.uri_of(path)
    if encoding is None:
        try:
            return TextResourceContents(uri=uri, text=data.decode(), mime_type=guessed or "text/plain")
        except UnicodeDecodeError:
            pass  # no text, then
    mime_type = guessed if guessed and encoding is None else "application/octet-stream"
    return BlobResourceContents(uri=uri, blob=base64.b64encode(data).decode("ascii"), mime_type=mime_type)


def _listing(root: RootFolder, path: str) -> TextResourceContents:
    entries, _ = root.entries(path)
    lines = [f"{entry.name}/" if entry.kind == "directory" else entry.name for entry in entries]
    return TextResourceContents(uri=root.uri_of(path), text="\n".join(lines), mime_type=DIRECTORY_TYPE)
