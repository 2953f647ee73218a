"""Serves the history of one git repository, which it never changes::

    mcp-actors serve mcp_actors.examples.git -- ~/src/project

Prompt ``analyze_commits``; tools ``log``, ``show``, ``diff``; resources ``git://commit/{sha}``,
``git://file/{ref}/{+path}`` and ``git://log/{ref}{?since,author}``. Git runs eight times at once; the output of a run
is cut at a megabyte, and after half a minute it is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

from msgspec import Meta

from mcp_actors import ResourceNotFound, RpcError, Server, ToolError
from mcp_actors.errors import INVALID_PARAMS
from mcp_actors.examples.git.history import Commit, History, Log
from mcp_actors.examples.git.program import NoSuchRevision, Repository
from mcp_actors.types import (
    EmbeddedResource,
    PromptMessage,
    Resource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

__all__ = ["Commit", "Log", "server"]

USAGE = "usage: mcp-actors serve mcp_actors.examples.git -- REPOSITORY"
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
COMMIT = "git://commit/{sha}"
FILE = "git://file/{ref}/{+path}"
LOG = "git://log/{ref}{?since,author}"
COMMITS_IN_LOG = 200  # as a resource and in the prompt


def server(*args: str) -> Server:
    """Makes the server for ``REPOSITORY``, a directory inside of one.

    Raises `ValueError`, with a text for people, if git cannot work with it.
    """
    if len(args) != 1 or args[0].startswith("-"):
        raise ValueError(USAGE)
    repository = Repository(Path(args[0]).expanduser())
    history = History(repository)
    app = Server("git", title=f"History of {repository.directory.name}")
    _add_tools(app, history)
    _add_resources(app, history)
    _add_prompt(app, history)
    return app


def _add_tools(app: Server, history: History) -> None:
    @app.tool(annotations=READ_ONLY)
    async def log(
        revision: str = "HEAD",
        since: str = "",
        author: str = "",
        path: str = "",
        limit: Annotated[int, Meta(ge=1, le=1_000)] = 20,
    ) -> Log:
        """Lists commits, newest first.

        Args:
            revision: A branch, a tag, a commit or such as main~3.
            since: Only after this date, such as 2026-01-31 or 2 weeks ago.
            author: Only those whose author's name or address contains this.
            path: Only those that changed this file or directory.
            limit: At most so many.
        """
        return await history.log(revision, since=since, author=author, path=path, limit=limit)

    @app.tool(annotations=READ_ONLY)
    async def show(revision: str = "HEAD") -> str:
        """Shows one commit: message, statistics, patch.

        Args:
            revision: A branch, a tag, a commit or such as main~3.
        """
        return await history.show(revision)

    @app.tool(annotations=READ_ONLY)
    async def diff(base: str, head: str = "HEAD", path: str = "") -> str:
        """Shows what changed from one commit to another.

        Args:
            base: The commit to start from: a branch, a tag, a commit or such as main~3.
            head: The commit to end at.
            path: Only in this file or directory.
        """
        return await history.diff(base, head, path)


def _add_resources(app: Server, history: History) -> None:
    async def recent_commits() -> list[Resource]:
        try:
            commits = (await history.log("HEAD")).commits
        except NoSuchRevision:  # a repository without a commit
            return []
        return [
            Resource(
                f"git://commit/{commit.sha}", commit.sha[:12], title=commit.subject, mime_type="text/plain"
            )
            for commit in commits
        ]

    @app.resource(COMMIT, name="commit", mime_type="text/plain", list=recent_commits)
    async def commit(sha: str) -> str:
        """A commit with its message, statistics and patch; a branch or tag will do for the id."""
        with _errors_of(f"git://commit/{quote(sha, safe='')}"):
            return await history.show(sha)

    @app.resource(FILE, name="file")
    async def file(ref: str, path: str) -> str | bytes:
        """A file as it was in a commit, or the names in a directory."""
        with _errors_of(f"git://file/{quote(ref, safe='')}/{quote(path)}"):
            content = await history.file(ref, path.strip("/"))
        if isinstance(content, list):
            return "\n".join(content)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content

    @app.resource(LOG, name="log", mime_type="text/plain")
    async def log(ref: str, since: str = "", author: str = "") -> str:
        """The latest 200 commits, newest first: id, date, author, subject."""
        with _errors_of(f"git://log/{quote(ref, safe='')}"):
            return _lines(await history.log(ref, since=since, author=author, limit=COMMITS_IN_LOG))

    @app.completion(resource=COMMIT, argument="sha")
    async def complete_sha(value: str) -> list[str]:
        return _starting_with(
            value, [commit.sha for commit in (await history.log("HEAD", limit=1_000)).commits]
        )

    @app.completion(resource=LOG, argument="ref")
    @app.completion(resource=FILE, argument="ref")
    async def complete_ref(value: str) -> list[str]:
        return _starting_with(value, await history.branches())

    @app.completion(resource=FILE, argument="path")
    async def complete_path(value: str, context: Mapping[str, str]) -> list[str]:
        directory = value.rpartition("/")[0]
        try:
            return _starting_with(value, await history.paths(context.get("ref") or "HEAD", directory))
        except ToolError:  # no such directory: nothing to propose
            return []


def _add_prompt(app: Server, history: History) -> None:
    @app.prompt
    async def analyze_commits(
        branch: str = "HEAD", since: str = "1 month ago", author: str = ""
    ) -> list[PromptMessage]:
        """Asks for an analysis of the commits on a branch.

        Args:
            branch: The branch to look at; what is checked out, if left out.
            since: A date such as 2026-01-31 or 2 weeks ago; a month, if left out.
            author: Only commits by this author; all, if left out.
        """
        with _errors_of(None):
            found = await history.log(branch, since=since, author=author, limit=COMMITS_IN_LOG)
        text = (
            f"Here are the {len(found.commits)} {'latest ' if found.truncated else ''}commits on {branch}"
            f"{f' by {author}' if author else ''} since {since}, newest first: id, date, author, subject. Group them"
            " by what they are about, say what changed for users of this project, and point out commits that look"
            " risky or that belong together."
        )
        filters = {"since": since, "author": author} if author else {"since": since}
        uri = f"git://log/{quote(branch, safe='')}?{urlencode(filters, quote_via=quote)}"
        log = TextResourceContents(uri, _lines(found), "text/plain")
        return [PromptMessage("user", TextContent(text)), PromptMessage("user", EmbeddedResource(log))]

    @app.completion(prompt="analyze_commits", argument="branch")
    async def complete_branch(value: str) -> list[str]:
        return _starting_with(value, await history.branches())

    @app.completion(prompt="analyze_commits", argument="author")
    async def complete_author(value: str, context: Mapping[str, str]) -> list[str]:
        try:
            authors = await history.authors(context.get("branch") or "HEAD")
        except ToolError:  # no such branch: nobody wrote on it
            return []
        return [name for name in authors if value.casefold() in name.casefold()]


def _lines(log: Log) -> str:
    return "\n".join(f"{each.sha[:12]} {each.date} {each.author}: {each.subject}" for each in log.commits)


def _starting_with(value: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.casefold().startswith(value.casefold())]


@contextmanager
def _errors_of(uri: str | None) -> Iterator[None]:
    """Outside of tools there is no result to carry the text of a `ToolError`: it goes into the protocol's error."""
    try:
        yield
    except ToolError as error:
        if uri is not None and isinstance(error, NoSuchRevision):
            raise ResourceNotFound(uri) from error
        raise RpcError(INVALID_PARAMS, str(error)) from error
