"""Serves the files under one directory, and nothing outside it::

    mcp-actors serve mcp_actors.examples.filesystem -- ~/notes
    mcp-actors serve mcp_actors.examples.filesystem -- ~/notes --read-only

Tools ``read_file``, ``write_file``, ``list_directory``, ``search_files``; every file and directory is a resource with
its ``file:`` URI, and whoever subscribes to one hears of changes on the disk. Files of up to two megabytes are read,
and directories are made up to 32 deep; a search looks at 250,000 names, and four searches run at once.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import trio
from msgspec import Meta

from mcp_actors import Context, ResourceNotFound, RpcError, Server, ToolError
from mcp_actors.errors import INVALID_PARAMS
from mcp_actors.examples.filesystem.root import MAX_PATH_BYTES, Entry, Found, NoSuchPath, RootFolder
from mcp_actors.examples.filesystem.search import MAX_SEARCHES, Search, SearchResult
from mcp_actors.examples.filesystem.watch import Watch
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
            nursery.start_soon(watch.run)
            yield
            nursery.cancel_scope.cancel()

    app = Server(
        "filesystem",
        title=f"Files: {root.directory.name}",
        instructions="Paths are relative to the root of this server, with / between names. Links are not followed.",
        lifespan=lifespan,
    )
    watch = Watch(root, lambda uri: _path_of(root, uri), app.resource_updated)
    app.on_subscribe, app.on_unsubscribe = watch.add, watch.discard
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
            pattern: Such as *.py for names, or docs/*.md for paths, where * also stands for several directories.
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
