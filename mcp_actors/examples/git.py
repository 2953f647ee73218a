"""Serves the history of one git repository, which it never changes::

    mcp-actors serve mcp_actors.examples.git -- ~/src/project

Prompt ``analyze_commits``; tools ``log``, ``show``, ``diff``; resources ``git://commit/{sha}``,
``git://file/{ref}/{+path}`` and ``git://log/{ref}{?since,author}``. Git runs eight times at once; the output of a run
is cut at a megabyte, and after half a minute it is stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import trio
from msgspec import Meta

from mcp_actors import ResourceNotFound, RpcError, Server, ToolError
from mcp_actors.errors import INVALID_PARAMS
from mcp_actors.types import (
    EmbeddedResource,
    PromptMessage,
    Resource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

__all__ = ["Commit", "Log", "server"]


# -- The git program, run so that neither a client nor the repository decides what it does -------------
#
# - Every name that came from outside is first turned into an object id by ``rev-parse --verify --end-of-options``;
# only ids, and values glued to their option (``--author=…``), reach the other commands.
# - The environment is made here: no system configuration, pager, prompt, lazy download or variable such as ``GIT_DIR``
# of the user who started the server. External diffs, text conversion, signature checks and the file-system monitor,
# all of which the repository's own configuration could turn into programs, are off.
# - Output and time are bounded, also for a repository of any size.

MAX_SECONDS = 30  # for one run, waiting for its turn included
MAX_OUTPUT_BYTES = 1_000_000  # what a model can use is less; the rest is not read and git is stopped
MAX_RUNS = 8  # of git at once; further ones wait for their turn
MAX_NAME_CHARACTERS = 1_000  # of a branch, a path, a date, an author

_CONFIGURATION = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "diff.external": "",
    "log.showSignature": "false",
    "protocol.allow": "never",
}
_OBJECT_ID = re.compile(rb"[0-9a-f]{40,64}\n")
# The look of a diff must not depend on a user's configuration, and a diff must not start programs.
PLAIN_DIFF = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--submodule=short",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


class GitFailed(ToolError):
    """Git said no; the text has its words."""


class NoSuchRevision(ToolError):
    """The repository has no commit, branch, tag or file of that name."""


@dataclass(frozen=True)
class Output:
    """The output of a run of git, cut at `MAX_OUTPUT_BYTES`."""

    data: bytes
    truncated: bool

    @property
    def text(self) -> str:
        """As text; bytes that are not UTF-8 are replaced."""
        text = self.data.decode("utf-8", "replace")
        return f"{text}\n[cut after {len(self.data)} bytes]\n" if self.truncated else text


class Repository:
    """The repository that ``directory`` belongs to.

    Raises `ValueError`, with a text for people, if git cannot work with it.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ValueError(f"there is no directory {str(directory)!r}")
        program = shutil.which("git")
        if program is None:
            raise ValueError("the git program is not installed, or not on PATH")
        self.directory = directory.resolve()
        self._command = [program, "--no-pager", "--literal-pathspecs", "-C", str(self.directory)]
        self._command += [part for key, value in _CONFIGURATION.items() for part in ("-c", f"{key}={value}")]
        self._environment = _environment()
        self._runs = trio.CapacityLimiter(MAX_RUNS)
        asked = subprocess.run(
            [*self._command, "rev-parse", "--git-dir"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        if asked.returncode != 0:
            raise ValueError(_explained(asked.stderr, self.directory))

    async def run(self, *arguments: str) -> Output:
        """Runs ``git arguments…``. Raises `GitFailed` when git says no, `ToolError` when it takes too long.

        Cancelling stops git. None of the arguments may come from outside as it is.
        """
        with trio.move_on_after(MAX_SECONDS):
            async with self._runs:
                return await self._run(arguments)
        raise ToolError(f"git {arguments[0]} was stopped after {MAX_SECONDS} s")

    async def commit(self, revision: str) -> str:
        """The id of the commit that ``revision`` (a branch, a tag, an id, ``main~3``) names."""
        return await self._verified(revision, f"{checked(revision)}^{{commit}}")

    async def object(self, revision: str, path: str) -> str:
        """The id of the file or directory at ``path`` in the commit that ``revision`` names."""
        commit = await self.commit(revision)
        return await self._verified(f"{revision}:{path}", f"{commit}:{checked(path)}")

    async def _verified(self, said: str, expression: str) -> str:
        try:
            found = await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", expression)
        except GitFailed as error:
            raise NoSuchRevision(f"this repository has no {said!r}") from error
        # "^main" is answered with "^" and an id, which another command would take for an exclusion
        if not _OBJECT_ID.fullmatch(found.data):
            raise NoSuchRevision(f"this repository has no {said!r}")
        return found.text.strip()

    async def _run(self, arguments: Sequence[str]) -> Output:
        printed = bytearray()
        complaint = bytearray()
        truncated = False
        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                [*self._command, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                check=False,
            )
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(_keep_first, process.stderr, complaint)
            left = MAX_OUTPUT_BYTES
            async with process.stdout:
                async for chunk in process.stdout:
                    printed += chunk[:left]
                    left -= len(chunk)
                    if left < 0:
                        truncated = True
                        nursery.cancel_scope.cancel()
                        break
        if process.returncode != 0 and not truncated:
            raise GitFailed(_explained(bytes(complaint), self.directory))
        return Output(bytes(printed), truncated)


def checked(value: str) -> str:
    """``value`` if it can be part of an argument at all; raises `ToolError` if not."""
    if len(value) > MAX_NAME_CHARACTERS:
        raise ToolError(f"longer than {MAX_NAME_CHARACTERS} characters: {value[:40]!r}…")
    if any(character < " " for character in value):
        raise ToolError(f"a control character is not allowed: {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ToolError(f"no valid text: {value!r}") from error
    return value


async def _keep_first(stream: trio.abc.ReceiveStream, kept: bytearray) -> None:
    async with stream:
        async for chunk in stream:
            kept += chunk[: max(0, 2_000 - len(kept))]


def _environment() -> dict[str, str]:
    kept = {key: value for key in ("PATH", "HOME", "XDG_CONFIG_HOME") if (value := os.environ.get(key))}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _explained(complaint: bytes, directory: Path) -> str:
    text = " ".join(complaint.decode("utf-8", "replace").split()).removeprefix("fatal: ")
    if "dubious ownership" in text:
        return (
            f"git does not trust {str(directory)!r}, as it belongs to another user; if you do: "
            f"git config --global --add safe.directory {directory}"
        )
    if "not a git repository" in text:
        return f"{str(directory)!r} is not inside a git repository"
    return f"git: {text[:500]}" if text else "git failed without a word"


# -- The history: commits, branches, authors, files; nothing is ever written ---------------------------

COMMITS_FOR_AUTHORS = 5_000  # how far back to look for authors

# One NUL after each field and, by -z, after each commit: the only byte that none of them can contain.
_FIELDS = ("%H", "%an", "%ae", "%aI", "%s")
_FORMAT = "--format=tformat:" + "%x00".join(_FIELDS)


@dataclass(frozen=True)
class Commit:
    """One commit; ``date`` is the author's, ISO 8601."""

    sha: str
    author: str
    email: str
    date: str
    subject: str


@dataclass(frozen=True)
class Log:
    """Commits, newest first; ``truncated`` says that there were more than could be listed."""

    commits: list[Commit]
    truncated: bool


class History:
    """Questions to ``repository``; all raise `ToolError` as its methods do."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository

    async def log(
        self, revision: str, *, since: str = "", author: str = "", path: str = "", limit: int = 20
    ) -> Log:
        """The commits reachable from ``revision``; the other three leave out those that do not fit.

        ``since`` is any date that git understands ("2 weeks ago"), ``author`` a part of a name or address, not a
        pattern, ``path`` a file or directory.
        """
        commit = await self.repository.commit(revision)
        output = await self.repository.run(
            "log",
            "-z",
            "--no-show-signature",
            f"--max-count={limit + 1}",
            _FORMAT,
            *([f"--since={checked(since)}"] if since else []),
            *(["--fixed-strings", "--regexp-ignore-case", f"--author={checked(author)}"] if author else []),
            commit,
            "--",
            *([checked(path)] if path else []),
        )
        commits = _commits(output)
        return Log(commits[:limit], output.truncated or len(commits) > limit)

    async def show(self, revision: str) -> str:
        """A commit with its message, statistics and patch, as git prints it."""
        commit = await self.repository.commit(revision)
        arguments = ("show", "--no-show-signature", "--format=fuller", "--stat", "--patch", *PLAIN_DIFF)
        return (await self.repository.run(*arguments, commit, "--")).text

    async def diff(self, base: str, head: str, path: str = "") -> str:
        """The patch from one commit to another."""
        first, second = await self.repository.commit(base), await self.repository.commit(head)
        wanted = [checked(path)] if path else []
        return (
            await self.repository.run("diff", "--stat", "--patch", *PLAIN_DIFF, first, second, "--", *wanted)
        ).text

    async def file(self, revision: str, path: str) -> bytes | list[str]:
        """The content of a file, or the names in a directory, as they are in a commit."""
        found = await self.repository.object(revision, path)
        kind = (await self.repository.run("cat-file", "-t", found)).text.strip()
        if kind == "tree":
            return await self._names(found)
        if kind != "blob":
            raise ToolError(f"{path!r} is a {kind}, not a file")
        output = await self.repository.run("cat-file", "blob", found)
        if output.truncated:
            raise ToolError(f"{path!r} is larger than {len(output.data)} bytes")
        return output.data

    async def branches(self) -> list[str]:
        """Local branches, the one that was changed last first, then those of remotes."""
        listed = await self.repository.run(
            "for-each-ref", "--sort=-committerdate", "--format=%(refname)", "refs/heads", "refs/remotes"
        )
        names = listed.data.decode("utf-8", "replace").splitlines()
        local = [name.removeprefix("refs/heads/") for name in names if name.startswith("refs/heads/")]
        remote = [name.removeprefix("refs/remotes/") for name in names if name.startswith("refs/remotes/")]
        return local + [name for name in remote if not name.endswith("/HEAD")]

    async def authors(self, revision: str) -> list[str]:
        """Returns the authors of the latest commits, the most frequent first."""
        return [
            name
            for name, _ in Counter(
                commit.author for commit in (await self.log(revision, limit=COMMITS_FOR_AUTHORS)).commits
            ).most_common()
        ]

    async def paths(self, revision: str, directory: str) -> list[str]:
        """The paths of everything in a directory, those of directories with a slash at the end."""
        names = await self.file(revision, directory)
        prefix = f"{directory}/" if directory else ""
        return [f"{prefix}{name}" for name in names] if isinstance(names, list) else []

    async def _names(self, tree: str) -> list[str]:
        listed = await self.repository.run("ls-tree", "-z", tree)
        lines = [line.partition(b"\t") for line in listed.data.split(b"\0")]
        return [
            name.decode("utf-8", "replace") + ("/" if b" tree " in about else "")
            for about, _, name in lines
            if name
        ]


def _commits(output: Output) -> list[Commit]:
    fields = output.data.decode("utf-8", "replace").split("\0")
    width = len(_FIELDS)
    whole = (len(fields) - 1) // width * width  # after the last NUL comes nothing, or a part that was cut off
    return [Commit(*fields[start : start + width]) for start in range(0, whole, width)]


# -- The server ----------------------------------------------------------------------------------------

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
    app = Server("git", version="1.0", title=f"History of {repository.directory.name}")
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
        except ToolError:  # no such branch, so it has no authors
            return []
        return [name for name in authors if value.casefold() in name.casefold()]


def _lines(log: Log) -> str:
    return "\n".join(f"{each.sha[:12]} {each.date} {each.author}: {each.subject}" for each in log.commits)


def _starting_with(value: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.casefold().startswith(value.casefold())]


@contextmanager
def _errors_of(uri: str | None) -> Iterator[None]:
    """Outside of tools no result carries the text of a `ToolError`: it goes into the protocol's error."""
    try:
        yield
    except ToolError as error:
        if uri is not None and isinstance(error, NoSuchRevision):
            raise ResourceNotFound(uri) from error
        raise RpcError(INVALID_PARAMS, str(error)) from error
