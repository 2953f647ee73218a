"""Reads a repository: commits, branches, authors, files; nothing is ever written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mcp_actors.errors import ToolError
from mcp_actors.examples.git.program import PLAIN_DIFF, Output, Repository, checked

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
        """The paths of what is in a directory, those of directories with a slash at the end."""
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
